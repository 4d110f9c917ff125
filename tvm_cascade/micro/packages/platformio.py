"""A PlatformIO library with an example project, by "library.json" of PlatformIO's documentation."""

from __future__ import annotations

import json
from pathlib import Path

from tvm_cascade.micro.package import Package, PackageKind, write_sources


class _PlatformIO(PackageKind):
    templates = "platformio"
    title = "a PlatformIO library"

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        write_sources(package, folder / "src", folder / "include")
        return {
            "headers": json.dumps([f"{network.name}.h" for network in package.networks]),
            "flag_list": json.dumps(package.flags),
        }


KIND = _PlatformIO()
