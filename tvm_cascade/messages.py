"""Make texts from exceptions and files printable and short enough for a single line in a message."""

from __future__ import annotations

import re

_LONGEST = 48  # characters of a name in a line of text
_FIRST = 15  # of these, the ones in front of what is left out
_PART = re.compile(r"(.*?)(, part \d+ of \d+)?", re.DOTALL)


def last_line(error: Exception) -> str:
    """Return the last line of an exception's text, at most 300 characters; TVM's exceptions begin with a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[-1] if lines else type(error).__name__)[:300]


def short_name(name: str) -> str:
    """Shorten a tensor's or operator's name for display; `--until` and `--from` accept the short form too.

    TFLite joins names by ';' for fused operators: return the first. Leave out the middle of a long name.
    """
    found = _PART.fullmatch(name)
    assert found is not None
    first, part = re.split(r";(?=\S)", found[1])[0] or found[1], found[2] or ""
    if len(first) > _LONGEST:
        first = f"{first[:_FIRST]}…{first[_FIRST + 1 - _LONGEST :]}"
    return first + part


def printable(text: str | bytes) -> str:
    """Replace unprintable characters in `text`, such as control sequences from a file's names, by `?`."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return "".join(c if c.isprintable() else "?" for c in text)


def printable_lines(text: str) -> str:
    """Apply `printable` line by line."""
    return "\n".join(printable(line) for line in text.split("\n"))
