"""Sizes and frequencies in users' spelling: `65536`, `64KiB`, `64kB`; `168MHz`."""

from __future__ import annotations

import re

from tvm_cascade.errors import UsageError

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1024,
    "kb": 1000,
    "kib": 1024,
    "m": 1024**2,
    "mb": 1000**2,
    "mib": 1024**2,
    "g": 1024**3,
    "gb": 1000**3,
    "gib": 1024**3,
}


def parse_size(text: str) -> int:
    """Parse a size in bytes: a whole number, or a number with a unit (kB = 1000, KiB = 1024, MB, MiB, GB, GiB).

    Raises `UsageError` for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or (unit == 1 and "." in match[1]):
        raise UsageError(f"'{text}' is no size: write bytes (65536) or a unit (64KiB, 64kB, 1MiB)")
    return int(float(match[1]) * unit)


def human(size: float) -> str:
    """Format bytes in the most readable unit: `512 bytes`, `12.0 KiB`, `1.41 MiB`."""
    if size < 1024:
        return f"{size:,} bytes"
    return f"{size / 1024:.1f} KiB" if size < 1024**2 else f"{size / 1024**2:.2f} MiB"


def bytes_and_unit(size: int) -> str:
    """Format bytes, and from 1024 on also a larger unit: `7088 bytes (6.9 KiB)`."""
    return f"{size} bytes" if size < 1024 else f"{size} bytes ({human(size)})"


def megahertz(hertz: int) -> str:
    """Format a clock as data sheets do: `216 MHz`, `32.768 MHz`."""
    return f"{hertz / 1e6:g} MHz"


_HERTZ = {"": 1, "hz": 1, "khz": 1000, "mhz": 1000**2, "ghz": 1000**3}


def parse_frequency(text: str) -> int:
    """Parse a frequency in hertz: a whole number, or a number with a unit (168MHz, 1.5GHz).

    Raises `UsageError` for anything else, and below a kilohertz: no core is so slow, a unit was forgotten.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _HERTZ.get(match[2].lower()) if match else None
    hertz = 0 if match is None or unit is None or (unit == 1 and "." in match[1]) else round(float(match[1]) * unit)
    if 0 < hertz < 1000:
        raise UsageError(
            f"'{text}' is {hertz} Hz, which is too slow for any core: write hertz (168000000) or a unit (168MHz)"
        )
    if hertz < 1:
        raise UsageError(f"'{text}' is no frequency: write hertz (168000000) or a unit (168MHz, 1.5GHz)")
    return hertz


def parse_input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`NAME=1,3,224,224` as a name and a shape; names may contain '='."""
    name, _, dims = text.rpartition("=")
    try:
        shape = tuple(int(d) for d in dims.split(","))
    except ValueError:
        shape = ()
    if not name or not shape or any(d < 1 for d in shape):
        raise UsageError(f"'{text}' is no input shape: write NAME=1,3,224,224 with positive numbers")
    return name, shape
