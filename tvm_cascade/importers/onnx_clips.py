"""Clip as Relax's own clip.

The importer writes Clip as two TIR functions, and looks at run time whether a constant bound is a number: nothing
that follows sees an activation in that.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax as _relax
from tvm.relax.expr_functor import PyExprMutator, mutator

ir: Any = tvm.ir  # nodes of TVM get their fields at run time
relax: Any = _relax
Value: TypeAlias = Any


def read_clips(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose float `maximum` and `minimum` with constant scalars are `relu` and `clip`; others stay."""
    untyped: Any = mod
    main = untyped["main"]
    definitions = {b.var: b.value for block in main.body.blocks for b in block.bindings}

    def bound(call: Value, kind: str) -> tuple[Value, float] | None:
        """The operand and the number of `kind(operand, number)`."""
        call = definitions.get(call, call)
        if not isinstance(call, relax.Call) or str(getattr(call.op, "name", "")) != "relax.call_tir":
            return None
        operands = list(call.args[1].fields)
        if call.args[0].name_hint.rstrip("0123456789") != kind or len(operands) != 2:
            return None
        number = _number(operands[1], definitions)
        return None if number is None or str(call.ty.dtype) != "float32" else (operands[0], number)

    @mutator
    class Reading(PyExprMutator):
        def visit_call_(self, call: Value) -> Value:  # type: ignore[override]
            above = bound(call, "minimum")
            below = bound(above[0], "maximum") if above is not None else bound(call, "maximum")
            if below is None or not np.isfinite(below[1]):
                return call
            if above is None:
                return relax.op.nn.relu(below[0]) if below[1] == 0 else call
            ordered = np.isfinite(above[1]) and below[1] <= above[1]  # else ONNX has the upper bound everywhere
            return relax.op.clip(below[0], below[1], above[1]) if ordered else call

    mod = mod.clone()
    mod["main"] = Reading().visit_expr(main)
    return relax.transform.DeadCodeElimination()(mod)


def _number(value: Value, definitions: dict[Value, Value]) -> float | None:
    """A constant scalar, as it is, dequantized, or where the importer asks whether it is a number."""
    value = definitions.get(value, value)
    if isinstance(value, ir.GenericConst):
        data = value.value.numpy()
        return float(data.reshape(-1)[0]) if data.size == 1 else None
    name = str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""
    if name == "relax.dequantize":
        stored, scale, zero = (_number(a, definitions) for a in value.args)
        if stored is None or scale is None or zero is None:
            return None
        return float(np.float32(stored - zero) * np.float32(scale))
    if name != "relax.where":
        return None
    asked = definitions.get(value.args[0], value.args[0])
    if str(getattr(getattr(asked, "op", None), "name", "")) != "relax.isnan":
        return None
    replacement, number = (_number(a, definitions) for a in value.args[1:3])
    return replacement if number is None or np.isnan(number) else number
