"""ONNX's dynamic quantization in Relax: `DynamicQuantizeLinear`, `MatMulInteger` and `ConvInteger` with the factors behind
them, as importers write them out.

    scale = (maximum(0, max(x)) - minimum(0, min(x))) / 255
    zero = uint8(round(clip(0 - minimum(0, min(x)) / scale, 0, 255)))
    q = quantize(x, scale, zero)
    y = float32(product(int32(q) - int32(zero), int32(w) - int32(w_zero))) * (scale * w_scale)

`Dynamic` reads these expressions; kernels for CPUs (`staging.program.integers`) and for cores (`passes.fuse_dynamic_layers`)
replace them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer.expressions import constant_of, dtype_of, name_of, shape_of
from tvm_cascade.passes.integer.untyped import Value, relax
from tvm_cascade.passes.stored_constants import constant_data, read_stored

PRODUCTS = ("relax.matmul", "relax.nn.conv2d")


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product of integers with the factors behind it."""

    call: Value  # of the product: int32
    number: Value  # the activation, uint8
    zero: Value  # its zero point, uint8
    scale: Value  # its scale, float32
    weights: np.ndarray  # less their zero point, int32, in the call's layout
    scales: np.ndarray  # of the weights, float32: one, or one an output
    order: tuple[int, ...] = ()  # of the activation's axes, where the product reads it transposed


class Dynamic:
    """Reader for a function's expressions, given the definitions of variables."""

    def __init__(self, definitions: Mapping[Value, Value]) -> None:
        self._definitions = definitions

    def scaled(self, value: Value) -> Value | None:
        """Return x if a value is the scale of x in 255 steps."""
        sides = self._both(value, "relax.divide")
        width = None if sides is None or not _is(sides[1], 255) else self._both(sides[0], "relax.subtract")
        if width is None:
            return None
        high, low = self._bound(width[0], "max"), self._bound(width[1], "min")
        same = high is not None and low is not None and high.same_as(low) and isinstance(high, relax.Var)
        return high if same and dtype_of(high) == "float32" else None

    def zero_point(self, value: Value) -> Value | None:
        """Return x if a value is the zero point of x."""
        cast = self._of(value, "relax.astype")
        if cast is None or dtype_of(cast) != "uint8":
            return None
        rounded = self._of(cast.args[0], "relax.round")
        clipped = None if rounded is None else self._of(rounded.args[0], "relax.clip")
        if clipped is None or [float(a.value) for a in clipped.args[1:]] != [0, 255]:
            return None
        sides = self._both(clipped.args[0], "relax.subtract")
        quotient = None if sides is None or not _is(sides[0], 0) else self._both(sides[1], "relax.divide")
        if quotient is None:
            return None
        low, source = self._bound(quotient[0], "min"), self.scaled(quotient[1])
        return source if source is not None and low is not None and source.same_as(low) else None

    def quantized(self, value: Value) -> Value | None:
        """Return x if a value is x quantized by its own scale and zero point."""
        call = self._of(value, "relax.quantize")
        if call is None or dtype_of(call) != "uint8":
            return None
        source, scale, zero = call.args[:3]
        ours = self.scaled(scale), self.zero_point(zero)
        return source if all(o is not None and o.same_as(source) for o in ours) else None

    def product(self, value: Value) -> Product | None:
        """Read a product of integers with the factors behind it; None for another product of real numbers."""
        sides = self._both(value, "relax.multiply")
        for total, factors in (sides, sides[::-1]) if sides else ():
            cast, scales = self._of(total, "relax.astype"), self._both(factors, "relax.multiply")
            call = None if cast is None else self._integer(cast.args[0])
            if call is None or scales is None:
                continue
            difference, order = self._moved(call.args[0])
            activation, weights = self._activation(difference), self._weights(call.args[1])
            constants = [(constant_data(s, self._definitions), scales[1 - k]) for k, s in enumerate(scales)]
            known = next(((c, scale) for c, scale in constants if c is not None and shape_of(scale) == ()), None)
            if activation is None or weights is None or known is None or shape_of(value) != shape_of(call):
                continue
            outputs, data = shape_of(call)[-1], known[0]
            if data.dtype != np.float32 or (data.size > 1 and (data.size != outputs or data.shape[-1] != outputs)):
                continue
            return Product(call, *activation, known[1], weights, data.ravel(), order)
        return None

    def definition(self, value: Value) -> Value:
        """Return the expression that computes a value, through aliases."""
        while isinstance(value, relax.Var) and value in self._definitions:
            value = self._definitions[value]
        return value

    def constant(self, value: Value) -> np.ndarray | None:
        """Return a constant's data, also moved or cast."""
        return constant_data(value, self._definitions)

    def _of(self, value: Value, name: str) -> Value | None:
        """Return the call of operator `name` that computes a value; None for another."""
        value = self.definition(value)
        return value if name_of(value) == name else None

    def _both(self, value: Value, name: str) -> tuple[Value, Value] | None:
        """Return the operands of a binary operator."""
        call = self._of(value, name)
        return None if call is None else (call.args[0], call.args[1])

    def _moved(self, value: Value) -> tuple[Value, tuple[int, ...]]:
        """Return a value before its transpose, and the order of axes; the value itself if there is none."""
        call = self._of(value, "relax.permute_dims")
        if call is None or call.attrs.axes is None:
            return value, ()
        return call.args[0], tuple(int(a) for a in call.attrs.axes)

    def _integer(self, value: Value) -> Value | None:
        """Return an integer product's call."""
        call = self.definition(value)
        return call if name_of(call) in PRODUCTS and dtype_of(call) == "int32" else None

    def _bound(self, value: Value, name: str) -> Value | None:
        """Return x of `maximum(0, max(x))` for "max", likewise for "min"."""
        sides = self._both(value, f"relax.{name}imum")
        for number, extreme in (sides, (sides or ())[::-1]) if sides else ():
            call = self._of(extreme, f"relax.{name}")
            if _is(number, 0) and call is not None and call.attrs.axis is None and not call.attrs.keepdims:
                return call.args[0]
        return None

    def _activation(self, value: Value) -> tuple[Value, Value] | None:
        """Return x and its zero point if a value is their difference in int32; x is uint8."""
        sides = self._both(value, "relax.subtract")
        casts = [] if sides is None else [self._of(s, "relax.astype") for s in sides]
        if len(casts) != 2 or None in casts:
            return None
        number, zero = (c.args[0] for c in casts if c is not None)
        kinds = dtype_of(number), dtype_of(zero), shape_of(zero)
        return (number, zero) if kinds == ("uint8", "uint8", ()) and len(shape_of(number)) >= 2 else None

    def _weights(self, value: Value) -> np.ndarray | None:
        """Return constant weights less their zero point, int32."""
        stored = read_stored(value, self._definitions)
        if stored is not None and stored.scale is None and not stored.floats:
            return stored.values.astype(np.int32) - stored.zero
        data = constant_data(value, self._definitions)
        return data if data is not None and data.dtype == np.int32 else None


def _is(value: Value, number: float) -> bool:
    """Test whether a value is the constant `number`."""
    held = constant_of(value)
    return held is not None and held.ndim == 0 and float(held) == number
