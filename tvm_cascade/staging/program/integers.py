"""Integer arithmetic of ONNX's dynamic quantization as kernels for CPUs.

`DynamicQuantizeLinear` and `MatMulInteger` arrive as some ten operators each, such as a difference of integers for each
operand. Here a tensor's scale and zero point are one operator, the quantized tensor is another, and a product with its zero
point and scales is a third. Other forms stay as they are.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.passes.integer.expressions import constant, constant_of, dtype_of, name_of, shape_of
from tvm_cascade.passes.stored_constants import constant_data, read_stored
from tvm_cascade.staging.kernels.cpu_integer import (
    PLAIN,
    dynamic_quantize,
    dynamic_range,
    integer_product,
    pack_integers,
)

Value = Any
PRODUCT = "integer_dense"  # attribute of the PrimFunc of a product: packed again for the processor


def with_integer_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace dynamic quantization by calls of PrimFuncs; a module without any is returned as is."""
    functions = {gv: f for gv, f in mod.functions.items() if isinstance(f, relax.Function)}
    definitions = {gv: _definitions(f) for gv, f in functions.items()}
    if not any(_is_integer_product(v) for d in definitions.values() for v in d.values()):
        return mod

    @relax.expr_functor.mutator
    class Rewriter(relax.PyExprMutator):
        def __init__(self, mod: Any) -> None:
            super().__init__(mod)
            self.forms = _Forms({}, self)

        def visit_call_(self, op: Any) -> Any:
            made = self.forms.rewritten(op)
            return super().visit_call_(op) if made is None else made

    rewriter = Rewriter(mod.clone())
    for gv, func in functions.items():
        rewriter.forms = _Forms(definitions[gv], rewriter)
        rewriter.builder_.update_func(gv, rewriter.visit_expr(func))
    return rewriter.builder_.get()


def _definitions(func: Any) -> dict[Any, Value]:
    """Return the expressions of a function's variables."""
    blocks = getattr(func.body, "blocks", ())
    return {binding.var: binding.value for block in blocks for binding in block.bindings}


def _is_integer_product(value: Value) -> bool:
    return name_of(value) == "relax.matmul" and dtype_of(value) == "int32"


