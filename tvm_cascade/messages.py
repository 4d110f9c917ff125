"""What other programs' exceptions say, made fit for one line of an error message."""

from __future__ import annotations


def last_line(error: Exception) -> str:
    """What an exception of TVM says, without its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[-1] if lines else type(error).__name__)[:300]


def printable(text: str | bytes) -> str:
    """`text`, which may quote a file's names, without what a terminal would act upon."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return "".join(c if c.isprintable() else "?" for c in text)


def printable_lines(text: str) -> str:
    """`printable`, line by line."""
    return "\n".join(printable(line) for line in text.split("\n"))
