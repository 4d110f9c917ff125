"""A CMSIS-Pack with a single software component, by the schema PACK.xsd of the Open-CMSIS-Pack project.

The folder holds the pack's files beside `tvm_cascade.<name>.<version>.pack`, the archive installed by tools.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from tvm_cascade.cores.families import ARM
from tvm_cascade.emit.package import (
    VERSION,
    Package,
    PackageKind,
    kernel_guard,
    section_text,
    write_archive,
    write_sources,
)

_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # of all files in the archive: equal folders make equal archives


class _CmsisPack(PackageKind):
    templates = "cmsis_pack"
    title = "a CMSIS-Pack"
    compiled = (ARM,)

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        guard = conditions = condition = ""
        files = [("include", "include/"), *(("header", f"include/{name}") for name, _ in package.headers())]
        files += [("source", f"src/{name}") for name, _ in package.sources()]
        if package.has_objects:
            files += [("library", f"lib/lib{package.name}_kernels.a")]
            write_archive(package, folder / files[-1][1])
            guard, condition, conditions = kernel_guard(package.target), ' condition="Kernels"', _conditions(package)
        write_sources(package, folder / "src", folder / "include", guard + section_text(package, self.sections))
        return {
            "conditions": conditions,
            "condition": condition,
            "files": "\n".join(f'        <file category="{kind}" name="{name}"/>' for kind, name in files),
        }

    def finish(self, package: Package, folder: Path) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        with zipfile.ZipFile(folder / f"tvm_cascade.{package.name}.{VERSION}.pack", "w", zipfile.ZIP_DEFLATED) as pack:
            for path in paths:
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _LONG_AGO)
                entry.compress_type = zipfile.ZIP_DEFLATED
                pack.writestr(entry, path.read_bytes())


def _conditions(package: Package) -> str:
    """Write the condition `Kernels`: a device with a core that executes the compiled kernels."""
    names = (core.replace("cortex-m", "Cortex-M").replace("plus", "+") for core in package.target.runs_on)
    accepted = "\n".join(f'      <accept Dcore="{name}"/>' for name in names)
    about = f"      <description>A core that runs kernels compiled for {package.target.name}</description>"
    return f'  <conditions>\n    <condition id="Kernels">\n{about}\n{accepted}\n    </condition>\n  </conditions>\n'


KIND = _CmsisPack()
