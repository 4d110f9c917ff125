"""Converters for ONNX operators on single numbers: shifts, bit casts, powers, remainders, and operators on booleans.

A shift by the type's width or more, or by a negative count, leaves only the sign fill; C and LLVM leave the result
undefined. Relax has no bit cast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import topi

from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax, shape_of

Attributes = dict[str, Any]


def bit_shift(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert BitShift by any count; leave constant counts within the type's width to the importer."""
    value, places = inputs[:2]
    dtype = np.dtype(str(value.ty.dtype))
    width = 8 * dtype.itemsize
    known = constant_of(places)
    if known is not None and ((known >= 0) & (known < width)).all():
        return None
    if constant_of(value) is not None and known is not None:
        value = bb.normalize(relax.op.add(value, constant(np.zeros((), dtype))))  # the importer folds, by numpy's rules
    fits = bb.normalize(relax.op.less(places, constant(np.array(width, dtype))))
    if dtype.kind == "i":
        positive = bb.normalize(relax.op.greater_equal(places, constant(np.array(0, dtype))))
        fits = bb.normalize(relax.op.logical_and(fits, positive))
    left = attrs.get("direction") == b"LEFT"
    sign = dtype.kind == "i" and not left
    most = constant(np.array(width - 1 if sign else 0, dtype))
    by = bb.normalize(relax.op.where(fits, places, most))
    shifted = bb.normalize((relax.op.left_shift if left else relax.op.right_shift)(value, by))
    return shifted if sign else relax.op.where(fits, shifted, constant(np.array(0, dtype)))


