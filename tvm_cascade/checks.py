"""Checks of option values: each takes an option's name and the value given, and returns the value in its final type.

All raise `UsageError`, with the option and the values to give instead. Messages name options as on the command line;
the Python API has underscores in place of dashes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tvm_cascade import extras
from tvm_cascade.errors import UsageError
from tvm_cascade.fixed_inputs import FixedInput, fixed_inputs, split
from tvm_cascade.machine import Ram
from tvm_cascade.sizes import parse_frequency, parse_size

Check = Callable[[str, Any], Any]


def refusal(option: str, value: object, remedy: str) -> UsageError:
    """Build the `UsageError` for a value not allowed for an option."""
    return UsageError(f"--{option.rstrip('_').replace('_', '-')} {value!r}: {remedy}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True)
class optional:
    """Return `check`, or None for an option left out."""

    check: Check

    def __call__(self, option: str, value: Any) -> Any:
        return None if value is None else self.check(option, value)


def flag(option: str, value: Any) -> bool:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise refusal(option, value, "give True or False")
    return value


class choice:
    """Check for a text in `known`."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def __call__(self, option: str, value: Any) -> str:
        if value not in self.known:
            *others, last = self.known
            raise refusal(option, value, f"give {', '.join(others)}{' or ' * bool(others)}{last}")
        return value


