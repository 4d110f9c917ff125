"""Operators that can sum up their input as its rows come, so that a cascade may end in them and the last map never
exists.

A global mean or average pool sums every channel over the map; a fully connected layer behind a flatten adds what each
row, or pixel, contributes to every unit. The sums stand in an accumulator that lives in the arena while the segment
runs.

What the emitter supplies for such an operator is one kernel that runs once for each step of the *input* and knows
from its row (and first column) whether it is the first, which clears the accumulator, or the last, which writes the
output:

    kernel(x, x_slot, x_height, constants..., accumulator, out, y[, x0, x1])
"""

from __future__ import annotations

from tvm_cascade.graph import ITEM_BYTES, Graph, Op

SUMMING = ("mean", "avg_pool2d", "dense")


def accumulator_bytes(graph: Graph, op: Op) -> int:
    """Bytes of accumulator in which `op` can sum up its only input; 0 where it cannot."""
    if len(op.inputs) != 1 or len(op.outputs) != 1:
        return 0
    out = graph.tensors[op.outputs[0]]
    whole = [w is None or w.stride == 0 for w in op.windows]
    if op.kind not in SUMMING or not all(whole) or out.rows != 1 or out.columns != 1:
        return 0
    return out.bytes // ITEM_BYTES[out.dtype] * 4
