"""Sorting as a kernel: `sort`, `argsort` and the first `k` elements in an order (`topk`), which TVM leaves to a
library.

Element positions come first, by a single kernel: a heap of `k` positions, in the result itself, keeps the first
elements seen so far with their last on top, and is then taken apart from its end (heap sort; Williams 1964). That takes
`n log k` steps and no memory besides the result. The values are then read at these positions. Equal elements keep their
order. A NaN is larger than every number, as in PyTorch and NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.statements import loop, one_block, sequence, store
from tvm_cascade.passes.integer.untyped import (
    Builder,
    Call,
    Function,
    Index,
    Scalar,
    Tensor,
    Value,
    ir,
    relax,
    s_tir,
    te,
    tirx,
)

# among the scratch of the kernel: where a place sinks, in how many; its child; a place
_NODE, _SIZE, _CHILD, _HELD = range(4)


def sort(bb: Builder, call: Call) -> Value:
    """Lower `relax.sort`."""
    data, axis = call.args[0], _axis(call)
    return _values(bb, data, _emit_places(bb, data, axis, shape_of(data)[axis], bool(call.attrs.descending)), axis)


def argsort(bb: Builder, call: Call) -> Value:
    """Lower `relax.argsort`."""
    data, axis = call.args[0], _axis(call)
    places = _emit_places(bb, data, axis, shape_of(data)[axis], bool(call.attrs.descending))
    return _as(bb, places, str(call.attrs.dtype))


def top_k(bb: Builder, call: Call) -> Value:
    """Lower `relax.topk`; `k` below 1 means all elements."""
    data, axis, attrs = call.args[0], _axis(call), call.attrs
    extent, k = shape_of(data)[axis], int(attrs.k)
    places = _emit_places(bb, data, axis, k if 0 < k < extent else extent, bool(attrs.largest))
    if str(attrs.ret_type) == "indices":
        return _as(bb, places, str(attrs.dtype))
    values = _values(bb, data, places, axis)
    return values if str(attrs.ret_type) == "values" else relax.Tuple([values, _as(bb, places, str(attrs.dtype))])


def emit_top_k(bb: Builder, data: Value, k: int, dtype: str) -> Value:
    """Emit values and positions of the `k` largest elements along the last axis, for any type: TVM's `topk` lacks some
    integers.
    """
    axis = len(shape_of(data)) - 1
    places = _emit_places(bb, data, axis, k, descending=True)
    return relax.Tuple([_values(bb, data, places, axis), _as(bb, places, dtype)])


def _axis(call: Call) -> int:
    return int(call.attrs.axis) % len(shape_of(call.args[0]))


def _as(bb: Builder, places: Value, dtype: str) -> Value:
    return places if dtype == "int32" else bb.emit(relax.op.astype(places, dtype))


def _emit_places(bb: Builder, data: Value, axis: int, k: int, descending: bool) -> Value:
    shape = shape_of(data)
    func = places_kernel(shape, axis, k, dtype_of(data), descending)
    made = relax.TensorType([*shape[:axis], k, *shape[axis + 1 :]], "int32")
    return bb.emit(relax.call_tir(bb.add_func(func, "sorted_places"), [data], made))


def _values(bb: Builder, data: Value, places: Value, axis: int) -> Value:
    return bb.emit_te(lambda x, p: values_at(x, p, axis), data, places, primfunc_name_hint="sorted_values")


def values_at(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """Return the elements of `x` at `places` along the axis."""

    def value(*at: Index) -> Scalar:
        return x[(*at[:axis], places[at], *at[axis + 1 :])]

    return te.compute(places.shape, value, name="sorted_values")


def places_kernel(shape: Sequence[int], axis: int, k: int, dtype: str, descending: bool) -> Function:
    """Build the PrimFunc from a tensor to the positions of the first `k` elements along the axis: one block per line."""
    x = tirx.decl_buffer(tuple(shape), dtype, "x")
    out = tirx.decl_buffer((*shape[:axis], k, *shape[axis + 1 :]), "int32", "out")
    others = [a for a in range(len(shape)) if a != axis]
    lanes = {a: tirx.Var(f"v_{a}", "int32") for a in others}
    line = _Line(x, out, lambda j: [lanes.get(a, j) for a in range(len(shape))], shape[axis], k, descending)
    ranges = [ir.Range.from_min_extent(lanes[a], i32(1)) if a in lanes else None for a in range(len(shape))]
    reads, writes = (
        tirx.BufferRegion(b, [r or ir.Range(0, n) for r in ranges]) for b, n in ((x, shape[axis]), (out, k))
    )
    axes = [tirx.IterVar(ir.Range(0, shape[a]), lanes[a], tirx.IterVar.DataPar) for a in others]
    block = s_tir.SBlock(axes, [reads], [writes], "sort", line.body(), None, [line.scratch], [], {})
    return one_block(block, [(tirx.Var(f"i_{a}", "int32"), shape[a]) for a in others], [x, out])


class _Line:
    """The statements that sort a line of `x`, with `extent` elements, into the `k` places in `out`."""

    def __init__(
        self, x: Value, out: Value, at: Callable[[Scalar], list[Scalar]], extent: int, k: int, descending: bool
    ) -> None:
        self.x, self.out, self.at, self.extent, self.k, self.descending = x, out, at, extent, k, descending
        self.scratch = tirx.decl_buffer((4,), "int32", "scratch")

    def body(self) -> Value:
        """Write a single loop for all steps, so the sinking code exists once.

        First all heap nodes sink, then each further element that comes before the top, then each place moves behind the
        remaining heap.
        """
        k, half = self.k, self.k // 2
        count = half + self.extent - k + k - 1
        first = loop("i", k, lambda i: self._put(i, i))
        if count == 0:
            return first
        return sequence(first, loop("t", count, lambda t: self._step(t, half, half + self.extent - k)))

    def _step(self, t: Scalar, half: int, kept: int) -> Value:
        k, other, last = self.k, t - half + self.k, i32(self.k - 1 + kept) - t
        choices = [
            (half, store(self.scratch, _NODE, half - 1 - t)),
            (kept - half, tirx.IfThenElse(self._before(other, self._place(i32(0))), sequence(
                self._put(i32(0), other), store(self.scratch, _NODE, i32(0))), None)),
            (k - 1, sequence(
                store(self.scratch, _SIZE, last), store(self.scratch, _NODE, i32(0)), self._swapped(i32(0), last))),
        ]  # fmt: skip
        steps, until = None, half + kept - half + k - 1
        for count, statement in reversed(choices):
            until -= count
            if count:
                steps = statement if steps is None else tirx.IfThenElse(t < until + count, statement, steps)
        start = [store(self.scratch, _NODE, i32(k)), store(self.scratch, _SIZE, i32(k)), steps]
        levels = k.bit_length() - 1
        return sequence(*start, loop("level", levels, lambda _: self._sink())) if levels else sequence(*start)

    def _sink(self) -> Value:
        """Write a step down: swap the node's place with the later child's, if that comes after the node."""
        node, child, size = (self.scratch[i32(k)] for k in (_NODE, _CHILD, _SIZE))
        right = tirx.all(child + 1 < size, self._before(self._place(child), self._place(tirx.min(child + 1, size - 1))))
        down = sequence(self._swapped(node, child), store(self.scratch, _NODE, child))
        sinks = self._before(self._place(node), self._place(child))
        return tirx.IfThenElse(
            node * 2 + 1 < size,
            sequence(
                store(self.scratch, _CHILD, node * 2 + 1),
                tirx.IfThenElse(right, store(self.scratch, _CHILD, child + 1), None),
                tirx.IfThenElse(sinks, down, store(self.scratch, _NODE, size)),
            ),
            None,
        )

    def _swapped(self, one: Scalar, other: Scalar) -> Value:
        held = store(self.scratch, _HELD, self._place(one))
        return sequence(held, self._put(one, self._place(other)), self._put(other, self.scratch[i32(_HELD)]))

    def _place(self, j: Scalar) -> Scalar:
        return self.out[tuple(self.at(j))]

    def _put(self, j: Scalar, place: Scalar) -> Value:
        return tirx.BufferStore(self.out, place, self.at(j))

    def _before(self, one: Scalar, other: Scalar) -> Scalar:
        """Test whether the element at place `one` comes before the element at place `other`."""
        a, b = (self.x[tuple(self.at(p))] for p in ((one, other) if self.descending else (other, one)))
        if not str(a.ty.dtype).startswith("float"):
            return tirx.any(a > b, tirx.all(a.equal(b), one < other))
        larger = tirx.any(a > b, tirx.all(tirx.isnan(a), tirx.Not(tirx.isnan(b))))
        # not by `Not(a < b)`: TVM makes it `b <= a`
        equal = tirx.any(a.equal(b), tirx.all(tirx.isnan(a), tirx.isnan(b)))
        return tirx.any(larger, tirx.all(equal, one < other))
