"""Operators in forms fit for staged programs' kernels: sorts, scans, scatters and tensors of a single number.

TVM has a target's functions for sorts and scans (`relax.backend.DispatchSortScan`), which allocate memory and call
libraries, and loops no rule schedules for scatters: neither a parallel region nor a captured CUDA graph can hold them.
Here every element counts the elements before it, its rank, and the element with rank r is r-th in the result. Equal
elements keep their order, as in ONNX and NumPy's stable sort. A sum or product up to an element combines all elements
up to there. An element of a scatter looks for the last update with its index. Work grows with the product of the
extents read and written along the axis, all in parallel. A tensor of one number is a broadcast, which is folded: TVM
cannot legalize every `full`.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_cascade.passes.integer.expressions import constant_of
from tvm_cascade.passes.islands.stored import BOUNDARIES

Value = Any
# operators whose legalization writes a constant of one number into the kernel
_SCALARS = frozenset(
    f"relax.{name}"
    for name in (
        *BOUNDARIES, "add", "astype", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal",
        "floor_divide", "floor_mod", "full", "greater", "greater_equal", "left_shift", "less", "less_equal",
        "log_add_exp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mod", "multiply",
        "not_equal", "power", "right_shift", "subtract",
    )
)  # fmt: skip


def takes_numbers(call: Value) -> bool:
    """Test whether a call's kernel can hold a scalar constant; other kernels take such a constant as a tensor."""
    return getattr(call.op, "name", "") in _SCALARS


def least_operand(
    call: Value, held: np.ndarray, result: tuple[int, ...], shapes: Sequence[tuple[int, ...]]
) -> np.ndarray:
    """Return a call's constant operand; a broadcast number as one element, if an activation has the result's shape.

    `shapes`: shapes of the call's activations.
    """
    broadcasts = takes_numbers(call) or getattr(call.op, "name", "") == "relax.where"
    is_number = broadcasts and held.ndim > 0 and not any(held.strides) and result in shapes
    return held[(slice(0, 1),) * held.ndim] if is_number else held


def with_plain_operators(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace sorts, scans and scatters by calls of PrimFuncs; a module without any is returned as is."""
    functions = [f for f in mod.functions.values() if isinstance(f, relax.Function)]
    found = False

    def visit(expr: Any) -> None:
        nonlocal found
        found = found or (isinstance(expr, relax.Call) and getattr(expr.op, "name", "") in _FORMS)

    for func in functions:
        relax.analysis.post_order_visit(func, visit)
    return _rewritten(mod) if found else mod


def _rewritten(mod: tvm.IRModule) -> tvm.IRModule:
    @relax.expr_functor.mutator
    class Rewriter(relax.PyExprMutator):
        def visit_call_(self, op: Any) -> Any:
            call = self.visit_expr_post_order(op)
            form = _FORMS.get(getattr(call.op, "name", ""))
            return call if form is None else form(self.builder_, call)

    rewriter = Rewriter(mod)
    for gv, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(gv, rewriter.visit_expr(func))
    return rewriter.builder_.get()


def _shape(value: Value) -> list[int]:
    return [int(d) for d in value.ty.shape.values]


def _along(value: Value, axis: Any) -> int:
    return int(axis) % len(_shape(value))


def _moved(at: Sequence[Any], axis: int, place: Any) -> tuple[Any, ...]:
    return (*at[:axis], place, *at[axis + 1 :])


def _ranks(x: Any, axis: int, descending: bool) -> Any:
    """Compute each element's rank, int32: the number of elements that come before along the axis."""
    j = te.reduce_axis((0, x.shape[axis]), "j")

    def rank(*at: Any) -> Any:
        own, other = x[at], x[_moved(at, axis, j)]
        before = tirx.any(
            other > own if descending else other < own, tirx.all(other.equal(own), j < at[axis].astype("int32"))
        )
        return te.sum(tirx.Select(before, tirx.const(1, "int32"), tirx.const(0, "int32")), axis=j)

    return te.compute(x.shape, rank, name="sort_ranks")


def _places(ranks: Any, axis: int, count: int) -> Any:
    """Compute the places along the axis of the elements with rank 0, 1, ... `count` - 1, int32."""
    i = te.reduce_axis((0, ranks.shape[axis]), "i")

    def place(*at: Any) -> Any:
        is_it = ranks[_moved(at, axis, i)].equal(at[axis].astype("int32"))
        return te.sum(tirx.Select(is_it, i.astype("int32"), tirx.const(0, "int32")), axis=i)

    return te.compute(_moved(ranks.shape, axis, count), place, name="sort_places")


def _values(x: Any, places: Any, axis: int) -> Any:
    last = tirx.const(int(x.shape[axis]) - 1, "int32")  # among NaNs two elements may have the same rank

    def value(*at: Any) -> Any:
        return x[_moved(at, axis, tirx.min(places[at], last))]

    return te.compute(places.shape, value, name="sort_values")


def _scanned(x: Any, axis: int, dtype: str, exclusive: bool, product: bool) -> Any:
    """Compute the sum or product of all elements up to each along the axis; `exclusive` leaves out the element."""
    j = te.reduce_axis((0, x.shape[axis]), "j")
    unit = tirx.const(1 if product else 0, dtype)
    reduced = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="product") if product else te.sum

    def upto(*at: Any) -> Any:
        own = at[axis].astype("int32")
        taken = j < own if exclusive else j <= own
        return reduced(tirx.Select(taken, x[_moved(at, axis, j)].astype(dtype), unit), axis=j)

    return te.compute(x.shape, upto, name="scan")