def bit_cast(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Reinterpret bits as another type with the same width."""
    target = np.dtype(helper.tensor_dtype_to_np_dtype(int(attrs["to"])))
    source = str(inputs[0].ty.dtype)
    if int(attrs["to"]) == TensorProto.BOOL or source == "bool":
        return relax.op.astype(inputs[0], target.name)
    known = constant_of(inputs[0])
    if known is not None:
        return constant(np.ascontiguousarray(known).view(target))
    return bb.call_te(topi.reinterpret, inputs[0], target.name, primfunc_name_hint="bit_cast")


def remainder(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert Mod for floats with the divisor's sign, like numpy; the importer returns NaN for infinite divisors."""
    x, y = inputs
    if attrs.get("fmod") or not str(x.ty.dtype).startswith("float") or all(constant_of(v) is not None for v in inputs):
        return None
    left = bb.normalize(relax.op.mod(x, y))  # with the sign of x
    zero = constant(np.array(0, str(x.ty.dtype)))
    below = [bb.normalize(relax.op.less(v, zero)) for v in (left, y)]
    other = bb.normalize(relax.op.logical_xor(*below))
    other = bb.normalize(relax.op.logical_and(other, bb.normalize(relax.op.not_equal(left, zero))))
    return relax.op.where(other, bb.normalize(relax.op.add(left, y)), left)


def power(bb: Any, inputs: Sequence[Value], _attrs: Attributes) -> Value | None:
    """Convert Pow: cast a number of another type for a float base; square and multiply integers with constant
    exponents; compute an integer base with a float exponent in floats.
    """
    x, by, kind = inputs[0], inputs[1], str(inputs[0].ty.dtype)
    exponent, base = constant_of(by), constant_of(x)
    if exponent is not None and base is not None:
        return constant(np.power(base, exponent).astype(kind))
    if kind.startswith("float"):
        if str(by.ty.dtype) == kind:
            return None
        return relax.op.power(
            x, bb.normalize(relax.op.astype(by, kind)) if exponent is None else constant(exponent.astype(kind))
        )
    if str(by.ty.dtype).startswith("float"):
        real = bb.normalize(relax.op.astype(x, str(by.ty.dtype)))
        return relax.op.astype(bb.normalize(relax.op.power(real, by)), kind)
    if exponent is None or (exponent < 0).any():
        by = by if str(by.ty.dtype) == kind else bb.normalize(relax.op.astype(by, kind))
        return relax.op.power(x, by)
    one = constant(np.array(1, kind))
    result, factor = one, x
    for bit in range(int(exponent.max(initial=0)).bit_length()):
        factor = bb.normalize(relax.op.multiply(factor, factor)) if bit else factor
        used = relax.const(exponent >> bit & 1, "bool")
        result = bb.normalize(relax.op.multiply(result, bb.normalize(relax.op.where(used, factor, one))))
    return relax.op.broadcast_to(result, np.broadcast_shapes(shape_of(x), exponent.shape)) if result is one else result


def sloped(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert PRelu before opset 7, with a single slope per channel: the importer assumes one per column."""
    slope = inputs[1]
    several = attrs["tvm_custom"]["opset"] < 7 and len(shape_of(slope)) == 1 and shape_of(slope)[0] > 1
    return relax.op.nn.prelu(inputs[0], slope, 1) if several else None


def of_truths(operator: Callable[..., Value]) -> Callable[[Any, Sequence[Value], Attributes], Value | None]:
    """Return a converter for a boolean maximum or minimum over constant axes; TVM supports only numbers."""

    def convert(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
        if str(inputs[0].ty.dtype) != "bool":
            return None
        over = _reduced_axes(inputs, attrs)
        if over is None and attrs.get("noop_with_empty_axes"):
            return inputs[0]
        numbers = bb.normalize(relax.op.astype(inputs[0], "int8"))
        return relax.op.astype(bb.normalize(operator(numbers, over, bool(attrs.get("keepdims", 1)))), "bool")

    return convert


def _reduced_axes(inputs: Sequence[Value], attrs: Attributes) -> list[int] | None:
    """Return a reduction's axes, None if not given. Raises `NotImplementedError` for computed axes."""
    given = inputs[1] if len(inputs) > 1 else None
    axes = attrs.get("axes") if given is None else constant_of(given)
    if given is not None and axes is None:
        raise NotImplementedError("axes that the network computes: make them a constant")
    return None if axes is None or not len(axes) else [int(a) for a in axes]


def beyond_threshold(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert ThresholdedRelu to a choice: TVM's importer multiplies by 0, and infinities become NaN."""
    x, least = inputs[0], attrs.get("alpha", 1.0)
    is_kept = bb.normalize(relax.op.greater(x, relax.const(least, x.ty.dtype)))
    return relax.op.where(is_kept, x, relax.const(0, x.ty.dtype))


def log_sum_exp(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Reduce to the logarithm of summed powers. TVM's importer subtracts an infinite maximum from itself."""
    of_floats(bb, inputs, attrs)
    x, over = inputs[0], _reduced_axes(inputs, attrs)
    if over is None and attrs.get("noop_with_empty_axes"):
        return None
    most = bb.normalize(relax.op.max(x, over, True))
    most = bb.normalize(relax.op.where(relax.op.isinf(most), relax.op.zeros_like(most), most))
    total = relax.op.sum(relax.op.exp(bb.normalize(relax.op.subtract(x, most))), over, bool(attrs.get("keepdims", 1)))
    most = most if attrs.get("keepdims", 1) else bb.normalize(relax.op.squeeze(most, over))
    return relax.op.add(relax.op.log(bb.normalize(total)), most)


def over_no_axes(
    step: Callable[[Value], Value], floats: bool = False
) -> Callable[[Any, Sequence[Value], Attributes], Value | None]:
    """Return a converter for a reduction over an empty set of axes, of which `step` is left; TVM's importer returns the input.

    With `floats` refuse integers, as `of_floats`.
    """

    def convert(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
        if floats:
            of_floats(bb, inputs, attrs)
        over_none = attrs.get("noop_with_empty_axes") and _reduced_axes(inputs, attrs) is None
        return step(inputs[0]) if over_none else None

    return convert


def of_floats(_bb: Any, inputs: Sequence[Value], _attrs: Attributes) -> Value | None:
    """Refuse integers, for which the references round in different places; leave floats to the importer."""
    if not str(inputs[0].ty.dtype).startswith(("float", "bfloat")):
        raise NotImplementedError(f"{inputs[0].ty.dtype}: put a Cast to float32 in front of it")
    return None


_INTEGERS = {7: "int64", 6: "int32", 3: "int8", 5: "int16", 2: "uint8", 4: "uint16"}  # codes of ONNX
_OF_FLOATS = ("float16", "float32", "float64")


def cast_to_integers(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Cast floats to integers by truncation, beyond the range as `passes.casts`.

    A cast from stored 8-bit integers to floats is not folded. TVM's importer goes through 64-bit integers, without kernels.
    """
    to = _INTEGERS.get(int(attrs["to"]))
    dtype = str(getattr(getattr(inputs[0], "ty", None), "dtype", ""))
    if dtype in ("int8", "uint8") and int(attrs["to"]) == TensorProto.FLOAT and constant_of(inputs[0]) is not None:
        return relax.op.astype(inputs[0], "float32")  # which may stay small in flash: `passes.stored_constants`
    if to is None or dtype not in _OF_FLOATS or constant_of(inputs[0]) is not None:
        return None
    return relax.op.astype(inputs[0], to)
