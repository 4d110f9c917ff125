"""Checks of what a user asks: each takes an option's name and the value given, and returns the value to go on with.

All raise `UsageError`, with the option and what to give instead. Options are called as on the command line, whose names
differ from the Python API's by dashes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tvm_cascade.errors import UsageError
from tvm_cascade.sizes import parse_size

Check = Callable[[str, Any], Any]


def refusal(option: str, value: object, remedy: str) -> UsageError:
    """The error for a value that an option cannot have."""
    return UsageError(f"--{option.replace('_', '-')} {value!r}: {remedy}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def optional(check: Check) -> Check:
    """`check`, or None for an option that was not given."""
    return lambda option, value: None if value is None else check(option, value)


def flag(option: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise refusal(option, value, "give True or False")
    return value


def choice(*known: str) -> Check:
    """One of some words."""

    def check(option: str, value: Any) -> str:
        if value not in known:
            raise refusal(option, value, f"give {', '.join(known[:-1])} or {known[-1]}")
        return value

    return check


def size(option: str, value: Any) -> int:
    """Bytes: a whole number, or a text such as "64KiB"."""
    if isinstance(value, str):
        try:
            return parse_size(value)
        except UsageError as error:
            raise UsageError(f"--{option.replace('_', '-')}: {error}") from None
    if not _is_whole(value) or value < 0:
        raise refusal(option, value, "give a positive size in bytes (65536) or with a unit (64KiB)")
    return int(value)


def cap(option: str, value: Any) -> int | None:
    """Bytes at most, or None or "min" for the fewest."""
    return None if value is None or value == "min" else size(option, value)


def factor(least: float, most: float = inf) -> Check:
    """A finite number of at least `least` and at most `most`."""
    remedy = f"give a factor of at least {least:g}" + (f" and at most {most:g}" if most < inf else "")

    def check(option: str, value: Any) -> float:
        if not _is_number(value) or not least <= value <= most or value == inf:  # written so that nan is refused too
            raise refusal(option, value, remedy)
        return float(value)

    return check


def whole(least: int, most: int | None = None) -> Check:
    """A whole number of at least `least` and at most `most`."""
    remedy = f"give a whole number of at least {least}" + (f" and at most {most}" if most is not None else "")

    def check(option: str, value: Any) -> int:
        if not _is_whole(value) or value < least or (most is not None and value > most):
            raise refusal(option, value, remedy)
        return int(value)

    return check


def seconds(option: str, value: Any) -> float:
    """A finite number of seconds above zero."""
    if not _is_number(value) or not 0 < value < inf:  # written so that nan is refused too
        raise refusal(option, value, "give a number of seconds above 0")
    return float(value)


def text(option: str, value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise refusal(option, value, "give a text that is not empty")
    return value


def name_or_path(option: str, value: Any) -> str:
    """A name, or a path as a text."""
    return text(option, fspath(value) if isinstance(value, PathLike) else value)


def path(option: str, value: Any) -> Path:
    """A path, as a text or as a `Path`."""
    if not isinstance(value, (str, PathLike)) or not isinstance(fspath(value), str) or not fspath(value):
        raise refusal(option, value, "give a path")
    return Path(fspath(value))


def shapes(option: str, value: Any) -> Mapping[str, tuple[int, ...]]:
    """Shapes by the names of inputs: every size a positive whole number."""
    given = {} if value is None else value
    if not isinstance(given, Mapping):
        raise refusal(option, value, 'give shapes by name: {"x": (1, 3, 224, 224)}')
    made = {}
    for name, shape in given.items():
        sizes = [] if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__") else list(shape)
        right = all(_is_whole(d) and d > 0 for d in sizes)
        if not isinstance(name, str) or not sizes or not right:
            raise refusal(option, f"{name}={shape}", "give a name and positive sizes: NAME=1,3,224,224")
        made[name] = tuple(int(d) for d in sizes)
    return MappingProxyType(made)
