"""Colours for text on a terminal: heads of tables, labels, bars, options, verdicts and errors, by click's styles.

The text itself is the same as in a file, letter by letter, so pages and bug reports show the same text as a terminal.
There is no colour without a terminal, with `NO_COLOR` (https://no-color.org) or on a dumb terminal.

A library that also lays out tables (rich) is not used: tables would differ between a terminal and a file; the live
display hides the cursor, and a command ended by SIGTERM would leave the cursor hidden; the import takes 100 ms, and the
packages 13 MB.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, TextIO

import click

_STYLES: tuple[tuple[str, Mapping[str, Any]], ...] = (  # the first that fits at a place wins
    (r"^tvm-cascade: .*", {"fg": "red"}),
    (r"^ok(?= |:)|^fits\b|(?<=  )equal\b.*|\bthis plan$", {"fg": "green"}),
    (r"^absent(?= )|^limited(?= )", {"fg": "yellow"}),
    (r"^does not fit\b|^fits no\b|^FAILED\b|^MISSING(?= )|(?<=  )DIFFERENT\b.*", {"fg": "red", "bold": True}),
    (r"^[a-z][\w. ]{0,14}?(?= {2,}\S)|^bounds at \S+|^[a-zA-Z ]+:$", {"bold": True}),  # labels; what a list is of
    (r"(?<![\w-])--[a-z][a-z-]*", {"fg": "cyan"}),
    (r"█+", {"fg": "blue"}),
    (r"▒+", {"fg": "cyan"}),
    (r"·+", {"dim": True}),
)
_ANY = re.compile("|".join(f"(?P<s{k}>{pattern})" for k, (pattern, _) in enumerate(_STYLES)))
_ROW = re.compile(r" *\d")


def coloured(text: str, stream: TextIO) -> str:
    """Return `text` with control sequences for colours if `stream` is a terminal that shows colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    lines = text.split("\n")
    around = zip(["", *lines], lines, [*lines[1:], ""], strict=False)
    return "\n".join(
        _head(line) if _is_head(before, line, after) else _ANY.sub(_styled, line) for before, line, after in around
    )


def _is_head(before: str, line: str, after: str) -> bool:
    """Test whether a line is the head of a table: after an empty line, without figures, before a row with some."""
    return not before and bool(line) and not _ROW.match(line) and _ROW.match(after) is not None


def _head(line: str) -> str:
    return click.style(line, bold=True, underline=True)


def _styled(match: re.Match[str]) -> str:
    _, style = _STYLES[int(str(match.lastgroup)[1:])]
    return click.style(match[0], **style)
