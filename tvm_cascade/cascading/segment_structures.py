"""Structures of segments: equal numbers for segments with equal costs.

Networks repeat cells, and equivalent networks differ in few operators. So a segment's own memory is computed once for
all segments with equal structure, in any order and graph: `by_structure`.

The structure of a position in an order is the operator, and every tensor read or written: shape and type, the root, and
how many positions before or after this position the root is written and read. The structure of a segment is the
sequence of the positions' structures. Lives are included, so dying inputs and tensors needed later are too; tensors
that only pass by are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from itertools import count
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.graph import Op, Tensor

P = ParamSpec("P")
R = TypeVar("R")
_MOST = 200_000  # numbers and results that are kept, each; where there are more, all are worked out again

_unused = count()
_numbers: dict[
    object, int
] = {}  # by what they stand for: a tensor, an operator, a position, or a segment and one more position
_results: dict[object, Any] = {}  # by method, structure and further arguments


class SegmentStructures:
    """The numbers of an order's segments [i, j); `options` is everything else costs depend on."""

    def __init__(
        self,
        tables: AccessTables,
        order: Sequence[int],
        lives: tuple[Mapping[int, int], Mapping[int, int]],
        options: object,
    ) -> None:
        """Keep the order. `lives`: every root's positions of birth and last use, as in `SegmentCosts`."""
        self._tables, self._order, self._lives = tables, order, lives
        self._place = {op: k for k, op in enumerate(order)}
        start = number((options, tables.accumulators))
        self._ends: list[list[int]] = [[start] for _ in range(len(order) + 1)]  # by start and length

    def of(self, i: int, j: int) -> int:
        """Return the index of the segment [i, j)."""
        ends = self._ends[i]
        while len(ends) <= j - i:
            ends.append(number((ends[-1], self._positions[i + len(ends) - 1])))
        return ends[j - i]

    @cached_property
    def _positions(self) -> list[int]:
        """List the number of every position."""
        graph, tables, (born, last) = self._tables.graph, self._tables, self._lives
        tensors = [number(_plain_tensor(t)) for t in graph.tensors]
        unread = tuple(tensors[t] for t in graph.inputs if not tables.readers[tables.roots[t].tensor])
        found: list[int] = []
        for p, o in enumerate(self._order):
            node = graph.ops[o]
            touched: list[object] = []
            for t in (*node.inputs, *node.outputs):
                root, offset = tables.roots[t].tensor, tables.roots[t].byte_offset
                writers = [(self._place[m] - p if m >= 0 else m, m) for m in tables.writers(root)]
                seen = (tensors[t], tensors[root], t == root, offset, t in tables.parts, tables.stacked(t))
                writing = [(at, tables.written(m).index(root)) for at, m in writers] or [-1 - root]
                life = (born[root] - p, last[root] - p, root in tables.leaves, root in tables.streamed)
                touched.append((*seen, *life, *writing, *(self._place[c] - p for c in tables.readers[root])))
            # operators of a segment take turns by index
            found.append(
                number((number(_plain_op(node)), o - p, len(node.inputs), *touched, *(unread if p == 0 else ())))
            )
        return found


def by_structure(method: Callable[Concatenate[Any, int, int, P], R]) -> Callable[Concatenate[Any, int, int, P], R]:
    """Cache a method of `SegmentCosts` so that all segments [i, j) with equal structure share results.

    For methods that depend only on the structure, the further arguments and the options of `SegmentStructures`. The
    owner has these `SegmentStructures` as attribute `structures`.
    """

    @wraps(method)
    def found(self: Any, i: int, j: int, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (method, self.structures.of(i, j), *args, *kwargs.items())
        if key not in _results:
            result = method(self, i, j, *args, **kwargs)
            if len(_results) >= _MOST:
                forget_structures()
            _results[key] = result
        return cast(R, _results[key])

    return found


def number(content: object) -> int:
    """Return a number that stands for `content` alone; the same as long as the content is kept."""
    known = _numbers.get(content)
    if known is None:
        if len(_numbers) >= _MOST:
            forget_structures()
        known = _numbers.setdefault(content, next(_unused))
    return known


def forget_structures() -> None:
    """Drop all kept results; numbers in use stay unique."""
    _numbers.clear()
    _results.clear()


def _plain_tensor(tensor: Tensor) -> Tensor:
    return replace(tensor, index=0, name="")


def _plain_op(op: Op) -> Op:
    return replace(op, index=0, inputs=(), outputs=())
