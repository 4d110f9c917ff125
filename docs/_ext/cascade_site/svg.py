"""Pieces of SVG drawings."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def drawing(width: float, height: float, parts: Iterable[str]) -> str:
    """A drawing of that size in pixels; narrower screens shrink it."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"/>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def legend(x: float, y: float, entries: Iterable[tuple[str, str]]) -> list[str]:
    """Squares with their meanings, in one row: pairs of class and words."""
    parts = []
    for kind, words in entries:
        parts += [rect(x, y - 10, 12, 12, kind), text(x + 18, y, words, "small")]
        x += 30 + 6.6 * len(words)
    return parts
