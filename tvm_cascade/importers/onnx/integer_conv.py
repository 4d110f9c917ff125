"""Convert ONNX's ConvInteger: 8-bit integers minus their zero points, convolved into 32-bit sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_cascade.importers.onnx.resize import text
from tvm_cascade.passes.main_rewriting import Value, relax, shape_of

Attributes = dict[str, Any]


def conv_integer(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert a ConvInteger over a signal or an image, with explicit pads or none; padding counts as zero points.

    A signal becomes a row of columns. Raises `NotImplementedError` for three axes.
    """
    x, weights, x_zero, w_zero = inputs[0], inputs[1], inputs[2], inputs[3]
    rank = len(shape_of(x)) - 2
    if rank not in (1, 2):
        raise NotImplementedError(f"ConvInteger over {rank} axes: it takes one or two")
    if w_zero is not None and shape_of(w_zero):
        w_zero = bb.normalize(relax.op.reshape(w_zero, (-1, *(1 for _ in range(rank + 1)))))
    if x_zero is not None and shape_of(x_zero):
        x_zero = bb.normalize(relax.op.reshape(x_zero, ()))
    wide, kernel = _less(bb, x, x_zero), _less(bb, weights, w_zero)
    if rank == 1:
        wide, kernel = (bb.normalize(relax.op.expand_dims(v, [2])) for v in (wide, kernel))
    valid = text(attrs, "auto_pad", "NOTSET") == "VALID"
    pads = [0] * (2 * rank) if valid else list(attrs.get("pads", (0,) * (2 * rank)))
    one, none = [1] * (2 - rank), [0] * (2 - rank)
    sums = relax.op.nn.conv2d(
        wide,
        kernel,
        strides=[*one, *attrs.get("strides", (1,) * rank)],
        padding=[*none, *pads[:rank], *none, *pads[rank:]],
        dilation=[*one, *attrs.get("dilations", (1,) * rank)],
        groups=int(attrs.get("group", 1)),
        out_dtype="int32",
    )
    return sums if rank == 2 else relax.op.squeeze(bb.normalize(sums), [2])


def _less(bb: Any, value: Value, zero: Value | None) -> Value:
    """Return stored integers minus their zero point, as int32."""
    wide = bb.normalize(relax.op.astype(value, "int32"))
    if zero is None:
        return wide
    return bb.normalize(relax.op.subtract(wide, bb.normalize(relax.op.astype(zero, "int32"))))
