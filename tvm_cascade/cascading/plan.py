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
    """Where a tensor lives: all of its rows, or a rolling buffer of `height` rows (row r at slot `r % height`)."""

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
        return self.granularity is Granularity.PIXEL or self.height < rows or self.columns > 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators that run together.

    `trace` names an operator per step. The k-th occurrence of an operator makes the k-th `tile` of its output, in
    row-major order. By rows, with n = `tile.rows`, that is those of the rows [k * n, (k + 1) * n) that there are. By
    pixels, with n = ceil(columns / tile.columns), it is row k // n, columns from (k % n) * tile.columns, never beyond the
    end of the row. Operators whose columns are unknown go by rows all the same. Operators without rows (`opaque`, or
    one-row outputs) occur once. Views occur in no trace.

    An operator in `accumulating` occurs once for every such row (or run of pixels) of its *input*, adds it to its
    accumulator, and writes its output in the last. `-1 - t` is the source of the streamed graph input t: it asks the
    caller for the next row and puts it into the ring.

    An operator in `in_place` runs alone, once, and leaves its output in the very bytes of its input, which dies.

    With `stripes` (and single rows as tiles) the trace runs once for each: step k of `ops[n]` in stripe s makes columns
    `stripes[s][n]` of row k, or adds those columns of input row k to its accumulator, which it clears in its first step
    of all and reads in its last of all. The rings of one stripe hold nothing that the next one reads. Of a tensor with
    `Storage.halo_columns` k, whose maker makes [x0, x1) and made x0' first of all, the stripe has [max(x0 - k, x0'), x1):
    before each step the first of them are copied from the block "kept t" into the ring, where they begin; after it the
    last k (or as many as there are) are copied from the ring to there. A streamed input comes once for every stripe.
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
