"""Legalizations of Relax operators to PrimFuncs for cases in which TVM's own read out of bounds, lose infinities, fail
or call a library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import topi

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.casts import cast
from tvm_cascade.passes.integer.expressions import constant_of, shape_of
from tvm_cascade.passes.max_pools import max_pool
from tvm_cascade.passes.scan import scanned
from tvm_cascade.passes.scatter import scatter_elements, scatter_nd
from tvm_cascade.passes.sorting import argsort, sort, top_k
from tvm_cascade.schedules.tir import dtype_of, relax, te, tirx
from tvm_cascade.schedules.tir.nan import or_nan

ir: Any = tvm.ir  # nodes of TVM get their fields at run time
Legalization = Callable[[Any, Any], Any]


def _take(bb: Any, call: Any) -> Any:
    """Lower `relax.take`: mode "fast" without TVM's warning, and with computed indices made safe.

    Computed indices below zero count from the end, then all are clamped: no input makes firmware read out of bounds.
    """
    axis, (data, indices) = call.attrs.axis, call.args[:2]
    if isinstance(indices, tirx.IntImm):
        return _take_one(bb, call, int(indices))
    if str(call.attrs.mode) != "fast" or axis is None:
        return bb.call_te(topi.take, data, indices, axis, mode=str(call.attrs.mode))

    def take(data: Any, places: Any) -> Any:
        at, rank = int(axis) % len(data.shape), len(places.shape)
        shape = (*data.shape[:at], *places.shape, *data.shape[at + 1 :])
        extent = data.shape[at]

        def at_index(*i: Any) -> Any:
            place = places[tuple(i[at : at + rank])]
            if not isinstance(indices, ir.GenericConst):
                zero, count = tirx.const(0, places.dtype), tirx.const(int(extent), places.dtype)
                place = tirx.Select(place < zero, place + count, place)
                place = tirx.min(tirx.max(place, zero), count - tirx.const(1, places.dtype))
            return data[(*i[:at], place, *i[at + rank :])]

        return te.compute(shape, at_index, name="T_take")

    return bb.call_te(take, data, indices)


def _take_one(bb: Any, call: Any, index: int) -> Any:
    """Lower `relax.take` with a single index: a number, no tensor."""
    shape, mode = shape_of(call.args[0]), str(call.attrs.mode)
    axis = int(call.attrs.axis or 0) % len(shape)
    extent = shape[axis]
    if mode == "clip":
        index = min(max(index, 0), extent - 1)
    elif mode == "wrap":
        index %= extent
    elif not -extent <= index < extent:
        raise GraphError(f"take of the index {index} of {extent}", "correct the index", [call.op.name])
    index %= extent

    def take(data: Any) -> Any:
        rest = [*data.shape[:axis], *data.shape[axis + 1 :]]
        return te.compute(rest, lambda *i: data[(*i[:axis], index, *i[axis:])], name="T_take")

    return bb.call_te(take, call.args[0])


def _extreme(operator: Callable[..., Any], name: str, worst: float) -> Callable[[Any, Any], Any]:
    """Lower a float maximum or minimum over axes, beginning with an infinity.

    TVM's begins with the largest finite number, and would return that number for infinities alone.
    """

    def legalization(bb: Any, call: Any) -> Any:
        axes, keep = call.attrs.axis, bool(call.attrs.keepdims)
        plain = {"max": topi.max, "min": topi.min}[name]
        if not str(call.ty.dtype).startswith("float"):
            return bb.call_te(plain, call.args[0], axes, keep)
        reduced = te.comm_reducer(or_nan(operator), lambda dtype: tirx.const(worst, dtype), name=name)

        def extreme(data: Any) -> Any:
            rank = len(data.shape)
            over = {int(a) % rank: te.reduce_axis((0, data.shape[int(a) % rank])) for a in axes or range(rank)}
            shape = [1 if a in over else d for a, d in enumerate(data.shape) if keep or a not in over]

            def value(*i: Any) -> Any:
                free = iter(i)
                at = [over.get(a, next(free) if keep or a not in over else None) for a in range(rank)]
                return reduced(data(*at), axis=list(over.values()))

            return te.compute(shape, value, name=f"{name}_red")

        return bb.call_te(extreme, call.args[0], primfunc_name_hint=name)

    return legalization


def _of_two(operator: Callable[..., Any], truths: Callable[[Any, Any], Any]) -> Legalization:
    """Return the legalization of the larger or smaller of two operands; for two computed floats, NaN if either is NaN."""

    def legalization(bb: Any, call: Any) -> Any:
        kind, name = str(call.ty.dtype), call.op.name.removeprefix("relax.")
        if not kind.startswith("float"):
            return _of_truths(truths)(bb, call)
        known = [constant_of(a) for a in call.args]
        if any(k is not None and not np.isnan(k).any() and k.ndim == 0 for k in known):
            return _by_tvm(bb, call)  # constants stand in front in what is built (`schedules.tir.nan`)
        return _element_by_element(bb, call, or_nan(operator), name)

    return legalization


def _element_by_element(bb: Any, call: Any, combined: Callable[[Any, Any], Any], name: str) -> Any:
    """Write an operator on two operands, which are broadcast."""
    shape = shape_of(call)

    def compute(a: Any, b: Any) -> Any:
        return te.compute(shape, lambda *i: combined(a(*i), b(*i)), name=name)

    operands = [bb.emit_te(topi.broadcast_to, a, shape) if shape_of(a) != shape else a for a in call.args]
    return bb.call_te(compute, *operands, primfunc_name_hint=name)


def _divided(plain: Callable[..., Any], bb: Any, call: Any) -> Any:
    """Lower a quotient or remainder by constants: TVM evaluates a scalar divisor of 0, and fails.

    Floats are multiplied by an infinity instead, with the same result; for integers nothing is defined.
    """
    divisor = constant_of(call.args[1])
    if divisor is None or divisor.all():
        return _by_tvm(bb, call)  # which writes a scalar into the kernel
    if divisor.dtype.kind in "iub":
        raise GraphError(f"{call.op.name} of integers by the constant 0", "correct the constant", [call.op.name])
    if divisor.ndim:
        return bb.call_te(plain, *call.args)
    with np.errstate(divide="ignore"):
        inverse = np.divide(1, divisor, dtype=divisor.dtype)

    def multiplied(x: Any) -> Any:
        product = topi.multiply(x, tirx.const(float(inverse), x.dtype))
        return product if plain is topi.divide else topi.multiply(product, tirx.const(float("nan"), x.dtype))

    return bb.call_te(multiplied, call.args[0])


def _root_power(power: Callable[[Any], Any], of_infinity: float) -> Callable[[Any], Any]:
    """Return a power by `power`, a function of the square root, with C's values for both zeros and -inf."""

    def computed(x: Any) -> Any:
        kind = dtype_of(x)
        root = power(tirx.abs(tirx.sqrt(x)))  # the root of -0.0 is -0.0, no power is
        return tirx.Select(x == tirx.const(float("-inf"), kind), tirx.const(of_infinity, kind), root)

    return computed


