"""Off-chip traffic of an order for a given on-chip memory, under Belady's optimal replacement (Serenity, section 4.2).

Activations are cut into blocks. An operator streams through inputs and outputs: it accesses the blocks of all of them
in parallel, each once. An accessed block not on chip is fetched, unless written for the first time. If the chip is
full, the block with the farthest next use is evicted, which may be the accessed block (bypass); it is written back if
there is no copy outside. A block without further use is dropped. Belady (1966) minimizes misses; write-backs follow
from misses and are counted, not minimized. Weights are not counted.

Reading the network's input for the first time and writing its output are compulsory and counted separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from tvm_cascade.graph import Graph


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes moved between chip and outside over an inference."""

    read: int  # intermediates and inputs fetched again
    written: int  # intermediates written back
    compulsory: int  # input fetched once, output written once

    @property
    def bytes(self) -> int:
        """Return the traffic that a larger on-chip memory would avoid: all but the compulsory."""
        return self.read + self.written


_NEVER = 1 << 60


def traffic(graph: Graph, order: Sequence[int], on_chip: int, block: int = 1024) -> Traffic:
    """Compute the off-chip traffic of an operator order with `on_chip` bytes on-chip memory, in blocks of `block`
    bytes.
    """
    sizes, trace = _trace(graph, order, block)
    following = _next_uses(trace, {b for t in graph.outputs for b in _blocks(graph, t, block)})
    capacity = max(on_chip // block, 0)
    resident: dict[int, int] = {}  # block -> its next use
    heap: list[tuple[int, int]] = []  # (-next use, block), stale entries skipped
    outside = {b for t in graph.inputs for b in _blocks(graph, t, block)}
    seen: set[int] = set()
    read = written = compulsory = 0
    for (b, writes), nearest in zip(trace, following, strict=True):
        if b not in resident and (b in seen or not writes):
            if b in seen:
                read += sizes[b]
            else:
                compulsory += sizes[b]
        seen.add(b)
        if writes:
            outside.discard(b)
        resident.pop(b, None)
        if nearest == _NEVER:
            continue
        resident[b] = nearest
        heappush(heap, (-nearest, b))
        while len(resident) > capacity:
            farthest, victim = heappop(heap)
            if resident.get(victim) != -farthest:
                continue
            del resident[victim]
            if victim not in outside:
                outside.add(victim)
                if -farthest < len(trace):
                    written += sizes[victim]
    ends = sum(graph.tensors[t].bytes for t in graph.outputs)
    return Traffic(read, written, compulsory + ends)


def _blocks(graph: Graph, tensor: int, block: int) -> list[int]:
    """List the blocks with a tensor's bytes; a view shares the root's blocks."""
    root = graph.roots[tensor]
    first = root.byte_offset // block
    last = -(-(root.byte_offset + graph.tensors[tensor].bytes) // block)
    return [(root.tensor << 32) + k for k in range(first, max(last, first))]


def _trace(graph: Graph, order: Sequence[int], block: int) -> tuple[dict[int, int], list[tuple[int, bool]]]:
    """Return the bytes of every block, and the accesses (block, is written) in order."""
    sizes: dict[int, int] = {}
    for t, root in zip(graph.tensors, graph.roots, strict=True):
        if root.tensor == t.index:
            for k, b in enumerate(_blocks(graph, t.index, block)):
                sizes[b] = min(block, t.bytes - k * block)
    trace = [step for i in order if not graph.ops[i].view for step in _accesses(graph, i, block)]
    for b, _ in trace:
        sizes.setdefault(b, block)
    return sizes, trace


def _accesses(graph: Graph, i: int, block: int) -> Iterator[tuple[int, bool]]:
    """List the accesses (block, is written) of an operator: inputs and outputs interleaved in proportion to length."""
    op = graph.ops[i]
    steps: list[tuple[float, int, int, bool]] = []
    for rank, (t, writes) in enumerate([*((t, False) for t in op.inputs), *((t, True) for t in op.outputs)]):
        blocks = _blocks(graph, t, block)
        steps += [((k + 1) / len(blocks), rank, b, writes) for k, b in enumerate(blocks)]
    return ((b, writes) for _, _, b, writes in sorted(steps, key=lambda s: s[:2]))


def _next_uses(trace: Sequence[tuple[int, bool]], kept: set[int]) -> list[int]:
    """Find for each access the trace index of the next access to the same block; `_NEVER` if there is none.

    The blocks in `kept`, holding graph outputs, are used once more at the end (the trace's length).
    """
    coming: dict[int, int] = dict.fromkeys(kept, len(trace))
    following = [0] * len(trace)
    for at in range(len(trace) - 1, -1, -1):
        b = trace[at][0]
        following[at] = coming.get(b, _NEVER)
        coming[b] = at
    return following