class _Forms:
    """Recognizes the expressions of a function and emits the kernels in their place."""

    def __init__(self, definitions: Mapping[Any, Value], rewriter: Any) -> None:
        self._definitions, self._rewriter = definitions, rewriter
        self._ranges: dict[Any, Value] = {}  # by the quantized variable: scale and zero point

    def rewritten(self, call: Value) -> Value | None:
        """Emit the kernel for a call; None for a call that stays."""
        name = name_of(call)
        if name == "relax.divide" and (source := self._scaled(call)) is not None:
            return relax.TupleGetItem(self._range(source), 0)
        if name == "relax.astype" and (source := self._zero_point(call)) is not None:
            return relax.TupleGetItem(self._range(source), 1)
        if name == "relax.quantize":
            return self._quantized(call)
        return self._product(call) if name == "relax.multiply" else None

    def _of(self, value: Value, name: str) -> Value | None:
        """Return the call of operator `name` that computes a value; None for another."""
        while isinstance(value, relax.Var) and value in self._definitions:
            value = self._definitions[value]
        return value if name_of(value) == name else None

    def _both(self, value: Value, name: str) -> tuple[Value, Value] | None:
        """Return the operands of a binary operator."""
        call = self._of(value, name)
        return None if call is None else (call.args[0], call.args[1])

    def _bound(self, value: Value, name: str) -> Value | None:
        """Return x of `maximum(0, max(x))` for "max", likewise for "min"."""
        sides = self._both(value, f"relax.{name}imum")
        for number, extreme in (sides, (sides or ())[::-1]) if sides else ():
            call = self._of(extreme, f"relax.{name}")
            if _is(number, 0) and call is not None and call.attrs.axis is None and not call.attrs.keepdims:
                return call.args[0]
        return None

    def _scaled(self, value: Value) -> Value | None:
        """Return x if a value is the scale of x in 255 steps."""
        sides = self._both(value, "relax.divide")
        width = None if sides is None or not _is(sides[1], 255) else self._both(sides[0], "relax.subtract")
        if width is None:
            return None
        high, low = self._bound(width[0], "max"), self._bound(width[1], "min")
        same = high is not None and low is not None and high.same_as(low) and isinstance(high, relax.Var)
        return high if same and dtype_of(high) == "float32" else None

    def _zero_point(self, value: Value) -> Value | None:
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
        low, source = self._bound(quotient[0], "min"), self._scaled(quotient[1])
        return source if source is not None and low is not None and source.same_as(low) else None

    def _range(self, source: Value) -> Value:
        """Emit scale and zero point of a tensor, once."""
        if source not in self._ranges:
            made = self._emit(dynamic_range, self._visited(source))
            self._ranges[source] = self._rewriter.builder_.emit(made)
        return self._ranges[source]

    def _quantized(self, call: Value) -> Value | None:
        source, scale, zero = call.args[:3]
        ours = self._scaled(scale), self._zero_point(zero)
        if dtype_of(call) != "uint8" or not all(o is not None and o.same_as(source) for o in ours):
            return None
        return self._emit(dynamic_quantize, *(self._visited(v) for v in (source, scale, zero)))

    def _product(self, call: Value) -> Value | None:
        """Emit a product of integers with the factors behind it; None for another product of real numbers."""
        for total, factors in (call.args, call.args[::-1]):
            cast = self._of(total, "relax.astype")
            product = None if cast is None else self._of(cast.args[0], "relax.matmul")
            scales = self._both(factors, "relax.multiply")
            if product is None or scales is None or not _is_integer_product(product):
                continue
            activation, weights = self._activation(product.args[0]), self._weights(product.args[1])
            constants = [(constant_data(s, self._definitions), scales[1 - k]) for k, s in enumerate(scales)]
            known = next(((c, scale) for c, scale in constants if c is not None and shape_of(scale) == ()), None)
            if activation is None or weights is None or known is None or known[0].size not in (1, weights.shape[1]):
                continue
            if shape_of(call) != shape_of(product):
                continue
            wide = np.broadcast_to(known[0].ravel().astype("float32"), (weights.shape[1],))
            packed = pack_integers(weights, PLAIN, shape_of(activation[0])[-2])
            arrays = (packed, weights.astype("int32").sum(0, dtype="int32"), wide)
            given = [self._visited(v) for v in (*activation, known[1])]
            return self._emit(integer_product, *given, *(constant(np.ascontiguousarray(a)) for a in arrays))
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
        """Return constant weights less their zero point, if int8 holds them."""
        stored = read_stored(value, self._definitions)
        if stored is None or stored.scale is not None or stored.floats or stored.values.ndim != 2:
            return None
        centred = stored.values.astype(np.int32) - stored.zero
        fits = centred.min() >= -128 and centred.max() <= 127
        return centred.astype(np.int8) if fits else None

    def _visited(self, value: Value) -> Value:
        return self._rewriter.visit_expr(value)

    def _emit(self, compute: Any, *args: Value) -> Value:
        """Return the call of a TE compute as a PrimFunc."""
        name = compute.__name__
        call = self._rewriter.builder_.call_te(compute, *args, primfunc_name_hint=name)
        if compute is not integer_product:
            return call
        builder, gv = self._rewriter.builder_, call.args[0]
        func = builder.get()[gv].with_attr("op_kind", "dense").with_attr(PRODUCT, True)
        builder.update_func(gv, func)
        return call


def _is(value: Value, number: float) -> bool:
    """Test whether a value is the constant `number`."""
    held = constant_of(value)
    return held is not None and held.ndim == 0 and float(held) == number