def _names(indices: Any, at: Sequence[Any], axis: int, j: Any, extent: int) -> Any:
    """Test whether the update at `j` along the axis is for the element `at`; negative indices count from the end."""
    inside = [tirx.min(a, n - 1) for a, n in zip(at, indices.shape, strict=True)]
    index = indices[_moved(inside, axis, j)]
    named = tirx.Select(index < tirx.const(0, index.dtype), index + tirx.const(extent, index.dtype), index)
    others = [a < n for d, (a, n) in enumerate(zip(at, indices.shape, strict=True)) if d != axis]
    return tirx.all(named.equal(at[axis].astype(index.dtype)), *others)


def _last_updates(indices: Any, shape: Sequence[int], axis: int) -> Any:
    """Compute the last update's place along the axis for each element of `shape`, int32; -1 for none."""
    j = te.reduce_axis((0, indices.shape[axis]), "j")

    def last(*at: Any) -> Any:
        is_named = _names(indices, at, axis, j, shape[axis])
        return te.max(tirx.Select(is_named, j.astype("int32"), tirx.const(-1, "int32")), axis=j)

    return te.compute(shape, last, name="scatter_updates")


def _updated(data: Any, updates: Any, places: Any, axis: int) -> Any:
    def value(*at: Any) -> Any:
        inside = [tirx.min(a, n - 1) for a, n in zip(at, updates.shape, strict=True)]
        place = places[at]
        update = updates[_moved(inside, axis, tirx.max(place, tirx.const(0, "int32")))]
        return tirx.Select(place < tirx.const(0, "int32"), data[at], update)

    return te.compute(data.shape, value, name="scatter")


def _collected(indices: Any, updates: Any, shape: Sequence[int], axis: int, reduction: str) -> Any:
    """Compute the sum or product over updates for each element in `shape`."""
    j = te.reduce_axis((0, indices.shape[axis]), "j")
    unit = tirx.const(1 if reduction == "mul" else 0, updates.dtype)
    reduced = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="product")

    def collected(*at: Any) -> Any:
        inside = [tirx.min(a, n - 1) for a, n in zip(at, updates.shape, strict=True)]
        is_named = _names(indices, at, axis, j, shape[axis])
        update = tirx.Select(is_named, updates[_moved(inside, axis, j)], unit)
        return (reduced if reduction == "mul" else te.sum)(update, axis=j)

    return te.compute(shape, collected, name="scatter_updates")


def _ordered(bb: Any, data: Value, axis: int, count: int, descending: bool) -> Value:
    """Emit the places of the first `count` elements in sorted order."""
    ranks = bb.emit_te(_ranks, data, axis, descending, primfunc_name_hint="sort_ranks")
    return bb.emit_te(_places, ranks, axis, count, primfunc_name_hint="sort_places")


