"""Scratch of steps of some pixels that find the kernel rows of their windows by row tables.

In a ring of P pixels, pixel p of the row-major tensor is in slot p mod P. The part of a kernel row that a step reads is one run
of pixels; it wraps around the ring's end where fewer slots follow its first than it has pixels. At most one run of a step
does, as the ring is larger than the window, and that one is copied behind the table. So a table takes 4 bytes for each
kernel row, and room for the longest run that wraps: none in a tensor that is whole, nor in a ring of whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.geometry import goes_by_pixels
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.plan import Granularity, Storage
from tvm_cascade.graph import Graph, Op, Window


def operator_scratch(tables: AccessTables, op: int, interleaving: Interleaving, held: Mapping[int, int]) -> int:
    """Bytes of an operator's scratch, where so many units of its tensors' roots are `held`; others are whole.

    That of channel tiling in stripes is not counted: `Stripes.scratch`.
    """
    node, tile = tables.graph.ops[op], interleaving.tile
    if interleaving.striped and node.kernels.channel_tiling is not None:
        return 0
    if not tile.by_pixels or not node.kernels.row_tables or not goes_by_pixels(tables.graph, op):
        return node.scratch_bytes
    slots: list[int] = []
    for root in (tables.roots[t].tensor for t in node.inputs):
        units = held.get(root, 0)
        ring = units < tables.units(root, tile) and units % tables.columns(root, tile)
        slots.append(units if ring else 0)
    return scratch_bytes(tables.graph, node, tile.columns, slots)


def table_bytes(graph: Graph, op: Op, pixels: int, slots: Sequence[int]) -> tuple[int, ...]:
    """Bytes of the row table of every input, and of the run behind it; 0 for an input that has no table.

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
    """Bytes of an operator's row tables (`table_bytes`), and behind them of its kernel's own scratch."""
    tables = sum(table_bytes(graph, op, pixels, slots))
    return -(-tables // 8) * 8 + op.scratch_bytes if op.scratch_bytes else tables


def ring_slots(storage: Storage) -> int:
    """Pixels of the ring that a tensor lies in, as `table_bytes` takes them."""
    return storage.pixels if storage.granularity is Granularity.PIXEL else 0


def longest_run(graph: Graph, op: Op, k: int, pixels: int, slots: int) -> int:
    """Pixels of the longest run of input k that wraps in a ring of `slots` pixels; 0 where none does."""
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
    read = np.unique([r for y in range(made[0]) for r in rows.rows(y, height)])
    first = np.arange(0, made[1], pixels)
    last = np.minimum(first + pixels, made[1]) - 1
    begin = np.maximum(first * columns.stride - columns.padding, 0)
    run = np.minimum(last * columns.stride - columns.padding + columns.span, width) - begin
    wraps = (read[:, None] * width + begin) % slots + run > slots
    return int(np.where(wraps, run, 0).max(initial=0))