def _inverse(x: Any) -> Any:
    return tirx.const(1.0, dtype_of(x)) / x


_COMMON_POWERS: Mapping[float, Callable[[Any], Any]] = {
    -2.0: lambda x: _inverse(x * x),
    -1.0: _inverse,
    -0.75: _root_power(lambda root: _inverse(root * tirx.sqrt(root)), 0.0),
    -0.5: _root_power(_inverse, 0.0),
    0.25: _root_power(tirx.sqrt, float("inf")),
    0.5: _root_power(lambda root: root, float("inf")),
    0.75: _root_power(lambda root: root * tirx.sqrt(root), float("inf")),
    1.5: _root_power(lambda root: root * root * root, float("inf")),
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: (x * x) * (x * x),
}


def _powers(bb: Any, call: Any) -> Any:
    """Lower `relax.power`: integer powers by repeated multiplication, as TVM has none; floats as TVM does, but for
    common exponents, which take products and roots.
    """
    dtype, exponent = str(call.ty.dtype), constant_of(call.args[1])
    if dtype in ("float32", "float64"):
        form = None if exponent is None or exponent.size != 1 else _COMMON_POWERS.get(float(exponent.flat[0]))
        if form is None or shape_of(call) != shape_of(call.args[0]):
            return _by_tvm(bb, call)
        return bb.call_te(lambda x: te.compute(x.shape, lambda *i: form(x(*i)), name="power"), call.args[0])
    if dtype.startswith(("float", "bfloat")):
        return _by_tvm(bb, call)
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    # beyond it results wrap, or bases are -1, 0, 1
    most = bits if exponent is None else int(np.abs(exponent).max(initial=0))
    product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="product")
    shape = shape_of(call)

    def power(base: Any, by: Any) -> Any:
        j = te.reduce_axis((0, max(min(most, bits + 1), 1)), "j")

        def value(*i: Any) -> Any:
            x, times, one, most_bits = base(*i), by(*i), tirx.const(1, dtype), tirx.const(bits, dtype)
            if not dtype.startswith("u"):
                is_fraction = tirx.all(times < 0, x != one, x != -one)
                x, times = tirx.Select(is_fraction, tirx.const(0, dtype), x), tirx.abs(times)
            times = tirx.Select(times > most_bits, most_bits - (times & one), times).astype("int32")
            return product(tirx.Select(j < times, x, one), axis=j)

        return te.compute(shape, value, name="power")

    operands = [bb.emit_te(topi.broadcast_to, a, shape) if shape_of(a) != shape else a for a in call.args]
    return bb.call_te(power, *operands, primfunc_name_hint="power")


