"""Sizes of rolling buffers (the rows or pixels to store), without simulating whole segments.

The order in which a tensor's rows are written and read depends on nothing upstream of the producer, and on nothing
downstream of the readers' common post-dominator, since all demand passes through that operator. So a ring's size is a
property of the tensor, computed once for all segments: by a closed form (one producer, one reader), else by simulating
the operators up to the post-dominator. If a segment ends before, the segment itself is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.graph import Tile


class RingSizes:
    """Ring sizes of a graph, by tensor and tile."""

    def __init__(self, tables: AccessTables) -> None:
        self.tables = tables

    @cached_method
    def anywhere(self, tensor: int, tile: Tile) -> int:
        """Return a tensor's ring units in any segment that holds the operators determining the size (`needed`)."""
        needed = self.needed(tensor)
        assert needed is not None
        units = Cascade(self.tables, needed, tile).closed_form(tensor) if len(needed) <= 2 else None
        return self.simulated(needed, tile, (tensor,))[tensor] if units is None else units

    @cached_method
    def needed(self, tensor: int) -> tuple[int, ...] | None:
        """Return the operators and sources that determine the size of a tensor's ring, ascending.

        These are the producers, the readers, and the operators on paths from there to the common post-dominator. None
        if the readers have no such dominator, or if a producer may sum the input and then write several rows at once:
        that happens in segments with the input's producer. Then the segment itself is simulated.
        """
        makers = self.tables.writers(tensor)
        if self.tables.tensor_rows[tensor] > 1 and any(self._may_sum(m) for m in makers):
            return None
        readers = {o for m in makers for t in self.tables.written(m) for o in self.tables.readers[t]}
        between = tuple(readers) if len(readers) <= 1 and len(makers) == 1 else self._between(readers)
        return None if between is None else tuple(sorted({*makers, *between}))

    def simulated(self, members: Sequence[int], tile: Tile, tensors: Sequence[int]) -> dict[int, int]:
        """Compute by simulation the ring units of `tensors`, which the operators and sources `members` write."""
        return Cascade(self.tables, members, tile).held(tensors)

    def _may_sum(self, maker: int) -> bool:
        """Test whether an operator sums the input in some segment."""
        return maker >= 0 and self.tables.accumulates(maker, self.tables.makers[maker])

    @cached_property
    def _successors(self) -> tuple[tuple[int, ...], ...]:
        """List, for each operator, the readers of the outputs, views skipped."""
        graph = self.tables.graph
        written = [() if op.view else self.tables.written(op.index) for op in graph.ops]
        return tuple(tuple(sorted({c for t in roots for c in self.tables.readers[t]})) for roots in written)

    @cached_property
    def _post_dominator(self) -> tuple[int, ...]:
        """Compute for each operator the next operator every path to the end passes.

        The number of operators stands for the end.
        """
        graph, end = self.tables.graph, len(self.tables.graph.ops)
        dominators = [end] * (end + 1)
        for op in reversed(graph.ops):
            after = self._successors[op.index]
            leaves = not after or any(t in self.tables.leaves for t in self.tables.written(op.index))
            dominators[op.index] = end if leaves else self._meet(dominators, after)
        return tuple(dominators)

    def _meet(self, dominators: Sequence[int], operators: Sequence[int]) -> int:
        """Find the nearest common post-dominator of `operators`, maybe among them; the operator count stands for the
        end.
        """
        meeting = operators[0]
        for other in operators[1:]:
            while meeting != other:
                if meeting < other:
                    meeting = dominators[meeting]
                else:
                    other = dominators[other]
        return meeting

    def _between(self, readers: Set[int]) -> tuple[int, ...] | None:
        """Return the operators on paths from `readers` to their common post-dominator; None if only the end is common."""
        meeting = self._meet(self._post_dominator, sorted(readers))
        if meeting >= len(self.tables.graph.ops):
            return None
        seen, pending = set(readers), list(readers)
        while pending:
            o = pending.pop()
            if o != meeting:
                fresh = [c for c in self._successors[o] if c not in seen]
                seen.update(fresh)
                pending.extend(fresh)
        return tuple(sorted(seen))