class several:
    """Check for one or several texts in `known`; return them without repetition."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self._one = choice(*known)

    def __call__(self, option: str, value: Any) -> tuple[str, ...]:
        given = () if value is None else (value,) if isinstance(value, str) else value
        if not isinstance(given, Sequence):
            raise refusal(option, value, f"give some of {', '.join(self.known)}")
        return tuple(dict.fromkeys(self._one(option, one) for one in given))


def time_axis(option: str, value: Any) -> int:
    """Convert a number, a text, or "time" (axis 1) to the number of an axis behind the batch."""
    given: Any = int(value) if isinstance(value, str) and value.isdecimal() else 1 if value == "time" else value
    if not _is_whole(given) or given < 1:
        raise refusal(option, value, "give time, which is axis 1, or the number of another axis behind the batch")
    return int(given)


def size(option: str, value: Any) -> int:
    """Convert a size to bytes: a whole number, or a text such as "64KiB"."""
    return _in_units(option, value, parse_size, 0, "size in bytes (65536) or with a unit (64KiB)")


def frequency(option: str, value: Any) -> int:
    """Convert a frequency to hertz: a positive whole number, or a text such as "168MHz"."""
    return _in_units(option, value, parse_frequency, 1, "frequency in hertz (168000000) or with a unit (168MHz)")


def _in_units(option: str, value: Any, parse: Callable[[str], int], least: int, what: str) -> int:
    if isinstance(value, str):
        try:
            return parse(value)
        except UsageError as error:
            raise UsageError(f"--{option.replace('_', '-')}: {error}") from None
    if not _is_whole(value) or value < least:
        raise refusal(option, value, f"give a positive {what}")
    return int(value)


def cap(option: str, value: Any) -> int | None:
    """Convert a cap to bytes; None and "min" (the smallest arena) become None."""
    return None if value is None or value == "min" else size(option, value)


@dataclass(frozen=True)
class number:
    """A finite number of at least `least` (or above it, with `above`) and at most `most`; `kind` is int or float."""

    kind: type
    least: float
    most: float = inf
    what: str = "a whole number"
    above: bool = False

    def __call__(self, option: str, value: Any) -> Any:
        right = _is_whole(value) if self.kind is int else _is_number(value)
        # written so that nan is refused too
        if not right or not self.least <= value <= self.most or value == inf or (self.above and value == self.least):
            most = f" and at most {self.most:g}" if self.most < inf else ""
            raise refusal(
                option, value, f"give {self.what} {'above' if self.above else 'of at least'} {self.least:g}{most}"
            )
        return self.kind(value)


def factor(least: float, most: float = inf) -> number:
    """Make a check for a finite number from `least` to `most`."""
    return number(float, least, most, "a factor")


def whole(least: int, most: float = inf) -> number:
    """Make a check for a whole number from `least` to `most`."""
    return number(int, least, most)


Spans = tuple[tuple[float, float], ...]


def spans(option: str, value: Any) -> Spans:
    """Convert to pairs of finite numbers, the first below the second.

    Accepts a pair, several pairs, or a text such as "-1,1" or "0,1:-1,1:0,2".
    """
    if isinstance(value, str):
        return tuple(_span(option, part.split(",")) for part in value.split(":"))
    several = isinstance(value, Sequence) and len(value) > 0 and isinstance(value[0], Sequence)
    return tuple(_span(option, part) for part in (value if several else [value]))


def _span(option: str, value: Any) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in value)
    except (TypeError, ValueError):
        raise refusal(
            option, value, "give two numbers: LOW,HIGH, or two for each channel: LOW,HIGH:LOW,HIGH:..."
        ) from None
    if not -inf < low < high < inf:
        raise refusal(option, value, "give two numbers, the first below the second: LOW,HIGH")
    return low, high


percent = number(float, 0, 100, "a percentage", above=True)
seconds = number(float, 0, what="a number of seconds", above=True)


def text(option: str, value: Any) -> str:
    """Check for a non-empty text."""
    if not isinstance(value, str) or not value.strip():
        raise refusal(option, value, "give a text that is not empty")
    return value


def address(option: str, value: Any) -> str:
    """Check for a text HOST:PORT."""
    host, _, port = text(option, value).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise refusal(option, value, "give HOST:PORT, with a port of 1 to 65535")
    return value


def name_or_path(option: str, value: Any) -> str:
    """Convert a name or a path to a text."""
    return text(option, fspath(value) if isinstance(value, PathLike) else value)


def batches(option: str, value: Any) -> tuple[int, ...]:
    """Convert batches to ascending numbers: several, a text such as "1,4,16", or "1..16", which doubles up to the last."""
    if isinstance(value, str) and ".." in value:
        first, last = _batches(option, value, value.split(".."))
        if first > last:
            raise refusal(option, value, "give the smaller number first")
        sizes = {last}
        while first < last:
            sizes.add(first)
            first *= 2
        return tuple(sorted(sizes))
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(sorted(set(_batches(option, value, parts))))


def _batches(option: str, value: Any, parts: Any) -> tuple[int, ...]:
    wrong = refusal(option, value, "give batches such as 1,4,16, or 1..16 for 1, 2, 4, 8 and 16, of at most 65536")
    if not isinstance(parts, Sequence) or not parts or any(isinstance(part, (bool, float)) for part in parts):
        raise wrong
    try:
        sizes = tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        raise wrong from None
    if any(not 1 <= size <= 1 << 16 for size in sizes) or (
        isinstance(value, str) and ".." in value and len(sizes) != 2
    ):
        raise wrong
    return sizes


def names(option: str, value: Any) -> tuple[str, ...]:
    """Convert a single name or several to a tuple.

    The file's reader splits names at commas, since a tensor's name may contain a comma.
    """
    given = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence) or not all(isinstance(name, str) and name.strip() for name in given):
        raise refusal(option, value, "give a name, or several")
    return tuple(given)


def path(option: str, value: Any) -> Path:
    """Convert a text or a `Path` to a `Path`."""
    if not isinstance(value, (str, PathLike)) or not isinstance(fspath(value), str) or not fspath(value):
        raise refusal(option, value, "give a path")
    return Path(fspath(value))


def page_or_folder(option: str, value: Any) -> Path:
    """Convert a report's path: a folder or an .html file. Refuse other kinds of files."""
    to = path(option, value)
    if to.suffix.lower() in (".csv", ".json", ".md", ".pdf", ".png", ".svg", ".txt"):
        raise refusal(option, str(value), "give a name that ends in .html, or a folder")
    return to


