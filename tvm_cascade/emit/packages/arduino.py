"""An Arduino library with an example sketch, by Arduino's "Library specification" 1.5."""

from __future__ import annotations

import re
from pathlib import Path

from tvm_cascade.cores.families import ARM
from tvm_cascade.emit.package import (
    Package,
    PackageKind,
    kernel_guard,
    section_text,
    write_archive,
    write_sources,
)
from tvm_cascade.errors import UsageError

# Sections that the linker scripts of boards have beside their RAM, by the name of the memory: condition, section
_TEENSY, _ESP32 = "defined(__IMXRT1062__)", "defined(ARDUINO_ARCH_ESP32)"
_SECTIONS = {
    "ocram": ((_TEENSY, ".dmabuffers"),),
    "psram": ((_TEENSY, ".externalram"), (_ESP32, ".ext_ram.bss")),
}
_MICROPHONE = """

The example hears by the library PDM of boards with Mbed OS, such as the Nano 33 BLE Sense; for another
board, write its `listen()`."""
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


class _Arduino(PackageKind):
    templates = "arduino"
    title = "an Arduino library"
    microphone = "listen_arduino.c.in"
    sections = _SECTIONS
    compiled = (ARM,)

    def refuse(self, package: Package, out: Path) -> None:
        if not _FOLDER.match(out.name):
            raise UsageError(
                f"Arduino takes no library folder named {out.name!r}: "
                "letters, digits, '_', '.' and '-', 63 at most, no leading mark"
            )
        super().refuse(package, out)

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        name, target = package.name, package.target
        precompiled = guard = ""
        if package.has_objects:
            # folder by the builder's `build.mcu`; it tries `<core>/<fpu>-<float abi>` first
            for core in target.runs_on:
                write_archive(package, folder / "src" / core / f"lib{name}_kernels.a")
            precompiled, guard = f"precompiled=true\nldflags=-l{name}_kernels\n", kernel_guard(target)
        write_sources(package, folder / "src", folder / "src", guard + section_text(package, self.sections))
        return {
            "library": f"network_{name}" if name.startswith("arduino") else name,  # Arduino reserves this prefix
            "headers": ",".join(f"{network.name}.h" for network in package.networks),
            "keywords": "".join(
                f"{network.name}_{function}\tKEYWORD2\n"
                for network in package.networks
                for function in network.functions
            ),
            "precompiled": precompiled,
            "boards": _boards(package) + (_MICROPHONE if package.hearing else ""),
        }


def _boards(package: Package) -> str:
    """Write the README's sentence on supported boards."""
    if not package.has_objects:
        return "It serves boards of 32 bits."
    cores = ", ".join(package.target.runs_on)
    return (
        f"Its kernels are compiled\nwith `{' '.join(package.target.gcc_flags)}`, for boards of {cores}\n"
        "with the same `-mfloat-abi`. Arduino IDE 1.8.13 and arduino-cli 0.11 are the first to find them."
    )


KIND = _Arduino()
