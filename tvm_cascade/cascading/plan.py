"""The memory plan as data: segments with traces, and every tensor's storage. The emitter generates code from this.

A segment's operators run interleaved, a tile (such as a row) at a time, in the exact order of the segment's `trace`.
Between segments only whole tensors are live. Blocks in a segment may share bytes if the output overwrites the dead part
of an input that dies there (`memory.OffsetConstraint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tvm_cascade.graph import ROW, Graph, Tile
from tvm_cascade.machine import ARENA, Ram
from tvm_cascade.memory.problem import Allocation, Problem

ROWS = "rows 0"  # the block of all rows that have addresses of their own


class Granularity(Enum):
    """The unit of a rolling buffer's slots: whole rows, or pixels in row-major order."""

    ROW = "row"
    PIXEL = "pixel"


@dataclass(frozen=True, slots=True)
class Storage:
    """How a tensor is stored, and for which segments.

    Possible are all rows, or a ring of `height` rows with row r in slot `r % height`, or a ring of `pixels` pixels, or
    separate addresses for all rows, used by other data before the row is made and after the last read.
    """

    tensor: int
    height: int  # rows stored, at most at once; the tensor's rows where it is whole; for a pixel ring those it spans, rounded up
    size: int  # bytes
    lower: int  # first segment in which it is live
    upper: int  # first segment in which it is not
    granularity: Granularity = Granularity.ROW
    pixels: int = 0  # slots of a pixel ring: pixel p of the row-major tensor at slot p % pixels
    root: int | None = None  # of a view or a part of a join: the tensor in whose storage it lies
    byte_offset: int = 0  # from the first byte of the root
    pitch: int = 0  # part of a join along the channels: bytes from a pixel to the next; 0: pixels are contiguous
    columns: int = 0  # in stripes: columns in a ring row, column x in slot x - x0 with x0 the stripe's first; 0: all
    halo_columns: int = 0  # in stripes: last columns of every row that are stored for the next stripe
    row_addresses: tuple[int, ...] = ()  # of every row; empty: rows lie one behind the other, or in a ring

    def is_ring(self, rows: int) -> bool:
        """Test whether this is a ring, given the tensor's `rows` rows: only a part is stored at a time."""
        return self.granularity is Granularity.PIXEL or self.height < rows or self.columns > 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators that run interleaved, step by step, between two cuts of the execution order.

    `trace` names the operator of every step, counting k from 0. Step k of an operator writes output tile k, in
    row-major order. With n = `tile.rows` whole rows these are rows [k * n, (k + 1) * n), as far as they exist. With
    `tile.columns` pixels, and n = ceil(columns / tile.columns), they are the pixels from column (k % n) * tile.columns
    in row k // n, at most to the end of the row. Operators with unknown column windows write whole rows even then.
    Operators without rows (`opaque` operators, or outputs with a single row) occur once. Views do not occur.

    Accumulating: an operator in `accumulating` occurs once for every such tile of the *input*, adds the tile to the
    accumulator, and writes the output in the last step.

    Streamed: `-1 - t` is the source of graph input t, which asks the caller for the next row and writes the row into
    the ring.

    In place: an operator in `in_place` runs alone, once, and overwrites its input, which dies.

    Stripes: the trace, then with single rows as tiles, runs once for every stripe. Step k of `ops[n]` in stripe s
    writes columns `stripes[s][n]` of row k. An accumulating operator adds these columns of input row k; the accumulator
    is cleared in the first step of the first stripe, and the output written in the last step of the last. Streamed
    inputs are delivered again for every stripe, and rings carry nothing from one stripe to the next.

    Halo: a tensor with h = `Storage.halo_columns` > 0, whose producer writes columns [x0, x1) in this stripe and began
    at column x' in the first, is available from column max(x0 - h, x') on. Before each step these earlier columns are
    copied from the block "kept t" to the start of the ring row; after the step the last h columns (or as many as there
    are) are copied from the ring to that block.
    """

    ops: tuple[int, ...]  # operators in topological order, views included
    trace: tuple[int, ...]  # the operator, or source, of every step
    state_bytes: int = 0  # step counters of the driver, in the arena while the segment runs
    scratch_bytes: int = 0  # the largest scratch of its operators, which share one block
    tile: Tile = ROW  # output of a step; in stripes single rows
    accumulating: tuple[int, ...] = ()
    in_place: tuple[int, ...] = ()
    streamed: tuple[int, ...] = ()  # graph inputs whose source runs here
    stripes: tuple[tuple[tuple[int, int], ...], ...] = ()  # by stripe and position in `ops`: columns [x0, x1)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A plan's part of a memory: addresses `[start, start + bytes)` in the plan."""

    ram: Ram
    start: int
    bytes: int

    @property
    def end(self) -> int:
        """Return the first address after this memory's part."""
        return self.start + self.bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph's complete memory plan: segments in execution order, tensor storage, all block addresses.

    In a plan's addresses a machine's memories follow one another, each from `MemoryUse.start` on, with gaps between. A
    plan without named memories has a single memory, the arena, from address 0 on: an address is an offset in the arena.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    storages: tuple[Storage, ...]  # by tensor index
    allocation: Allocation  # addresses of `buffers`; its peak is the end of the last memory
    buffers: tuple[
        str, ...
    ]  # block names: "tensor 3", "kept 3" (halo columns), "state 1" or "scratch 1" by segment, "accumulator 5" by op, `ROWS`
    problem: Problem  # that `allocation` solves: the blocks without those that lie where another does, and their lives;
    # where rows have addresses of their own, blocks and rows by name, with their lives in steps
    overwritten: tuple[tuple[str, str], ...]  # blocks written in place, each with the block that it overwrites
    macs: int  # multiply-accumulates executed, padding not counted
    baseline_macs: int  # multiply-accumulates without recompute
    baseline_peak: int  # bytes: layer by layer in file order (`layerwise.baseline_peak`)
    bound: int  # bytes: no plan of this search space is smaller
    finer: tuple[int, float] | None = (
        None  # arena, and factor of instructions, of a smaller plan that `max_time` refuses
    )
    placed: tuple[MemoryUse, ...] = ()  # memories that the blocks were placed in; none: the arena alone

    @property
    def peak(self) -> int:
        """Return the bytes of all memories: all the network's RAM but the stack."""
        return sum(use.bytes for use in self.placed) if self.placed else self.allocation.peak

    @property
    def rows_end(self) -> int:
        """Return the first address behind all rows with separate addresses."""
        tensors = self.graph.tensors
        return max(
            (max(s.row_addresses) + tensors[s.tensor].row_bytes for s in self.storages if s.row_addresses), default=0
        )

    @property
    def memories(self) -> tuple[MemoryUse, ...]:
        """Return the plan's memories by ascending address, with the part the plan takes."""
        return self.placed or (MemoryUse(ARENA, 0, self.allocation.peak),)

    def memory_at(self, address: int) -> MemoryUse:
        """Return the memory an address lies in; the gap behind a memory belongs to that memory."""
        return next((use for use in reversed(self.memories) if use.start <= address), self.memories[0])
