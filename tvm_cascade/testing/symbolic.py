"""A module whose shapes are not static, which most passes refuse or leave alone."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax as _relax

relax: Any = _relax  # its nodes get their fields at run time


def symbolic_relu() -> tvm.IRModule:
    """One `relu` of `x`, float32 of shape (n, 4)."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(out)
    return builder.finalize()
