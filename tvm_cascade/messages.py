"""Make texts from exceptions and files printable and short enough for a single line in a message."""

from __future__ import annotations

import re

_LONGEST = 48  # characters of a name in a line of text
_FIRST = 15  # of these, the ones in front of what is left out
_NAME = re.compile(r"(.*?)(, part \d+ of \d+|, view(?:_\d+)?| \((?:.+ )?transposed\))?", re.DOTALL)
_BETWEEN = re.compile(r",(?! (?:part \d+ of \d+|view(?:_\d+)?)(?:,|$))")


def last_line(error: Exception) -> str:
    """Return the last line of an exception's text, at most 300 characters; TVM's exceptions begin with a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[-1] if lines else type(error).__name__)[:300]


def short_name(name: str) -> str:
    """Shorten a tensor's or operator's name for display; `--until` and `--from` accept the short form too.

    TFLite joins names by ';' for fused operators: return the first. Leave out the middle of a long name.
    """
    whole = operator_of(name)
    first, part = re.split(r";(?=\S)", whole)[0] or whole, name[len(whole) :]
    if len(first) > _LONGEST:
        first = f"{first[:_FIRST]}…{first[_FIRST + 1 - _LONGEST :]}"
    return first + part


def operator_of(layer: str) -> str:
    """Return the operator's name in a layer's name: NAME for `NAME, part 1 of 2`, `NAME, view`, `NAME (transposed)`
    and `NAME (INPUT transposed)`.
    """
    found = _NAME.fullmatch(layer)
    assert found is not None
    return found[1]


def split_names(text: str) -> list[str]:
    """Split a list of layers' names at commas, except for the comma inside of `NAME, part 1 of 2`."""
    return [name.strip() for name in _BETWEEN.split(text)]


def printable(text: str | bytes) -> str:
    """Replace unprintable characters in `text`, such as control sequences from a file's names, by `?`."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return "".join(c if c.isprintable() else "?" for c in text)


def printable_lines(text: str) -> str:
    """Apply `printable` line by line."""
    return "\n".join(printable(line) for line in text.split("\n"))
