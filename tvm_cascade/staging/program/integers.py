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

from tvm_cascade.passes.dynamic_quantization import Dynamic
from tvm_cascade.passes.integer.expressions import constant, dtype_of, name_of, shape_of
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
        self._dynamic, self._rewriter = Dynamic(definitions), rewriter
        self._ranges: dict[Any, Value] = {}  # by the quantized variable: scale and zero point

    def rewritten(self, call: Value) -> Value | None:
        """Emit the kernel for a call; None for a call that stays."""
        name = name_of(call)
        if name == "relax.divide" and (source := self._dynamic.scaled(call)) is not None:
            return relax.TupleGetItem(self._range(source), 0)
        if name == "relax.astype" and (source := self._dynamic.zero_point(call)) is not None:
            return relax.TupleGetItem(self._range(source), 1)
        if name == "relax.quantize":
            return self._quantized(call)
        return self._product(call) if name == "relax.multiply" else None

    def _range(self, source: Value) -> Value:
        """Emit scale and zero point of a tensor, once."""
        if source not in self._ranges:
            made = self._emit(dynamic_range, self._visited(source))
            self._ranges[source] = self._rewriter.builder_.emit(made)
        return self._ranges[source]

    def _quantized(self, call: Value) -> Value | None:
        if self._dynamic.quantized(call) is None:
            return None
        return self._emit(dynamic_quantize, *(self._visited(v) for v in call.args[:3]))

    def _product(self, call: Value) -> Value | None:
        """Emit an integer product with the factors behind; None for another product of real numbers."""
        made = self._dynamic.product(call)
        if made is None or name_of(made.call) != "relax.matmul" or made.weights.ndim != 2 or made.order:
            return None
        weights = made.weights
        if weights.min() < -128 or weights.max() > 127:
            return None
        packed = pack_integers(weights.astype(np.int8), PLAIN, shape_of(made.number)[-2])
        wide = np.broadcast_to(made.scales, (weights.shape[1],))
        arrays = (packed, weights.sum(0, dtype="int32"), wide)
        given = [self._visited(v) for v in (made.number, made.zero, made.scale)]
        return self._emit(integer_product, *given, *(constant(np.ascontiguousarray(a)) for a in arrays))

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
