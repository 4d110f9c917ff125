"""Names from a model, made safe: what a model says never reaches a C identifier, a file name or a page unescaped."""

from __future__ import annotations

import re
from collections.abc import Iterable

C_KEYWORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while _Bool _Complex
    _Imaginary alignas alignof bool class delete explicit export false friend mutable namespace new operator private
    protected public template this throw true try typeid typename using virtual main arena flash""".split()  # noqa: SIM905 - a list would be five times as long
)


def c_identifier(text: str, fallback: str = "network") -> str:
    """`text` as a C identifier in lower case: at most 40 characters of [a-z0-9_], no keyword, no leading digit."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").lower()[:40].rstrip("_")
    if not name:
        name = fallback
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if name in C_KEYWORDS else name


def unique_identifiers(texts: Iterable[str], fallback: str) -> tuple[str, ...]:
    """C identifiers for several names, told apart by number where they would clash."""
    taken: set[str] = set()
    result: list[str] = []
    for text in texts:
        stem = c_identifier(text, fallback)
        name, k = stem, 1
        while name in taken:
            k += 1
            name = f"{stem}_{k}"
        taken.add(name)
        result.append(name)
    return tuple(result)


def c_comment(text: str) -> str:
    """`text` for the inside of a C comment: printable ASCII, and nothing that ends the comment."""
    return re.sub(r"[^ -~]", "?", text).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
