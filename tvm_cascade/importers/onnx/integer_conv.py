"""Convert ONNX's ConvInteger: 8-bit integers minus their zero points, convolved into 32-bit sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_cascade.passes.main_rewriting import Value, relax, shape_of

Attributes = dict[str, Any]


def conv_integer(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert a ConvInteger over rows and columns, with explicit pads; padding counts as zero points."""
    x, weights, x_zero, w_zero = inputs[0], inputs[1], inputs[2], inputs[3]
    mode = attrs.get("auto_pad", b"NOTSET")
    if (mode.decode() if isinstance(mode, bytes) else mode) not in ("NOTSET", "VALID") or len(shape_of(x)) != 4:
        raise NotImplementedError("ConvInteger with auto_pad, or over another number of axes than two: write its pads")
    begins, ends = (list(attrs.get("pads", (0, 0, 0, 0)))[at : at + 2] for at in (0, 2))
    if w_zero is not None and shape_of(w_zero):
        w_zero = bb.normalize(relax.op.reshape(w_zero, (-1, 1, 1, 1)))
    if x_zero is not None and shape_of(x_zero):
        x_zero = bb.normalize(relax.op.reshape(x_zero, ()))
    return relax.op.nn.conv2d(
        _less(bb, x, x_zero),
        _less(bb, weights, w_zero),
        strides=list(attrs.get("strides", (1, 1))),
        padding=[*begins, *ends],
        dilation=list(attrs.get("dilations", (1, 1))),
        groups=int(attrs.get("group", 1)),
        out_dtype="int32",
    )


def _less(bb: Any, value: Value, zero: Value | None) -> Value:
    """Return stored integers minus their zero point, as int32."""
    wide = bb.normalize(relax.op.astype(value, "int32"))
    if zero is None:
        return wide
    return bb.normalize(relax.op.subtract(wide, bb.normalize(relax.op.astype(zero, "int32"))))
