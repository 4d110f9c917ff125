"""The effect of operators that stay opaque in substitution graphs on channels, which lie on the last axis.

`channelwise`: every result channel is computed from the same channel of the operands alone, and by the same function,
as far as constant operands are single numbers. `moves`: values are copied from the operand; the tuple holds the number
that fills the rest, or nothing. `table`: the stored result for each value of a constant channel in the tensor read by
the island (`constant_tables`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_cascade.operators.table import ELEMENTWISE
from tvm_cascade.passes.islands.reader import Operators
from tvm_cascade.passes.read import relax_names
from tvm_cascade.passes.read.constant_tables import constant_table
from tvm_cascade.passes.read.program import OperatorCall, Program

_REDUCTIONS = ("mean", "sum", "max", "min")


@dataclass(frozen=True, slots=True)
class OpaqueChannels:
    """Describes opaque operators, also for networks with operators on `real` numbers, as in ONNX and PyTorch."""

    real: bool

    def of(self, program: Program, call: OperatorCall, operators: Operators) -> tuple[dict[str, Any], Any]:
        """Return an operator's attributes, and its table's stored tensor; None without a table."""
        rank = len(program.values[call.outputs[0]].shape)
        told = _channels(call, rank)
        operator = operators.operator(call.expr) if call.name == "quantize" else None
        found = None if operator is None else constant_table(operator, self.real)
        return (told, None) if found is None else ({**told, "table": found[1]}, found[0])


def _channels(call: OperatorCall, rank: int) -> dict[str, Any]:
    attrs = call.expr.attrs
    if call.name == "astype":
        return {"channelwise": True, "moves": ()}
    if call.name == "nn.pad" and str(attrs.pad_mode) == "constant":
        return {"channelwise": not any(int(w) for w in attrs.pad_width[-2:]), "moves": (float(attrs.pad_value),)}
    if call.name in _REDUCTIONS:
        axes = None if attrs.axis is None else {int(a) for a in attrs.axis}
        reduced = rank if bool(attrs.keepdims) or axes is None else rank + len(axes)
        return {"channelwise": True} if axes is not None and not axes & {-1, reduced - 1} else {}
    if call.name == "image.resize2d":
        return {"channelwise": True} if str(attrs.layout) == "NHWC" else {}
    elementwise = relax_names.table_kind(call.last_name) in ELEMENTWISE
    return {"channelwise": True} if elementwise and call.last_name != "batch_norm" else {}
