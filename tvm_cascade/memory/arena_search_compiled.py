"""The exact arena search in the compiled library: passes the tables of `search` to C and reads the result."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int, c_int64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tvm_cascade.memory.arena_search import Ints, Tables

FOUND, NONE, LIMIT = 1, 0, -1  # return values of the library: layout found, none exists, limit reached
ARRAYS = (
    "size", "alignment", "lower", "upper", "meets", "span_first", "span_last", "twin",
    "pinned_start", "pinned", "free", "partner_start", "partners", "stacked", "lift",
)  # fmt: skip


class CTables(ctypes.Structure):
    """`Tables` as a C structure; keeps references to the arrays pointed to."""

    _fields_ = [("n", c_int64), ("free_count", c_int64), ("slack", c_int64), *((name, c_void_p) for name in ARRAYS)]

    def __init__(self, t: Tables) -> None:
        pinned_start, pinned = _ragged(t.pinned, 2)
        partner_start, partners = _ragged(t.partners, 3)
        numbers = {
            "size": t.size, "alignment": t.alignment, "lower": t.lower, "upper": t.upper, "twin": t.twin, "free": t.free,
            "span_first": t.span[0], "span_last": t.span[1], "stacked": t.stacked, "lift": t.lift,
            "pinned_start": pinned_start, "pinned": pinned, "partner_start": partner_start, "partners": partners,
        }  # fmt: skip
        flags = {"meets": np.ascontiguousarray(t.meets, np.uint8)}
        self.arrays = flags | {k: np.ascontiguousarray(v, np.int64) for k, v in numbers.items() if v is not None}
        super().__init__(len(t.size), len(t.free), t.slack, **{k: v.ctypes.data for k, v in self.arrays.items()})


def _ragged(rows: Sequence[Sequence[tuple[int, ...]]], width: int) -> tuple[Ints, Ints]:
    """Flatten rows with different lengths: the index of each row's first entry, and all entries, `width` numbers each."""
    start = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return start, np.array([entry for row in rows for entry in row], np.int64).reshape(-1, width)


def run(
    library: ctypes.CDLL, t: Tables, capacity: int, rank: Ints, nodes: int, expired: Callable[[], bool]
) -> tuple[tuple[int, ...] | None, bool, int, int]:
    """Run the compiled search and return the fields of a `SearchResult`.

    An exception in `expired`, or Ctrl-C, ends the search and is raised again here.
    """
    raised: list[BaseException] = []

    def stop() -> int:
        try:
            return expired()
        except BaseException as error:
            raised.append(error)
            return True

    offsets, rank = t.fixed.copy(), np.ascontiguousarray(rank, np.int64)
    exceeded, expanded = c_int64(), c_int64()
    answer = library.tvm_cascade_search_arena(
        ctypes.byref(CTables(t)), c_int64(capacity), c_void_p(rank.ctypes.data), c_int64(nodes), ctypes.CFUNCTYPE(c_int)(stop),
        c_void_p(offsets.ctypes.data), ctypes.byref(exceeded), ctypes.byref(expanded),
    )  # fmt: skip
    if raised:
        raise raised[0]
    if answer not in (FOUND, NONE, LIMIT):
        raise MemoryError("the arena search ran out of memory: give it fewer nodes")
    return tuple(offsets.tolist()) if answer == FOUND else None, answer != LIMIT, exceeded.value, expanded.value
