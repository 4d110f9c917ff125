"""Of the C text that stands before kernels, `intrinsics.C_PRELUDE`, what they call: nobody has to certify the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_DEFINED = re.compile(r"(?:TC_INLINE \w+ |TC_ASM\d\(|typedef [^;]*?|#define )(tc_\w+|TC_\w+)[ (,;]")
_NAMES = re.compile(r"\b(?:tc|TC)_\w+")


@dataclass
class _Item:
    """A definition or directive with the comment before it; of a conditional, its branches with their directives."""

    text: str
    comment: str = ""
    branches: list[tuple[str, list[_Item]]] = field(default_factory=list)

    @property
    def defines(self) -> str | None:
        found = _DEFINED.match(self.text)
        return found[1] if found else None


def needed(prelude: str, text: str) -> str:
    """`prelude` without the helpers that `text`, and what it calls, has no use for; nor conditionals around nothing."""
    items = _read(iter(_pieces(prelude)))
    wanted, uses = set(_NAMES.findall(text)), dict[str, set[str]]()
    for item in _all(items):
        if item.defines:
            uses.setdefault(item.defines, set()).update(_NAMES.findall(item.text))
    new = wanted
    while new:
        new = {name for known in new for name in uses.get(known, ())} - wanted
        wanted |= new
    return "".join(_written(items, wanted))


def _pieces(text: str) -> Iterator[str]:
    """Whole comments, directives and definitions, each with its line ends."""
    piece = ""
    for line in text.strip("\n").splitlines(keepends=True):
        piece += line
        open_comment = piece.startswith("/*") and "*/" not in piece
        if piece.count("{") == piece.count("}") and not line.endswith("\\\n") and not open_comment:
            yield piece if piece.endswith("\n") else f"{piece}\n"
            piece = ""


def _read(pieces: Iterator[str], branches: list[tuple[str, list[_Item]]] | None = None) -> list[_Item]:
    """Items up to the end, or, of a conditional whose `branches` are given, to its #endif."""
    items: list[_Item] = []
    into, comment = items, ""
    for piece in pieces:
        if piece.startswith("/*"):
            comment += piece
            continue
        if branches is not None and piece.startswith(("#else", "#elif")):
            into = []
            branches.append((piece, into))
        elif branches is not None and piece.startswith("#endif"):
            return items
        else:
            item = _Item(piece, comment)
            if piece.startswith("#if"):
                item.branches.append((piece, _read(pieces, item.branches)))
                item.branches.insert(0, item.branches.pop())
            into.append(item)
        comment = ""
    return items


def _all(items: list[_Item]) -> Iterator[_Item]:
    for item in items:
        yield item
        for _, inner in item.branches:
            yield from _all(inner)


def _written(items: list[_Item], wanted: set[str]) -> Iterator[str]:
    for item in items:
        if not item.branches:
            if item.defines is None or item.defines in wanted:
                yield item.comment + item.text
            continue
        inner = [(head, "".join(_written(own, wanted))) for head, own in item.branches]
        if any(text for _, text in inner):
            yield item.comment
            for k, (head, text) in enumerate(inner):
                yield head + text if text or k == 0 else ""
            yield "#endif\n"