def _taken(bb: Any, data: Value, places: Value, axis: int) -> Value:
    return bb.emit_te(_values, data, places, axis, primfunc_name_hint="sort_values")


def _as(bb: Any, places: Value, dtype: str) -> Value:
    return places if dtype == "int32" else bb.emit(relax.op.astype(places, dtype))


def _topk(bb: Any, call: Value) -> Value:
    data, attrs = call.args[0], call.attrs
    axis = _along(data, attrs.axis)
    extent, k = _shape(data)[axis], int(attrs.k)
    places = _ordered(bb, data, axis, k if 0 < k < extent else extent, bool(attrs.largest))
    if str(attrs.ret_type) == "indices":
        return _as(bb, places, str(attrs.dtype))
    values = _taken(bb, data, places, axis)
    return values if str(attrs.ret_type) == "values" else relax.Tuple([values, _as(bb, places, str(attrs.dtype))])


def _sort(bb: Any, call: Value) -> Value:
    data = call.args[0]
    axis = _along(data, call.attrs.axis)
    places = _ordered(bb, data, axis, _shape(data)[axis], bool(call.attrs.descending))
    return _taken(bb, data, places, axis)


def _argsort(bb: Any, call: Value) -> Value:
    data = call.args[0]
    axis = _along(data, call.attrs.axis)
    places = _ordered(bb, data, axis, _shape(data)[axis], bool(call.attrs.descending))
    return _as(bb, places, str(call.attrs.dtype))


def _scan(bb: Any, call: Value, product: bool) -> Value:
    data, attrs = call.args[0], call.attrs
    if attrs.axis is None:
        data = bb.emit(relax.op.reshape(data, [-1]))
    axis, dtype = _along(data, attrs.axis or 0), str(call.ty.dtype)
    return bb.emit_te(_scanned, data, axis, dtype, bool(attrs.exclusive), product, primfunc_name_hint="scan")


def _scatter(bb: Any, call: Value) -> Value:
    data, indices, updates = call.args
    axis, shape, reduction = _along(data, call.attrs.axis), _shape(data), str(call.attrs.reduction)
    if reduction == "update":
        places = bb.emit_te(_last_updates, indices, shape, axis, primfunc_name_hint="scatter_updates")
        return bb.emit_te(_updated, data, updates, places, axis, primfunc_name_hint="scatter")
    if reduction not in ("add", "mul"):
        return call
    made = bb.emit_te(_collected, indices, updates, shape, axis, reduction, primfunc_name_hint="scatter_updates")
    return bb.emit((relax.op.add if reduction == "add" else relax.op.multiply)(data, made))


def _filled(bb: Any, call: Value) -> Value:
    name, dtype = call.op.name.removeprefix("relax."), str(call.ty.dtype)
    number = {"ones_like": 1, "zeros_like": 0, "ones": 1, "zeros": 0}.get(name)
    given = np.asarray(number) if number is not None else constant_of(call.args[1])
    if given is None:
        return call
    return relax.op.broadcast_to(relax.const(given.reshape(()).astype(dtype), dtype), call.ty.shape)


def _range(_bb: Any, call: Value) -> Value:
    bounds, dtype = [getattr(a, "value", None) for a in call.args], str(call.ty.dtype)  # symbolic ones have no number
    return call if None in bounds else relax.const(np.arange(*bounds, dtype=dtype), dtype)


_FORMS: MappingProxyType[str, Callable[[Any, Value], Value]] = MappingProxyType(
    {
        **dict.fromkeys(
            (f"relax.{n}" for n in ("full", "full_like", "ones", "ones_like", "zeros", "zeros_like")), _filled
        ),
        "relax.arange": _range,
        "relax.scatter_elements": _scatter,
        "relax.topk": _topk,
        "relax.sort": _sort,
        "relax.argsort": _argsort,
        "relax.cumsum": partial(_scan, product=False),
        "relax.cumprod": partial(_scan, product=True),
    }
)
