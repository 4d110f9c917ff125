"""Texts of other programs' exceptions and of files, made printable and short enough for one line of a message."""

from __future__ import annotations


def last_line(error: Exception) -> str:
    """The last line of an exception's text, at most 300 characters; TVM's exceptions have a traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[-1] if lines else type(error).__name__)[:300]


def printable(text: str | bytes) -> str:
    """`text`, which may quote names of a file, with unprintable characters (as control sequences have) replaced by `?`."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return "".join(c if c.isprintable() else "?" for c in text)


def printable_lines(text: str) -> str:
    """`printable`, line by line."""
    return "\n".join(printable(line) for line in text.split("\n"))