def picture(option: str, value: Any) -> Path:
    """Convert the path of a picture. Raise `MissingToolError` without matplotlib, which draws pictures."""
    extras.need("matplotlib")
    return path(option, value)


# sections of linked images, and what the emitted C calls otherwise
_TAKEN = ("arena", "bss", "comment", "data", "flash", "heap", "rodata", "stack", "symtab", "strtab", "text", "vectors")


def memories(option: str, value: Any) -> tuple[Ram, ...]:
    """Convert memories, fastest first, to `Ram` records.

    Accepts `Ram`, NAME=SIZE, NAME=SIZE:CYCLES_PER_BYTE, or NAME alone for a memory of the board.
    """
    given = () if value is None else (value,) if isinstance(value, (str, Ram)) else value
    if not isinstance(given, Sequence):
        raise refusal(option, value, "give NAME=SIZE or NAME=SIZE:CYCLES_PER_BYTE, once for every memory")
    made = tuple(_memory(option, one) for one in given)
    twice = next((ram.name for k, ram in enumerate(made) if ram.name in {r.name for r in made[:k]}), None)
    if twice is not None:
        raise refusal(option, twice, "this memory is given twice; give each once, the fastest first")
    return made


def _memory(option: str, value: Any) -> Ram:
    name, size_, cost = (value.name, value.capacity, value.cycles_per_byte) if isinstance(value, Ram) else (None,) * 3
    if isinstance(value, str):
        name, _, rest = value.partition("=")
        size_, _, cost = rest.partition(":")
        cost = cost if ":" in rest else 1.0
        size_ = size_ if "=" in value else None
    named = isinstance(name, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) is not None
    if isinstance(value, str) and value.count("=") > 1:
        raise refusal(option, value, "give --memory once for every memory, the fastest first")
    if not isinstance(name, str) or not named or size_ == "":
        raise refusal(option, str(value), "give NAME=SIZE or NAME=SIZE:CYCLES_PER_BYTE, with a size above 0")
    if name.lower() in _TAKEN:
        raise refusal(option, str(value), f"a section of the image is called {name}; give the memory another name")
    try:
        cycles = float(cost)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        cycles = -1.0
    capacity = None if size_ is None else size(option, size_)
    free = cycles == 0 and isinstance(value, Ram)  # of a board whose file says that accesses wait for nothing
    if not (0 < cycles < inf or free) or capacity == 0:
        raise refusal(option, str(value), "give a size and cycles a byte that are above 0")
    return Ram(name, capacity, cycles, value.address if isinstance(value, Ram) else None)


def pairs(option: str, value: Any) -> Mapping[str, str]:
    """Names by names: a mapping, or texts IN=OUT."""
    given = {} if value is None else value
    if isinstance(given, (str, Sequence)):
        texts = (given,) if isinstance(given, str) else given
        split = [text.partition("=") if isinstance(text, str) else ("", "", "") for text in texts]
        given = {name: other for name, _, other in split}
        if len(given) < len(split) or not all(middle for _, middle, _ in split):
            wrong = next((text for text, (_, middle, _) in zip(texts, split, strict=True) if not middle), value)
            raise refusal(option, wrong, "give IN=OUT, once for every input")
    if not isinstance(given, Mapping) or not all(isinstance(n, str) and n for pair in given.items() for n in pair):
        raise refusal(option, value, 'give outputs by the names of inputs: {"state": "new_state"}')
    return dict(given)


def input_values(_option: str, value: Any) -> tuple[FixedInput, ...]:
    """Convert fixed inputs to records.

    Accepts a mapping from names to values, texts NAME=V, or `FixedInput` records.
    """
    given = () if value is None else value
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, Mapping):
        texts = [one for one in given if isinstance(one, str)]
        given = {one.name: one for one in given if isinstance(one, FixedInput)} | split(texts)
    return fixed_inputs(given)


def shapes(option: str, value: Any) -> Mapping[str, tuple[int, ...]]:
    """Check shapes by input name: every size a positive whole number."""
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
