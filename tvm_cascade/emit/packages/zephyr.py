"""A Zephyr module with a sample, by the layout in "Modules (External projects)" of Zephyr's documentation.

An application enables it with `CONFIG_TVM_CASCADE_<NAME>=y`.
"""

from __future__ import annotations

from pathlib import Path

from tvm_cascade.cores.families import ARM, HOST, RISCV
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.package import Package, PackageKind, write_archive, write_file, write_sources

_MICROPHONE = """
The sample hears by the DMIC API of Zephyr 3.5 or later: the microphone is the node of the devicetree with the label
`dmic_dev`, which some boards have already. For the others, write `boards/<board>.overlay` in the sample, with the pins and
properties that its driver asks for:

```
dmic_dev: &pdm0 {
    status = "okay";
};
```
"""


class _Zephyr(PackageKind):
    templates = "zephyr"
    title = "a Zephyr module"
    microphone = "listen_zephyr.c.in"
    compiled = (ARM, RISCV, HOST)

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        name = package.name
        archive = ""
        if package.has_objects:
            write_archive(package, folder / "lib" / f"lib{name}_kernels.a")
            archive = (
                f"  zephyr_library_import(tvm_cascade_{name}_kernels "
                f"${{CMAKE_CURRENT_SOURCE_DIR}}/lib/lib{name}_kernels.a)\n"
                f"  zephyr_library_link_libraries(tvm_cascade_{name}_kernels)\n"
            )
        write_sources(package, folder / "src", folder / "include")
        if package.memories:
            write_file(folder / "memories.ld", linker_sections(package))
        return {
            "linker": "  zephyr_linker_sources(SECTIONS memories.ld)\n" if package.memories else "",
            "sources": "\n".join(f"    src/{source}" for source, _ in package.sources()),
            "archive": archive,
            "needs": _needs(package),
            "arch": f"    arch_allow: {package.target.family.name}\n" if package.has_objects else "",
            "filter": '    filter: dt_nodelabel_enabled("dmic_dev")\n' if package.hearing else "",
            "settings": _settings(package),
            "microphone": _MICROPHONE if package.hearing else "",
        }


def linker_sections(package: Package) -> str:
    """Write the linker script's part for arrays in the board's memories, which Zephyr preprocesses with the devicetree.

    If Zephyr's own RAM begins in a memory, by the devicetree, that memory is left to Zephyr; the rest lie at the
    addresses in the board's file.
    """
    text = (
        "/* The memories that the network lies in. Nothing else may be placed in those that are not Zephyr's RAM. */\n"
        "#define TVM_CASCADE_RAM DT_REG_ADDR(DT_CHOSEN(zephyr_sram))\n"
    )
    for name, (address, size) in _regions(package).items():
        text += (
            f"#if TVM_CASCADE_RAM >= {address} && TVM_CASCADE_RAM < {address + size}\n"
            f"    .{name} (NOLOAD) : {{ *(.{name}) }} > RAMABLE_REGION\n"
            "#else\n"
            f"    .{name} {address} (NOLOAD) : {{ *(.{name}) }}\n"
            "#endif\n"
            f'    ASSERT(SIZEOF(.{name}) <= {size}, "the board has {size} bytes of {name}")\n'
        )
    return text


def _regions(package: Package) -> dict[str, tuple[int, int]]:
    """Return address and bytes of the memories, from the board's file in the compiled folder."""
    board = find_board(package.image.folder, package.image.board)
    known = {m.name: board.memories[m.name] for _, m in package.memories}
    return {name: (region.origin, region.bytes) for name, region in known.items()}


def _needs(package: Package) -> str:
    """Write Kconfig lines: a full libm if kernels may call math functions, and cores that execute compiled kernels."""
    lines = ["    select REQUIRES_FULL_LIBC\n"] if package.uses_math else []
    if package.has_objects and package.target.family is ARM:
        cores = " || ".join(f"CPU_{core.upper().replace('-', '_')}" for core in package.target.runs_on)
        lines.append(f"    depends on {cores}\n")
    if package.has_objects and package.target.family is RISCV:
        lines.append("    depends on RISCV && !64BIT\n")
    if _hard_float_objects(package):
        lines.append("    depends on FP_HARDABI\n")
    return "".join(lines)


def _settings(package: Package) -> str:
    """Write the sample's settings: the floating point unit if useful, hard-float calls if kernels need them, a
    microphone for examples that listen.
    """
    floats = any(
        spec.dtype.startswith("float") for network in package.networks for spec in (*network.inputs, *network.outputs)
    )
    hard = _hard_float_objects(package)
    unit = "CONFIG_FPU=y\n" if hard or (floats and package.target.fpu) else ""
    microphone = "CONFIG_AUDIO=y\nCONFIG_AUDIO_DMIC=y\n" if package.hearing else ""
    return unit + ("CONFIG_FP_HARDABI=y\n" if hard else "") + microphone


def _hard_float_objects(package: Package) -> bool:
    return package.has_objects and "-mfloat-abi=hard" in package.target.gcc_flags


KIND = _Zephyr()
