"""A PlatformIO library with an example project, by "library.json" of PlatformIO's documentation."""

from __future__ import annotations

import json
from pathlib import Path

from tvm_cascade.micro.package import Package, PackageKind, section_text, write_sources


class _PlatformIO(PackageKind):
    templates = "platformio"
    title = "a PlatformIO library"

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        write_sources(package, folder / "src", folder / "include", section_text(package, self.sections))
        return {
            "headers": json.dumps([f"{network.name}.h" for network in package.networks]),
            "flag_list": json.dumps(package.flags),
        }


KIND = _PlatformIO()
