"""Dead-code elimination in `intrinsics.C_PRELUDE`: keeps only the C helpers that kernels call; the rest needs no review."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tvm_cascade.schedules.rules.intrinsics import C_PRELUDE

_DEFINED = re.compile(r"(?:TC_INLINE \w+ |TC_ASM\d\(|typedef [^;]*?|#define )(tc_\w+|TC_\w+)[ (,;]")
_NAMES = re.compile(r"\b(?:tc|TC)_\w+")
_COMMENT = re.compile(r"/\*.*?\*/\n", re.DOTALL)


def needed(prelude: str, text: str) -> str:
    """Return `prelude` without helpers that `text` does not call, directly or indirectly, and without empty
    conditionals. An empty prelude stands for `intrinsics.C_PRELUDE` if `text` calls helpers all the same, as copies
    between generic kernels do.
    """
    if not prelude and not _NAMES.search(text):
        return ""
    pieces = list(_pieces(prelude or C_PRELUDE))
    uses: dict[str, set[str]] = {}
    for code, _ in pieces:
        if defined := _DEFINED.match(code):
            uses.setdefault(defined[1], set()).update(_NAMES.findall(code))
    wanted: set[str] = set()
    new = set(_NAMES.findall(text))
    while new:
        wanted |= new
        new = {name for known in new for name in uses.get(known, ())} - wanted
    kept: list[tuple[str, str]] = []
    for code, piece in pieces:
        if code.startswith(("#el", "#endif")) and kept[-1][0].startswith("#el"):
            kept.pop()  # an empty branch
        if code.startswith("#endif") and kept[-1][0].startswith("#if"):
            kept.pop()
        elif not (defined := _DEFINED.match(code)) or defined[1] in wanted:
            kept.append((code, piece))
    return "".join(piece for _, piece in kept)


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield the directives and definitions in `text` as pairs: without and with the preceding comments."""
    piece = ""
    for line in text.strip("\n").splitlines():
        piece += f"{line}\n"
        code = _COMMENT.sub("", piece)
        if code and not code.startswith("/*") and code.count("{") == code.count("}") and not code.endswith("\\\n"):
            yield code, piece
            piece = ""
