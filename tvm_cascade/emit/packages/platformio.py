"""A PlatformIO library with an example project, by "library.json" of PlatformIO's documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tvm_cascade.emit.package import Package, PackageKind, section_text, write_sources

_BOARDS = (("ststm32", "nucleo_f446re"), ("nordicnrf52", "nrf52_dk"), ("raspberrypi", "pico"))  # platform, board
_HEARS = (("nordicnrf52", "nano33ble"),)  # with Arduino's library PDM


def _environment(board: tuple[str, str]) -> str:
    """Write an environment for platformio.ini."""
    return f"[env:{board[1]}]\nplatform = {board[0]}\nboard = {board[1]}\n"


def own_environment(board: str, boards: Sequence[tuple[str, str]]) -> str:
    """Return the environment of the image's own board; the last, if there is none."""
    names = [name for _, name in boards]
    own = board.replace("-", "_")
    return own if own in names else names[-1]


class _PlatformIO(PackageKind):
    templates = "platformio"
    title = "a PlatformIO library"
    microphone = "listen_arduino.c.in"

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        write_sources(package, folder / "src", folder / "include", section_text(package, self.sections))
        boards = _HEARS if package.hearing else _BOARDS
        return {
            "headers": json.dumps([f"{network.name}.h" for network in package.networks]),
            "flag_list": json.dumps(package.flags),
            "environments": "\n".join(map(_environment, boards)),
            "environment": own_environment(package.image.board, boards),
        }


KIND = _PlatformIO()
