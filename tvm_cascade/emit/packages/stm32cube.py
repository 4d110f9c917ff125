"""A folder for projects in STM32CubeIDE and STM32CubeMX.

CubeMX puts third-party code into `Middlewares/Third_Party/<name>`: CubeIDE compiles everything below `Middlewares`, and
a CMake project made by CubeMX adds the folder's CMakeLists.txt.
"""

from __future__ import annotations

from pathlib import Path

from tvm_cascade.cores.families import ARM
from tvm_cascade.emit.package import Package, PackageKind, kernel_guard, section_text, write_archive, write_sources


class _Stm32Cube(PackageKind):
    templates = "stm32cube"
    title = "a folder for STM32CubeIDE"
    compiled = (ARM,)

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        place, name = folder / "Middlewares" / "Third_Party" / package.name, package.name
        guard = link = steps = ""
        if package.has_objects:
            write_archive(package, place / "Lib" / f"lib{name}_kernels.a")
            guard = kernel_guard(package.target)
            link = f"target_link_libraries({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}}/Lib/lib{name}_kernels.a)\n"
            steps = (
                f"3. Its kernels are compiled. *MCU GCC Linker*, *Libraries*: add `{name}_kernels` as library and\n"
                f"   `../Middlewares/Third_Party/{name}/Lib` as search path.\n"
            )
        write_sources(package, place / "Src", place / "Inc", guard + section_text(package, self.sections))
        return {
            "sources": "\n".join(f"    Src/{source}" for source, _ in package.sources()),
            "link": link,
            "steps": steps,
        }


KIND = _Stm32Cube()
