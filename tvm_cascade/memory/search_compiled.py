"""`search` by the compiled library: the same tables handed to C, the same result read back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tvm_cascade.memory.search import Ints, Tables

FOUND, NONE, LIMIT = 1, 0, -1  # what the library answers
ARRAYS = (
    "size", "alignment", "lower", "upper", "meets", "sections", "span_first", "span_last", "twin",
    "pinned_start", "pinned", "free", "partner_start", "partners", "stacked", "lift",
)  # fmt: skip


class CTables(ctypes.Structure):
    """`Tables` as the C side reads them; holds on to the arrays that it points to."""

    _fields_ = [("n", c_int64), ("free_count", c_int64), ("slack", c_int64), *((name, c_void_p) for name in ARRAYS)]

    def __init__(self, t: Tables) -> None:
        pinned_start, pinned = _ragged(t.pinned, 2)
        partner_start, partners = _ragged(t.partners, 3)
        flags = {"meets": t.meets, "sections": t.sections}
        numbers = {
            "size": t.size, "alignment": t.alignment, "lower": t.lower, "upper": t.upper, "twin": t.twin, "free": t.free,
            "span_first": t.span[0], "span_last": t.span[1], "stacked": t.stacked, "lift": t.lift,
            "pinned_start": pinned_start, "pinned": pinned, "partner_start": partner_start, "partners": partners,
        }  # fmt: skip
        self.arrays = {k: np.ascontiguousarray(v, np.uint8) for k, v in flags.items()} | {
            k: np.ascontiguousarray(v, np.int64) for k, v in numbers.items() if v is not None
        }
        super().__init__(len(t.size), len(t.free), t.slack, **{k: v.ctypes.data for k, v in self.arrays.items()})


def _ragged(rows: Sequence[Sequence[tuple[int, ...]]], width: int) -> tuple[Ints, Ints]:
    """Where each row starts, and the entries of all rows, `width` numbers each."""
    start = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return start, np.array([entry for row in rows for entry in row], np.int64).reshape(-1, width)


def run(
    library: ctypes.CDLL, t: Tables, capacity: int, rank: Ints, nodes: int, seconds: float | None
) -> tuple[bool | None, Ints, int, int]:
    """Whether a layout exists (None: the limits came first), its offsets, `next_capacity` and the expanded nodes."""
    offsets, rank = np.zeros(len(t.size), np.int64), np.ascontiguousarray(rank, np.int64)
    exceeded, expanded = c_int64(), c_int64()
    answer = library.tvm_cascade_arena_search(
        ctypes.byref(CTables(t)), c_int64(capacity), c_void_p(rank.ctypes.data), c_int64(nodes),
        c_double(-1.0 if seconds is None else max(0.0, seconds)), None,
        c_void_p(offsets.ctypes.data), ctypes.byref(exceeded), ctypes.byref(expanded),
    )  # fmt: skip
    if answer not in (FOUND, NONE, LIMIT):
        raise MemoryError("the arena search has no memory left: give it fewer nodes")
    return {FOUND: True, NONE: False, LIMIT: None}[answer], offsets, exceeded.value, expanded.value
