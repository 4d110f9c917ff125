"""Families of cores, each with compiler, emulator and start-up code."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.errors import UsageError


@dataclass(frozen=True, slots=True)
class Family:
    """Toolchain, emulator and start-up code for all cores of an instruction set. Empty strings if nothing is linked."""

    name: str
    cores: str  # prefix of the cores' names in board files
    prefix: str  # of the GNU tools
    compiler_remedy: str
    link_flags: tuple[str, ...]
    startup: str  # template of startup.c
    qemu: str
    qemu_remedy: str
    qemu_arguments: tuple[str, ...] = ()

    @property
    def gcc(self) -> str:
        return f"{self.prefix}gcc"

    @property
    def links(self) -> bool:
        """Return True if images are linked here, by a cross compiler with start-up code; otherwise folders hold only C."""
        return bool(self.prefix)


ARM = Family(
    name="arm",
    cores="cortex-m",
    prefix="arm-none-eabi-",
    compiler_remedy=(
        "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi (Debian, Ubuntu) "
        "or brew install --cask gcc-arm-embedded (macOS)"
    ),
    # nano.specs: newlib's small variant; networks need memcpy and memset of it, float networks its mathematics too
    # noexecstack: linkers warn of assembly in newlib that does not say so itself
    link_flags=("-nostartfiles", "--specs=nano.specs", "-Wl,--gc-sections,-z,noexecstack"),
    startup="startup_arm.c",
    qemu="qemu-system-arm",
    qemu_remedy="apt-get install qemu-system-arm (Debian, Ubuntu) or brew install qemu (macOS)",
)

RISCV = Family(
    name="riscv",
    cores="rv32",
    prefix="riscv64-unknown-elf-",
    compiler_remedy=(
        "apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf (Debian, Ubuntu) "
        "or brew install riscv64-elf-gcc (macOS)"
    ),
    link_flags=("-nostartfiles", "-Wl,--gc-sections"),
    startup="startup_riscv.c",
    qemu="qemu-system-riscv32",
    qemu_remedy="apt-get install qemu-system-misc (Debian, Ubuntu) or brew install qemu (macOS)",
    qemu_arguments=("-bios", "none"),
)

# Debian has no compiler of this core; the C is built by the maker's tools (`export --as esp-idf`)
XTENSA = Family("xtensa", "xtensa", "", "", (), "", "", "")

HOST = Family("host", "host", "", "apt-get install gcc", (), "", "", "")

FAMILIES = (ARM, RISCV, XTENSA, HOST)


def family_of_core(core: str) -> Family:
    """Find the family of a board's core; raise `UsageError` if no family claims it."""
    for family in FAMILIES:
        if core.startswith(family.cores):
            return family
    known = ", ".join(f"{family.cores}…" for family in FAMILIES if family is not HOST)
    raise UsageError(f"core {core!r} belongs to no known family; known: {known}")
