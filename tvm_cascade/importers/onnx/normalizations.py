"""Converters for ONNX normalizations that Relax's importer lacks, or computes wrongly in some form.

The importer normalizes a BatchNormalization in training mode by the stored statistics, returns 0 for a
LayerNormalization's statistics, refuses a broadcast scale and an RMSNormalization over every axis, and takes the variance of a
MeanVarianceNormalization as a difference of two large numbers, which is no number for elements that are all alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_cascade.passes.main_rewriting import Value, relax, shape_of

Attributes = dict[str, Any]
_LEAST_DEVIATION = 1e-9  # that the standard adds in a MeanVarianceNormalization


def batch_normalization(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert training mode: normalize by the batch's mean and variance; the running statistics are outputs two and
    three. Before opset 14 several outputs mean this mode.
    """
    outputs = int(attrs["tvm_custom"]["num_outputs"])
    if not attrs.get("training_mode") and outputs == 1:
        return None
    if outputs > 3:
        raise NotImplementedError("saved_mean and saved_var, outputs of training")
    x, scale, bias, *running = inputs[:5]
    rank = len(shape_of(x))
    places = [-1 if axis == 1 else 1 for axis in range(rank)]
    axes = [axis for axis in range(rank) if axis != 1]
    mean, variance, deviation = _statistics(bb, x, axes)
    normal = _divided(bb, deviation, variance, attrs)
    scale, bias = (bb.normalize(relax.op.reshape(v, places)) for v in (scale, bias))
    result = bb.normalize(relax.op.add(bb.normalize(relax.op.multiply(normal, scale)), bias))
    momentum = float(attrs.get("momentum", 0.9))
    kept = []
    for old, new in zip(running, (mean, variance), strict=True):
        parts = _scaled(bb, old, momentum), _scaled(bb, bb.normalize(relax.op.reshape(new, (-1,))), 1 - momentum)
        kept.append(bb.normalize(relax.op.add(*parts)))
    return relax.Tuple([result, *kept])


def layer_normalization(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert a LayerNormalization with outputs Mean and InvStdDev, or with broadcast scale and bias."""
    x, scale, bias = inputs[0], inputs[1], inputs[2]
    axes = _axes(x, attrs)
    normalized = shape_of(x)[axes[0] :]
    plain = all(v is None or shape_of(v) == normalized for v in (scale, bias))
    if plain and int(attrs["tvm_custom"]["num_outputs"]) == 1:
        return None
    mean, variance, deviation = _statistics(bb, x, axes)
    result = relax.op.multiply(_divided(bb, deviation, variance, attrs), scale)
    result = result if bias is None else relax.op.add(bb.normalize(result), bias)
    return relax.Tuple([bb.normalize(result), mean, bb.normalize(relax.op.rsqrt(_biased(bb, variance, attrs)))])


def rms_normalization(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert an RMSNormalization over every axis, or with a broadcast scale."""
    x, scale = inputs[0], inputs[1]
    axes = _axes(x, attrs)
    if shape_of(scale) == shape_of(x)[axes[0] :] and len(axes) < len(shape_of(x)):
        return None
    square = bb.normalize(relax.op.mean(bb.normalize(relax.op.square(x)), axes, keepdims=True))
    return relax.op.multiply(_divided(bb, x, square, attrs), scale)


def lp_normalization(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Divide x by its L1 or L2 norm along an axis; 0 for norm 0."""
    x, axis, order = inputs[0], int(attrs.get("axis", -1)), int(attrs.get("p", 2))
    sizes = relax.op.abs(x) if order == 1 else relax.op.square(x)
    total = bb.normalize(relax.op.sum(bb.normalize(sizes), axis, keepdims=True))
    norm = total if order == 1 else bb.normalize(relax.op.sqrt(total))
    least = relax.const(np.finfo("float32").tiny, str(x.ty.dtype))
    return relax.op.divide(x, bb.normalize(relax.op.maximum(norm, least)))


def mean_variance_normalization(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Subtract the mean over `axes`, and divide by the deviation; 0 for elements that are all alike."""
    _, variance, deviation = _statistics(bb, inputs[0], [int(axis) for axis in attrs.get("axes", (0, 2, 3))])
    return relax.op.divide(deviation, _shifted(bb, bb.normalize(relax.op.sqrt(variance)), _LEAST_DEVIATION))


def _axes(x: Value, attrs: Attributes) -> list[int]:
    """Return a layer's normalized axes: from `axis` to the last."""
    rank = len(shape_of(x))
    return list(range(int(attrs.get("axis", -1)) % rank, rank))


def _statistics(bb: Any, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """Return mean and variance over `axes`, kept with extent 1, and the deviation from the mean."""
    mean = bb.normalize(relax.op.mean(x, list(axes), keepdims=True))
    deviation = bb.normalize(relax.op.subtract(x, mean))
    return (
        mean,
        bb.normalize(relax.op.mean(bb.normalize(relax.op.square(deviation)), list(axes), keepdims=True)),
        deviation,
    )


def _biased(bb: Any, square: Value, attrs: Attributes) -> Value:
    return _shifted(bb, square, attrs.get("epsilon", 1e-5))


def _shifted(bb: Any, value: Value, by: float) -> Value:
    return bb.normalize(relax.op.add(value, relax.const(by, "float32")))


def _divided(bb: Any, value: Value, square: Value, attrs: Attributes) -> Value:
    """Compute `value / sqrt(square + epsilon)`."""
    return bb.normalize(relax.op.divide(value, bb.normalize(relax.op.sqrt(_biased(bb, square, attrs)))))


def _scaled(bb: Any, value: Value, factor: float) -> Value:
    return bb.normalize(relax.op.multiply(value, relax.const(factor, "float32")))
