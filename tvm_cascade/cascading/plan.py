"""What the planner decides, as data, and what the emitter obeys.

A plan is a list of segments. The operators of a segment run interleaved, row by row, in the exact order of the
segment's `trace`; a segment of one operator is that operator run row by row. Between segments only whole tensors are
live. Blocks of one segment may share bytes where its output follows its dying input (`OffsetConstraint` of `memory.problem`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tvm_cascade.graph import ROW, Graph, Tile
from tvm_cascade.memory.problem import Allocation


class Granularity(Enum):
    """What a rolling buffer counts: whole rows, or pixels of the row-major stream."""

    ROW = "row"
    PIXEL = "pixel"


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a tensor lives in the arena.

    Either all of its rows, or a ring of `height` rows with row r in slot `r % height`, or a ring of `pixels` pixels.
    """

    tensor: int
    height: int  # rows held; == the tensor's rows where it is whole; of a pixel ring the rows it spans, rounded up
    size: int  # bytes
    lower: int  # first segment in which it is live
    upper: int  # first segment in which it is not
    granularity: Granularity = Granularity.ROW
    pixels: int = 0  # slots of a pixel ring: pixel p of the row-major tensor at slot p % pixels
    root: int | None = None  # tensor whose storage this one is a view of (`byte_offset` into it)
    byte_offset: int = 0
    pitch: int = 0  # of a part of a join: bytes from pixel to pixel of the root; 0: pixels lie one behind the other
    columns: int = 0  # of a ring row in stripes: column x at x - x0, x0 the first that the stripe has; 0: all columns
    halo_columns: int = 0  # in stripes: the last columns of every row that the next stripe takes over from this one

    def is_ring(self, rows: int) -> bool:
        """Whether only a part of a tensor of `rows` rows is held at a time."""
        return self.granularity is Granularity.PIXEL or self.height < rows or self.columns > 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators that run together, step by step.

    `trace` names the operator of every step. The k-th occurrence of an operator makes the k-th `tile` of its output, in
    row-major order. With n = `tile.rows` whole rows these are the rows [k * n, (k + 1) * n) that there are. With
    `tile.columns` pixels, and n = ceil(columns / tile.columns), they are the pixels from column (k % n) * tile.columns of row
    k // n, never beyond the end of the row. Operators whose columns are unknown make whole rows all the same. Operators
    without rows (`opaque` ones, or outputs of one row) occur once. Views do not occur.

    Accumulating: an operator in `accumulating` occurs once for every such tile of its *input*, adds it to its accumulator, and
    writes its output in its last step.

    Streamed: `-1 - t` is the source of graph input t. It asks the caller for the next row and puts it into the ring.

    In place: an operator in `in_place` runs alone, once, and writes its output over its input, which dies.

    Stripes: the trace, whose tiles are then single rows, runs once for every stripe. Step k of `ops[n]` in stripe s makes
    columns `stripes[s][n]` of row k. An accumulating operator adds those columns of input row k; it clears its accumulator in
    the first step of the first stripe and writes its output in the last step of the last. Streamed inputs come anew for
    every stripe, and rings hold nothing from one stripe to the next.

    Halo: a tensor with h = `Storage.halo_columns` > 0, whose maker makes columns [x0, x1) in this stripe and began at column
    x' in the first stripe, is available from column max(x0 - h, x') on. Before each step these earlier columns are copied from
    the block "kept t" to the start of the ring row; after the step the last h columns (or as many as there are) are copied
    from the ring to that block.
    """

    ops: tuple[int, ...]  # in topological order, views included
    trace: tuple[int, ...]
    state_bytes: int = 0  # step counters of the driver, in the arena while the segment runs
    scratch_bytes: int = 0  # the largest of its operators' scratch
    tile: Tile = ROW  # what a step makes; in stripes single rows
    accumulating: tuple[int, ...] = ()
    in_place: tuple[int, ...] = ()
    streamed: tuple[int, ...] = ()  # graph inputs whose source runs here
    stripes: tuple[tuple[tuple[int, int], ...], ...] = ()  # by stripe and place in `ops`: columns [x0, x1)


@dataclass(frozen=True, slots=True)
class Plan:
    """A complete decision: order, segments, storage of every tensor, arena."""

    graph: Graph
    segments: tuple[Segment, ...]
    storages: tuple[Storage, ...]  # by tensor index
    allocation: Allocation  # of `buffers`
    buffers: tuple[
        str, ...
    ]  # what each block is: "tensor 3", "kept 3", "state 1" or "scratch 1" by segment, "accumulator 5" by op
    macs: int  # multiply-accumulates executed, padding not counted
    baseline_macs: int
    baseline_peak: int  # bytes: layer by layer in file order
    bound: int  # bytes: no plan of this search space is smaller

    @property
    def peak(self) -> int:
        """Bytes of the arena: all RAM of the network but the stack."""
        return self.allocation.peak
