"""Scratch for pixel steps that find the kernel rows of a window by row tables.

In a ring of P pixels, pixel p of the row-major tensor is in slot p mod P. A step reads one run of pixels from a kernel
row; the run wraps around the ring's end if too few slots follow the first pixel. At most one run of a step does, as the
ring is larger than the window, and that run is copied behind the table. So a table takes 4 bytes for each kernel row,
and room for the longest run that wraps: none in a whole tensor, nor in a ring of whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.geometry import goes_by_pixels
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.plan import Granularity, Storage
from tvm_cascade.graph import Graph, Op, Window


class OperatorScratch:
    """Bytes of every operator's scratch; scratch that depends on the inputs' rings is computed once for each size.

    Channel tiling's scratch in stripes is not counted: `Stripes.scratch`.
    """

    def __init__(self, tables: AccessTables) -> None:
        self.tables = tables

    def largest(self, ops: Sequence[int], interleaving: Interleaving, held: Mapping[int, int]) -> int:
        """Return the largest scratch among operators; `held` units per root are stored, other roots are whole."""
        whole = self._whole(interleaving)
        most = max((whole[o] for o in ops), default=0)
        for o in ops if interleaving.tile.by_pixels else ():
            if (roots := self._roots[o]) is not None:
                most = max(most, self._of(o, interleaving, tuple(held.get(t, 0) for t in roots)))
        return most

    @cached_property
    def _roots(self) -> list[tuple[int, ...] | None]:
        """Return, by operator, the roots of the inputs if pixel steps read an input through a row table; else None."""
        graph, roots = self.tables.graph, self.tables.roots
        return [
            tuple(roots[t].tensor for t in op.inputs)
            if op.kernels.row_tables and goes_by_pixels(graph, op.index)
            else None
            for op in graph.ops
        ]

    @cached_method
    def _whole(self, interleaving: Interleaving) -> list[int]:
        """Return the bytes of each operator's scratch with whole inputs; rings as inputs need more."""
        return [self._of(op.index, interleaving, (0,) * len(op.inputs)) for op in self.tables.graph.ops]

    @cached_method
    def _of(self, op: int, interleaving: Interleaving, units: tuple[int, ...]) -> int:
        """Return an operator's scratch bytes with `units` held of each input's root; 0: whole."""
        node, tile, roots = self.tables.graph.ops[op], interleaving.tile, self._roots[op]
        if interleaving.striped and node.kernels.channel_tiling is not None:
            return 0
        if roots is None or not tile.by_pixels:
            return node.scratch_bytes
        rings = zip(roots, units, strict=True)
        slots = [n if n < self.tables.units(t, tile) and n % self.tables.columns(t, tile) else 0 for t, n in rings]
        return scratch_bytes(self.tables.graph, node, tile.columns, slots)


def table_bytes(graph: Graph, op: Op, pixels: int, slots: Sequence[int]) -> tuple[int, ...]:
    """Compute the bytes of every input's row table and the run behind; 0 for an input without a table.

    Parameters
    ----------
    pixels : int
        Of a tile; the last of a row may have fewer.
    slots : int
        By input: pixels of the ring that it lies in; 0 where it is whole, or a ring of whole rows.
    """
    found: list[int] = []
    for k, table in enumerate(op.kernels.row_tables):
        if table is None:
            found.append(0)
            continue
        run = longest_run(graph, op, k, pixels, slots[k])
        found.append(table.bytes_with_run(run) if run else 4 * table.taps)
    return tuple(found)


def scratch_bytes(graph: Graph, op: Op, pixels: int, slots: Sequence[int]) -> int:
    """Compute the bytes of an operator's row tables (`table_bytes`), followed by the kernel's own scratch."""
    tables = sum(table_bytes(graph, op, pixels, slots))
    return -(-tables // 8) * 8 + op.scratch_bytes if op.scratch_bytes else tables


def ring_slots(storage: Storage) -> int:
    """Return the pixels of a tensor's ring, as `table_bytes` takes them."""
    return storage.pixels if storage.granularity is Granularity.PIXEL else 0


def longest_run(graph: Graph, op: Op, k: int, pixels: int, slots: int) -> int:
    """Compute the pixels in input k's longest run that wraps in a ring with `slots` pixels; 0 for none."""
    rows, columns, into, out = op.windows[k], op.columns[k], graph.tensors[op.inputs[k]], graph.tensors[op.outputs[0]]
    if not slots or rows is None or columns is None:
        return 0
    return _longest(rows, columns, (into.rows, into.columns), (out.rows, out.columns), min(pixels, out.columns), slots)


@lru_cache(maxsize=4096)
def _longest(
    rows: Window, columns: Window, size: tuple[int, int], made: tuple[int, int], pixels: int, slots: int
) -> int:
    height, width = size
    if slots >= height * width or slots % width == 0:
        return 0
    read = np.array(sorted({r for y in range(made[0]) for r in rows.rows(y, height)}), np.int64)
    first = np.arange(0, made[1], pixels)
    last = np.minimum(first + pixels, made[1]) - 1
    begin = np.maximum(first * columns.stride - columns.padding, 0)
    run = np.minimum(last * columns.stride - columns.padding + columns.span, width) - begin
    wraps = (read[:, None] * width + begin) % slots + run > slots
    return int(np.where(wraps, run, 0).max(initial=0))
