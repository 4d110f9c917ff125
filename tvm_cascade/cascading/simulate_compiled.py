"""The simulation of segments in the compiled library: lays out a graph's access tables for C and reads the results."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Sequence
from ctypes import c_int64, c_void_p
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tvm_cascade import native
from tvm_cascade.cascading.geometry import Units
from tvm_cascade.graph import Tile

if TYPE_CHECKING:
    from tvm_cascade.cascading.access_tables import AccessTables

_Pointers = NDArray[np.uintp]


class StepTables:
    """A graph's access tables for a single tile, as `step_tables` in `native/simulate.c`.

    Sources and operators are numbered in ascending order. An operator's tables are added when it first runs.
    """

    def __init__(self, tables: AccessTables, tile: Tile) -> None:
        self._tables, self._tile = tables, tile
        graph = tables.graph
        sources = sorted(tables.source(t) for t in tables.streamed)
        self._numbers = {o: k for k, o in enumerate((*sources, *range(len(graph.ops))))}
        working = [o for o in self._numbers if o < 0 or not graph.ops[o].view]
        self._makers = {o: sorted(tables.makers[o], reverse=True) if o >= 0 else [] for o in working}
        reads: list[list[tuple[int, int]]] = [[] for _ in graph.tensors]  # by root: operators and their inputs
        for op in graph.ops:
            if not op.view:
                for i, t in enumerate(op.inputs):
                    reads[tables.roots[t].tensor].append((op.index, i))
        self._feed_start = _starts(len(self._makers.get(o, ())) for o in self._numbers)
        self._write_start = _starts(len(tables.written(o)) if o in self._makers else 0 for o in self._numbers)
        self._read_start = _starts(map(len, reads))
        self._read_at = {key: k for k, key in enumerate(key for own in reads for key in own)}
        self._maker = _numbers(self._numbers[m] for o in self._numbers for m in self._makers.get(o, ()))
        self._root = _numbers(t for o in self._numbers if o in self._makers for t in tables.written(o))
        self._reader = _numbers(self._numbers[o] for own in reads for o, _ in own)
        self._count = np.zeros((2, len(self._numbers)), np.int64)
        self._waits = np.zeros((4, len(self._maker)), np.uintp)
        self._made = np.zeros((2, len(self._root)), np.uintp)
        self._keep = np.zeros((2, len(self._reader)), np.uintp)
        self._filled: tuple[set[int], set[int]] = set(), set()
        self._kept: list[Units] = []  # the arrays that are pointed to
        arrays = (
            *self._count, self._feed_start, self._maker, *self._waits, self._write_start, self._root, *self._made,
            self._read_start, self._reader, *self._keep,
        )  # fmt: skip
        self._record = np.array([len(self._numbers), *map(_address, arrays)], np.uintp)

    def most_held(self, members: Sequence[int], summing: Collection[int]) -> list[int]:
        """Compute the most units live at once for every output and member, at least 1."""
        most = (c_int64 * sum(len(self._tables.written(o)) for o in members))()
        self._simulate(members, summing, most, None)
        return list(most)

    def trace(self, members: Sequence[int], summing: Collection[int]) -> NDArray[np.int64]:
        """Return the place in `members` of the member that runs, step by step."""
        total = sum(self._tables.steps(o, self._tile, o in summing).count for o in members)
        trace = np.empty(total, np.int64)
        self._simulate(members, summing, None, c_void_p(trace.ctypes.data))
        return trace

    def _simulate(
        self,
        members: Sequence[int],
        summing: Collection[int],
        most: ctypes.Array[c_int64] | None,
        trace: c_void_p | None,
    ) -> None:
        self._fill(members, summing)
        numbers = (c_int64 * len(members))(*map(self._numbers.__getitem__, members))
        sums = bytes(o in summing for o in members)
        record = c_void_p(_address(self._record))
        if native.library().tvm_cascade_run_segment(record, c_int64(len(members)), numbers, sums, most, trace) < 0:
            raise MemoryError("simulating a segment ran out of memory")

    def _fill(self, members: Iterable[int], summing: Collection[int]) -> None:
        """Add the tables of members that lack them."""
        for o in set(members).difference(self._filled[0], summing):
            self._add(o, False)
        for o in summing:
            if o not in self._filled[1]:
                self._add(o, True)

    def _add(self, o: int, sums: bool) -> None:
        tables, tile, number = self._tables, self._tile, self._numbers[o]
        self._filled[sums].add(o)
        steps = tables.steps(o, tile, sums)
        self._count[int(sums), number] = steps.count
        for w, made in enumerate(steps.made, self._write_start[number]):
            self._made[int(sums), w] = self._pointer(made)
        for i, read in enumerate(steps.reads):  # an operator that sums has one input
            self._keep[int(sums), self._read_at[o, i]] = self._pointer(read.keep)
        for f, maker in enumerate(self._makers[o], self._feed_start[number]):
            for maker_sums in (False, True) if maker in tables.summing else (False,):
                waits = tables.waits(o, maker, tile, sums, maker_sums)
                self._waits[2 * sums + maker_sums, f] = self._pointer(waits)

    def _pointer(self, units: Units) -> int:
        kept = np.ascontiguousarray(units, np.int64)
        self._kept.append(kept)
        return _address(kept)


def _address(array: NDArray[np.int64] | _Pointers) -> int:
    return array.__array_interface__["data"][0]


def _starts(lengths: Iterable[int]) -> NDArray[np.int64]:
    return _numbers(accumulate(lengths, initial=0))


def _numbers(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, np.int64)
