"""A region's tables for the compiled searches for orders."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import c_int64, c_void_p

import numpy as np

from tvm_cascade.errors import UsageError
from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region

OUT_OF_MEMORY = -2  # the library's answer
_ARRAYS = (
    "demand", "outliving", "joined", "beside", "size", "begun", "reader_start", "reader", "writer_start", "writer",
    "before_start", "before", "after_start", "after", "dying_start", "dying", "over_start", "over",
)  # fmt: skip


class Tables(ctypes.Structure):
    """A region as a C structure (`native/order_tables.h`), with its arrays; operators and storages are numbered from 0."""

    _fields_ = [("n", c_int64), ("live", c_int64), *((name, c_void_p) for name in _ARRAYS)]

    def __init__(self, m: Model, region: Region, factor: int = 1) -> None:
        """Lay out a region; raise `UsageError` if sums of all bytes, times the operators or `factor`, exceed 64 bits."""
        total = sum(m.demand) + m.live(0)
        if total * max(factor, 1 << 14, len(m.demand) << 10) >= 1 << 62:
            raise UsageError(f"tensors of {total} bytes in all are more than an order can be searched for")
        inside = region.after & ~region.before
        self.ops = members(inside)
        self.number = {op: k for k, op in enumerate(self.ops)}
        kept: dict[int, int] = {}  # storages, in order of appearance

        def dies(s: int) -> bool:
            return not m.storages[s].live_to_end and not m.storages[s].readers & ~region.after

        def known(storages: Iterable[int]) -> list[int]:
            return [kept.setdefault(s, len(kept)) for s in storages]

        dying = [known(filter(dies, m.reads[op])) for op in self.ops]
        over = [[(*known([s]), saved) for s, saved in m.overwrites[op] if dies(s)] for op in self.ops]
        joined = [known([m.part[op][0]])[0] if m.part[op][0] >= 0 else -1 for op in self.ops]
        storages = [m.storages[s] for s in kept]
        before = [[self.number[p] for p in members(m.predecessors[op] & inside)] for op in self.ops]
        after = [[self.number[s] for s in m.successors[op] if s in self.number] for op in self.ops]
        readers, writers = ([[self.number[op] for op in members(mask & inside)] for mask in masks]
                            for masks in ([s.readers for s in storages], [s.writers for s in storages]))  # fmt: skip
        ragged = {"reader": readers, "writer": writers, "before": before, "after": after, "dying": dying, "over": over}
        arrays: dict[str, object] = {
            "demand": [m.demand[op] for op in self.ops],
            "outliving": [m.outliving_bytes[op] for op in self.ops],
            "joined": joined,
            "beside": [m.part[op][1] for op in self.ops],
            "size": [s.size for s in storages],
            "begun": [bool(s.writers & region.before) for s in storages],
        }
        for name, rows in ragged.items():
            arrays[f"{name}_start"] = np.cumsum([0, *map(len, rows)])
            arrays[name] = [entry for row in rows for entry in row]
        self.arrays = {name: np.ascontiguousarray(values, np.int64) for name, values in arrays.items()}
        super().__init__(len(self.ops), region.live, **{name: a.ctypes.data for name, a in self.arrays.items()})
