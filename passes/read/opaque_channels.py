"""What operators that stay opaque in substitution graphs do to channels, which lie on the last axis.

`channelwise`: every channel of the result is computed from the same channel of the operands alone, and by the same
function for all of them, as far as constant operands are single numbers. `moves`: its values are those of its operand; the
tuple holds the number with which it fills the rest, or nothing.
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.operators.table import ELEMENTWISE
from tvm_cascade.passes.read import relax_names
from tvm_cascade.passes.read.program import OperatorCall

_REDUCTIONS = ("mean", "sum", "max", "min")


def opaque_channels(call: OperatorCall, rank: int) -> dict[str, Any]:
    """Return the attributes of the operator of a call with a result of `rank` axes; empty where channels may mix."""
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