def _adaptive_average(bb: Any, call: Any) -> Any:
    """Lower an adaptive average pool with sizes that do not divide, by constant-size windows with a guard.

    Output `o` of `n` is the mean over elements `[o * size // n, ceil((o + 1) * size / n))`: TVM's form sums over an
    extent that is an expression.
    """
    layout, shape, outputs = str(call.attrs.layout), shape_of(call.args[0]), shape_of(call)
    axes = [k for k, axis in enumerate(layout) if axis in "DHW"]
    if len(layout) != len(shape) or all(shape[a] % outputs[a] == 0 for a in axes):
        plain = {1: topi.nn.adaptive_pool1d, 2: topi.nn.adaptive_pool, 3: topi.nn.adaptive_pool3d}[len(axes)]
        size = [int(d) for d in call.attrs.output_size] if call.attrs.output_size else [shape[a] for a in axes]
        return bb.call_te(plain, call.args[0], size, "avg", layout)

    def bounds(axis: int, o: Any) -> tuple[Any, Any]:
        size, n = shape[axis], outputs[axis]
        return tirx.floordiv(o * size, n), tirx.floordiv((o + 1) * size + n - 1, n)

    def pooled(data: Any) -> Any:
        most = {a: max(-(-(o + 1) * shape[a] // outputs[a]) - o * shape[a] // outputs[a] for o in range(outputs[a]))
                for a in axes}  # fmt: skip
        steps = {a: te.reduce_axis((0, most[a])) for a in axes}
        zero = tirx.const(0, data.dtype)

        def element(*i: Any) -> Any:
            at, inside = list(i), tirx.const(True, "bool")
            for a in axes:
                first, last = bounds(a, i[a])
                at[a] = tirx.min(first + steps[a], tirx.const(shape[a] - 1, "int32"))
                inside = tirx.all(inside, first + steps[a] < last)
            return te.sum(tirx.Select(inside, data(*at), zero), axis=list(steps.values()))

        total = te.compute(outputs, element, "adaptive_pool_sum")

        def mean(*i: Any) -> Any:
            count = tirx.const(1, "int32")
            for a in axes:
                first, last = bounds(a, i[a])
                count = count * (last - first)
            return total(*i) / tirx.Cast(data.dtype, count)

        return te.compute(outputs, mean, "adaptive_pool_avg")

    return bb.call_te(pooled, call.args[0], primfunc_name_hint="adaptive_avg_pool")


def _mean(bb: Any, call: Any) -> Any:
    """Lower a mean: integers stay in the integer type, rounded toward zero. TVM widens them to 64 bits."""
    dtype = str(call.ty.dtype)
    if dtype.startswith("float"):
        return _by_tvm(bb, call)
    total = bb.emit(relax.op.sum(call.args[0], call.attrs.axis, bool(call.attrs.keepdims)))
    count = tirx.const(prod(shape_of(call.args[0])) // prod(shape_of(call)), dtype)
    return bb.call_te(lambda x: te.compute(x.shape, lambda *i: tirx.Div(x(*i), count), name="mean"), total)


def _sign(bb: Any, call: Any) -> Any:
    """Lower a sign: of NaN it is NaN, as in ONNX Runtime and LiteRT. TVM's is 0, as in PyTorch."""
    if not str(call.ty.dtype).startswith("float"):
        return _by_tvm(bb, call)

    def compute(x: Any) -> Any:
        return te.compute(
            x.shape, lambda *i: tirx.Select(tirx.isnan(x(*i)), x(*i), topi.sign(x)(*i)), name="sign_or_nan"
        )

    return bb.call_te(compute, call.args[0], primfunc_name_hint="sign")


def _place_of_extreme(largest: bool) -> Legalization:
    """Lower `argmax` or `argmin`: the first of equal elements, a NaN before any, as in PyTorch and NumPy.

    TVM's finds the last element behind a NaN, and index -1 if no element exceeds its start value.
    """

    def combined(one: Any, other: Any) -> Any:
        stays = one[1] >= other[1] if largest else one[1] <= other[1]
        stays = tirx.any(stays, tirx.isnan(one[1])) if str(one[1].ty.dtype).startswith("float") else stays
        return tuple(tirx.Select(stays, a, b) for a, b in zip(one, other, strict=True))

    def first(place: str, value: str) -> Any:
        worst = tirx.min_value(value) if largest else tirx.max_value(value)
        infinite = tirx.const(-np.inf if largest else np.inf, value) if value.startswith("float") else worst
        return tirx.const(0, place), infinite

    def legalization(bb: Any, call: Any) -> Any:
        name, dtype, keep = call.op.name.removeprefix("relax."), str(call.ty.dtype), bool(call.attrs.keepdims)
        data, shape = call.args[0], shape_of(call)
        if call.attrs.axis is None:
            data = bb.emit_te(topi.reshape, data, (prod(shape_of(data)),))
        axis = int(call.attrs.axis or 0) % len(shape_of(data))
        reduced = te.comm_reducer(combined, first, name=name)

        def compute(x: Any) -> Any:
            k = te.reduce_axis((0, x.shape[axis]), "k")

            def pair(*i: Any) -> Any:
                others = i if call.attrs.axis is not None else ()
                at = (*others[:axis], k, *others[axis + keep :])
                return reduced((k.var.astype("int32"), x(*at)), axis=k)

            places, _ = te.compute(shape, pair, name=f"{name}_pair")
            return te.compute(shape, lambda *i: places(*i).astype(dtype), name=name)

        return bb.call_te(compute, data, primfunc_name_hint=name)

    return legalization


def _of_truths(truths: Callable[[Any, Any], Any]) -> Legalization:
    """Lower an operator on two operands; booleans by `truths`: LLVM has no arithmetic and no order for them."""

    def legalization(bb: Any, call: Any) -> Any:
        if str(call.args[0].ty.dtype) != "bool":
            return _by_tvm(bb, call)
        return _element_by_element(bb, call, truths, call.op.name.removeprefix("relax."))

    return legalization


def _product(bb: Any, call: Any) -> Any:
    """Legalize a product so that 0 times NaN or an infinity is NaN: TVM folds products by the constant 0 to 0."""
    for x, other in (call.args, call.args[::-1]):
        factor = constant_of(other)
        if factor is not None and factor.ndim == 0 and factor.dtype.kind == "f" and factor == 0:
            return bb.call_te(topi.subtract, x, x)
    return _of_truths(tirx.all)(bb, call)


def _by_tvm(bb: Any, call: Any) -> Any:
    return call.op.get_attr("FLegalize")(bb, call)


def _differ(a: Any, b: Any) -> Any:
    return tirx.any(tirx.all(a, tirx.Not(b)), tirx.all(tirx.Not(a), b))


_SPATIAL = "DHW"  # of layouts


def _resized(bb: Any, call: Any) -> Any:
    """Lower a resize with aligned corners to a single element along an axis, which is the first: TVM divides by zero.

    The first of two elements equals it too, so two are made, and the first is taken.
    """
    sizes = [getattr(size, "value", None) for size in call.args[1].values]
    if str(call.attrs.coordinate_transformation_mode) != "align_corners" or 1 not in sizes or None in sizes:
        return _by_tvm(bb, call)
    wider = relax.Call(
        call.op, [call.args[0], relax.ShapeExpr([max(int(size), 2) for size in sizes if size is not None])], call.attrs
    )
    made = bb.emit(_by_tvm(bb, wider))
    ends = list(shape_of(call))
    return bb.call_te(topi.strided_slice, made, [0] * len(ends), ends, [1] * len(ends))


def _sampled(bb: Any, call: Any) -> Any:
    """Lower a sampled grid that reflects between aligned corners on a single-element axis: TVM divides by zero.

    Between two equal elements every place, and every reflection, equals these elements.
    """
    if str(call.attrs.padding_mode) != "reflection" or not call.attrs.align_corners:
        return _by_tvm(bb, call)
    data = call.args[0]
    for axis, extent in enumerate(shape_of(data)):
        if extent == 1 and str(call.attrs.layout)[axis] in _SPATIAL:
            data = bb.emit_te(topi.concatenate, [data, data], axis)
    return _by_tvm(bb, relax.Call(call.op, [data, *call.args[1:]], call.attrs))


# TVM's own forms read out of bounds, lose infinities, fail or call a library
LEGALIZATIONS: Mapping[str, Legalization] = {
    "relax.take": _take,
    "relax.max": _extreme(tirx.max, "max", float("-inf")),
    "relax.min": _extreme(tirx.min, "min", float("inf")),
    **dict.fromkeys((f"relax.nn.adaptive_avg_pool{n}d" for n in (1, 2, 3)), _adaptive_average),
    **dict.fromkeys((f"relax.nn.max_pool{n}d" for n in (1, 2, 3)), max_pool),
    "relax.cumsum": partial(scanned, product=False),
    "relax.cumprod": partial(scanned, product=True),
    "relax.scatter_elements": scatter_elements,
    "relax.scatter_nd": scatter_nd,
    "relax.sort": sort,
    "relax.argsort": argsort,
    "relax.topk": top_k,
    "relax.divide": partial(_divided, topi.divide),
    "relax.floor_divide": partial(_divided, topi.floor_divide),
    "relax.mod": partial(_divided, topi.mod),
    "relax.floor_mod": partial(_divided, topi.floor_mod),
    "relax.power": _powers,
    "relax.argmax": _place_of_extreme(largest=True),
    "relax.argmin": _place_of_extreme(largest=False),
    "relax.mean": _mean,
    "relax.sign": _sign,
    "relax.add": _of_truths(tirx.any),
    "relax.multiply": _product,
    "relax.maximum": _of_two(tirx.max, tirx.any),
    "relax.minimum": _of_two(tirx.min, tirx.all),
    "relax.equal": _of_truths(lambda a, b: tirx.Not(_differ(a, b))),
    "relax.not_equal": _of_truths(_differ),
    "relax.less": _of_truths(lambda a, b: tirx.all(tirx.Not(a), b)),
    "relax.less_equal": _of_truths(lambda a, b: tirx.any(tirx.Not(a), b)),
    "relax.greater": _of_truths(lambda a, b: tirx.all(a, tirx.Not(b))),
    "relax.greater_equal": _of_truths(lambda a, b: tirx.any(a, tirx.Not(b))),
    **dict.fromkeys(("relax.image.resize2d", "relax.image.resize3d"), _resized),
    "relax.image.grid_sample": _sampled,
}


def legalizations(saturating_casts: bool = False) -> Mapping[str, Legalization]:
    """Return the legalizations, with the casts of `passes.casts`."""
    return {**LEGALIZATIONS, "relax.astype": partial(cast, saturated=saturating_casts)}
