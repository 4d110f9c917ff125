"""Compute elementwise 64-bit integer operators with 32-bit indices. TVM's own use 64-bit indices, which its passes
narrow only without 64-bit tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tvm_cascade.passes.integer.emitter import Operand
from tvm_cascade.passes.integer.fixed_point import i64, te_broadcast
from tvm_cascade.passes.integer.task import Task, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, tirx

_OPERATORS: Mapping[str, Callable[..., Scalar]] = {
    "abs": lambda x: tirx.Select(x < i64(0), i64(0) - x, x),
    "add": lambda x, y: x + y,
    "astype": lambda x: x.astype("int64"),
    "maximum": tirx.max,
    "minimum": tirx.min,
    "multiply": lambda x, y: x * y,
    "negative": lambda x: i64(0) - x,
    "subtract": lambda x, y: x - y,
}


@lowers(*_OPERATORS, results="int64")
def lower_wide(task: Task) -> Value | None:
    """Lower an integer operator, or an integer cast; return None, left to Relax, for any other."""
    name = task.operator.kind
    values = [task.operator.value(k) for k in range(len(task.operator.operands))]
    integers = all(np.dtype(v.dtype).kind in "iu" for v in values)
    if not integers or all(v.is_constant for v in values) or any(v.offset for v in values):
        return None
    operands: list[Operand] = [v.operand for v in values]

    def element(index: tuple[Index, ...], *given: Tensor) -> Scalar:
        return _OPERATORS[name](*(te_broadcast(x, index) for x in given))

    return task.elementwise("cast" if name == "astype" else name, element, operands)
