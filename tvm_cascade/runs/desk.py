"""Boards on the desk: the serial ports of boards plugged in over USB, by pyserial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tvm_cascade import extras
from tvm_cascade.errors import MissingToolError, UsageError

AUTO = "auto"  # in place of a port: that of the one board that is plugged in
# USB vendors of debug probes, whose serial number is what `flash --probe` takes
_PROBES = {0x0483: "ST-Link", 0x0D28: "CMSIS-DAP", 0x1366: "J-Link", 0x1FC9: "CMSIS-DAP", 0x03EB: "CMSIS-DAP"}


@dataclass(frozen=True, slots=True)
class SerialPort:
    """A serial port of a connected device."""

    device: str  # /dev/ttyACM0, COM3
    description: str
    serial_number: str = ""  # of the device; "" where it has none
    probe: str = ""  # kind of debug probe; "" where it is none, or not known

    def __str__(self) -> str:
        number = f", serial number {self.serial_number}" if self.serial_number else ""
        return f"{self.device} ({self.description}{f', {self.probe}' if self.probe else ''}{number})"


def serial_ports() -> tuple[SerialPort, ...]:
    """List the ports of devices connected over USB, sorted; raise `MissingToolError` without pyserial."""
    found = extras.load("pyserial", ".tools.list_ports").comports()
    return tuple(
        SerialPort(p.device, p.description or "", p.serial_number or "", _PROBES.get(p.vid, ""))
        for p in sorted(found)
        if p.vid is not None
    )


def listed(ports: tuple[SerialPort, ...]) -> str:
    """Format the ports for a sentence; "none" with a hint if there are none."""
    return ", ".join(map(str, ports)) or "none, is the board plugged in?"


def seen() -> str:
    """List the connected devices for the end of a message; "" if there are none or pyserial is missing."""
    try:
        ports = serial_ports()
    except MissingToolError:
        return ""
    return f"; plugged in: {listed(ports)}" if ports else ""


def resolve_port(port: str) -> str:
    """Return `port`; for `auto`, the port of the one connected board.

    Raises `UsageError`, with a list of connected devices, for a device file that does not exist, and for `auto` unless
    exactly one board is connected.
    """
    if port != AUTO:
        if port.startswith("/dev/") and not Path(port).exists():
            raise UsageError(f"{port}: no such device; serial ports here: {listed(serial_ports())}")
        return port
    ports = serial_ports()
    if len(ports) != 1:
        raise UsageError(f"which serial port? Plugged in: {listed(ports)}")
    return ports[0].device
