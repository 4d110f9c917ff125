"""What a segment costs: every byte that is live while it runs.

For positions `[i, j)` of an execution order: tensors made before and still wanted, whole; tensors made inside and
wanted later, whole; tensors that live inside alone, their rings; the driver's row counters; the largest scratch.
(REFERENCES: M(i,j) = |X_i| + |X_(j+1)| + sum B_l + skips; here with the rings exact, and counters and scratch
besides.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tvm_cascade.cascading.flow import Flow
from tvm_cascade.cascading.simulate import segment_heights

COUNTER_BYTES = 4  # one int32 row counter an operator


def aligned(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class SegmentCosts:
    """Costs of all segments of one execution order."""

    def __init__(self, flow: Flow, order: Sequence[int], alignment: int) -> None:
        self.flow, self.order, self.alignment = flow, tuple(order), alignment
        self.place = {op: k for k, op in enumerate(self.order)}
        self.born, self.last = self._lives()
        self._heights = lru_cache(maxsize=None)(self._heights_of)

    def _lives(self) -> tuple[dict[int, int], dict[int, int]]:
        """For every root the position of its maker (-1 for inputs) and of its last reader (the end for outputs)."""
        flow, end = self.flow, len(self.order)
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        for t, root in enumerate(flow.roots):
            if root.tensor == t:
                maker = flow.graph.producer[t]
                born[t] = -1 if maker is None else self.place[maker]
                readers = [self.place[c] for c in flow.readers[t]]
                last[t] = end if t in flow.leaves else max([*readers, born[t], 0])
        return born, last

    def working(self, i: int, j: int) -> list[int]:
        """Operators of `[i, j)` that do work: views left out."""
        return [o for o in self.order[i:j] if not self.flow.graph.ops[o].view]

    def _sinks(self, i: int, j: int) -> frozenset[int]:
        flow = self.flow
        inside = set(self.working(i, j))
        return frozenset(
            o for o in inside if not any(c in inside for t in flow.graph.ops[o].outputs for c in flow.readers[t])
        )

    def _heights_of(self, i: int, j: int) -> dict[int, int]:
        return segment_heights(self.flow, self.order[i:j])

    def heights(self, i: int, j: int) -> dict[int, int]:
        """Rows held of every root made in `[i, j)`: all where it is wanted later, else the ring's.

        What upstream operators do never changes the order of those downstream, so that one simulation per end serves
        all starts with the same sinks.
        """
        shared = self._sinks(i, j) == self._sinks(0, j)
        rings = self._heights(0, j) if shared else self._heights(i, j)
        rows = self.flow.graph.tensors
        return {
            t: rows[t].rows if self.last[t] >= j else rings[t]
            for o in self.working(i, j)
            for t in self.flow.graph.ops[o].outputs
        }

    def bytes_held(self, tensor: int, height: int) -> int:
        t = self.flow.graph.tensors[tensor]
        return t.bytes if height >= t.rows else height * t.row_bytes

    def state_bytes(self, i: int, j: int) -> int:
        """Row counters of the driver: none where a single operator runs whole."""
        count = len(self.working(i, j))
        return COUNTER_BYTES * count if count > 1 else 0

    def scratch_bytes(self, i: int, j: int) -> int:
        return max((self.flow.graph.ops[o].scratch_bytes for o in self.order[i:j]), default=0)

    def cost(self, i: int, j: int) -> int:
        """Bytes live while `[i, j)` runs, rounded up block by block."""
        return sum(aligned(size, self.alignment) for size in self.blocks(i, j))

    def exact_cost(self, i: int, j: int) -> int:
        """The same without rounding: what no arena can go below."""
        return sum(self.blocks(i, j))

    def blocks(self, i: int, j: int) -> tuple[int, ...]:
        """Bytes of every block that is live while `[i, j)` runs."""
        across = [self.bytes_held(t, self.flow.graph.tensors[t].rows) for t in self._across(i)]
        inside = [self.bytes_held(t, h) for t, h in self.heights(i, j).items()]
        return (*across, *inside, self.state_bytes(i, j), self.scratch_bytes(i, j))

    def _across(self, i: int) -> list[int]:
        """Roots made before position `i` and wanted at it or later."""
        return [t for t, b in self.born.items() if b < i and self.last[t] >= i]
