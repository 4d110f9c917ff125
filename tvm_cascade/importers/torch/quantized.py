"""Converters for Relax's torch importer: quantization operators of PT2E, and operators that the importer gets wrong.

PT2E (`torch.ops.quantized_decomposed`) gives scales and zero points as numbers, per channel as tensors, and clamps to
[quant_min, quant_max]. It leaves biases float: see `biases`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tvm_cascade.importers.nearest import nearest_sources
from tvm_cascade.importers.values import Value, relax, shape_of

Node: TypeAlias = Any  # of torch's graph
Importer: TypeAlias = Any  # Relax's
Converter = Callable[[Node, Importer], Value]


def _emitting(convert: Converter) -> Converter:
    """`convert` with its result emitted by the importer's block builder."""

    def converted(node: Node, importer: Importer) -> Value:
        value = convert(node, importer)
        return value if isinstance(value, relax.Var) else importer.block_builder.emit(value)

    return converted


def _argument(node: Node, index: int, name: str, otherwise: object = None) -> Any:
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, otherwise)


def _stored_type(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _scalars(node: Node) -> tuple[Value, Value]:
    """Scale and zero point of one tensor, as constants."""
    scale, zero = float(_argument(node, 1, "scale")), int(_argument(node, 2, "zero_point"))
    return relax.const(scale, "float32"), relax.const(zero, "int32")


def _quantize(node: Node, importer: Importer) -> Value:
    dtype = _stored_type(_argument(node, 5, "dtype"))
    scale, zero = _scalars(node)
    stored = importer.block_builder.emit(
        relax.op.quantize(importer.env[node.args[0]], scale, zero, axis=0, out_dtype=dtype)
    )
    info = np.iinfo(dtype)
    lo, hi = int(_argument(node, 3, "quant_min", info.min)), int(_argument(node, 4, "quant_max", info.max))
    if (lo, hi) == (info.min, info.max):
        return stored
    return relax.op.clip(stored, float(lo), float(hi))


def _dequantize(node: Node, importer: Importer) -> Value:
    scale, zero = _scalars(node)
    return relax.op.dequantize(importer.env[node.args[0]], scale, zero, axis=0)


def _dequantize_channels(node: Node, importer: Importer) -> Value:
    """Per-channel dequantize. Scales are parameters of the module at this point; zero points are cast to int32."""
    scales, zeros = importer.env[node.args[1]], importer.env[node.args[2]]
    axis = int(_argument(node, 3, "axis"))
    return relax.op.dequantize(importer.env[node.args[0]], scales, relax.op.astype(zeros, "int32"), axis=axis)


def _hardtanh(node: Node, importer: Importer) -> Value:
    """The importer looks for the bounds among keywords only, and takes [-1, 1] otherwise."""
    lo, hi = _argument(node, 1, "min_val", -1.0), _argument(node, 2, "max_val", 1.0)
    return relax.op.clip(importer.env[node.args[0]], float(lo), float(hi))


def _elu(node: Node, importer: Importer) -> Value:
    """The importer leaves out both scales, and so computes another function for SELU."""
    x, bb = importer.env[node.args[0]], importer.block_builder
    alpha, scale, inner = (
        float(_argument(node, i, name, 1.0)) for i, name in enumerate(("alpha", "scale", "input_scale"), 1)
    )
    one, by_alpha = relax.const(1, "float32"), relax.const(-alpha, "float32")
    scaled = x if inner == 1.0 else bb.emit(relax.op.multiply(x, relax.const(inner, "float32")))
    below = bb.emit(relax.op.nn.relu(bb.emit(relax.op.subtract(one, bb.emit(relax.op.exp(scaled))))))
    value = bb.emit(relax.op.add(bb.emit(relax.op.multiply(by_alpha, below)), bb.emit(relax.op.nn.relu(x))))
    return value if scale == 1.0 else relax.op.multiply(value, relax.const(scale, "float32"))


def _hardswish(node: Node, importer: Importer) -> Value:
    """`x * relu6(x + 3) / 6`, in the order that integer lowering looks for."""
    x, bb = importer.env[node.args[0]], importer.block_builder
    three, six = (relax.const(v, "float32") for v in (3, 6))
    gate = bb.emit(relax.op.clip(bb.emit(relax.op.add(x, three)), 0, 6))
    return relax.op.divide(bb.emit(relax.op.multiply(x, gate)), six)


def _upsample_nearest(node: Node, importer: Importer) -> Value:
    """Reads pixel `floor(i / scale)`, as torch does; the importer reads the one nearest to the pixel's centre."""
    x, factors = importer.env[node.args[0]], _scale_factors(node, 2)
    size = _resized(node, importer, factors)
    if size is None:  # by scales that give no whole size
        for axis, factor in enumerate(factors or (), 2):
            places = nearest_sources(
                shape_of(x)[axis], int(node.meta["val"].shape[axis]), factor, "asymmetric", "floor"
            )
            x = importer.block_builder.emit(relax.op.take(x, relax.const(list(places), "int32"), axis))
        return x
    how = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric", "rounding_method": "floor"}
    return relax.op.image.resize2d(x, size, layout="NCHW", **how)


def _upsample_bilinear(node: Node, importer: Importer) -> Value:
    """Refuses scales that give no whole size: the importer would resize by the ratio of the sizes instead."""
    aligned = bool(_argument(node, 2, "align_corners", False))
    size = _resized(node, importer, None if aligned else _scale_factors(node, 3))
    if size is None:
        raise NotImplementedError(
            f"a bilinear interpolate by {_scale_factors(node, 3)}, which gives no whole size: export it with "
            "interpolate(size=...) or recompute_scale_factor=True"
        )
    mode = "align_corners" if aligned else "half_pixel"
    return relax.op.image.resize2d(
        importer.env[node.args[0]], size, layout="NCHW", method="linear", coordinate_transformation_mode=mode
    )


def _scale_factors(node: Node, index: int) -> list[float] | None:
    factors = _argument(node, index, "scale_factors")
    return [float(f) for f in factors] if factors else None


def _resized(node: Node, importer: Importer, factors: list[float] | None) -> tuple[Any, ...] | None:
    """Rows and columns of an interpolation's output; None where `factors` times the input's are not whole."""
    source, size = importer.env[node.args[0]].ty.shape.values[2:], list(node.meta["val"].shape[2:])
    if not all(isinstance(d, int) for d in size):  # symbolic: bound to numbers when the importer is done
        if factors is None or any(f != int(f) for f in factors):
            raise NotImplementedError("an interpolate to a symbolic size: export it with fixed sizes")
        return tuple(d * int(f) for d, f in zip(source, factors, strict=True))
    if factors is not None and any(int(d) * f != n for d, f, n in zip(source, factors, size, strict=True)):
        return None
    return tuple(size)


def _clamp(lower: int | None, upper: int | None) -> Converter:
    """A converter of a clamp with its bounds at those argument positions. The importer clips to infinity, even integers."""

    def convert(node: Node, importer: Importer) -> Value:
        x, bb = importer.env[node.args[0]], importer.block_builder
        lo, hi = (
            None if place is None else _argument(node, place, name) for place, name in ((lower, "min"), (upper, "max"))
        )
        if lo is not None and hi is not None and lo <= hi:
            return relax.op.clip(x, float(lo), float(hi))
        kind = str(x.ty.dtype)
        if (lo, hi, kind) == (0, None, "float32"):
            return relax.op.nn.relu(x)
        for bound, operator in ((lo, relax.op.maximum), (hi, relax.op.minimum)):  # the upper bound last: it wins
            if bound is not None:
                x = bb.emit(operator(x, relax.const(np.array(bound, kind), kind)))
        return x

    return convert


def _avg_pool(node: Node, importer: Importer) -> Value:
    """An average pool with `divisor_override`, which the importer ignores."""
    kernel, stride, padding = (
        _pair(_argument(node, i, n)) for i, n in ((1, "kernel_size"), (2, "stride"), (3, "padding"))
    )
    ceil_mode, counted = bool(_argument(node, 4, "ceil_mode")), bool(_argument(node, 5, "count_include_pad", True))
    divisor = _argument(node, 6, "divisor_override")
    if divisor is not None and ceil_mode:
        raise NotImplementedError("an average pool with divisor_override and ceil_mode")
    window = {"strides": stride or kernel, "padding": padding or [0, 0], "ceil_mode": ceil_mode}
    pooled = importer.block_builder.emit(
        relax.op.nn.avg_pool2d(
            importer.env[node.args[0]], kernel, count_include_pad=counted or divisor is not None, **window
        )
    )
    if divisor is None:
        return pooled
    return relax.op.multiply(pooled, relax.const(kernel[0] * kernel[1] / int(divisor), "float32"))


def _adaptive_average(node: Node, importer: Importer) -> Value:
    """An adaptive average pool as a pool of one fixed window, where output sizes divide the input's."""
    x, size = importer.env[node.args[0]], _pair(_argument(node, 1, "output_size"))
    dims = x.ty.shape.values[-2:]
    whole = all(hasattr(d, "value") and int(d) % n == 0 for d, n in zip(dims, size, strict=True))
    if len(x.ty.shape.values) != 4 or not whole:
        return importer._adaptive_avg_pool2d(node)
    kernel = [int(d) // n for d, n in zip(dims, size, strict=True)]
    return relax.op.nn.avg_pool2d(x, kernel, strides=kernel)


def _pair(value: Any) -> list[int]:
    """An argument that gives one number for both axes, or one for each."""
    numbers = [int(value)] if isinstance(value, int) else [int(v) for v in value or ()]
    return numbers * 2 if len(numbers) == 1 else numbers


def _extreme(operator: Any) -> Converter:
    """A converter of amax or amin, over the given axes or all."""

    def convert(node: Node, importer: Importer) -> Value:
        axes, kept = _argument(node, 1, "dim", ()), bool(_argument(node, 2, "keepdim", False))
        axes = [int(axes)] if isinstance(axes, int) else [int(a) for a in axes]
        return operator(importer.env[node.args[0]], axes or None, kept)

    return convert


def _index(node: Node, importer: Importer) -> Value:
    """`x[i, :, j]`: a gather along the indexed axes, flattened into one. The importer takes indices that are broadcast
    together one after the other, and reads out of bounds by negative ones.

    As in numpy, the gathered axes stand where the indexed ones are if these are neighbours, else first.
    """
    x, bb, given = importer.env[node.args[0]], importer.block_builder, node.args[1]
    places = {axis: importer.env[i] for axis, i in enumerate(given) if i is not None}
    if any(str(i.ty.dtype) == "bool" for i in places.values()):
        raise NotImplementedError("an index by booleans, whose result has no static shape")
    shape, axes = shape_of(x), list(places)
    neighbours = axes[-1] - axes[0] == len(axes) - 1
    rest = [a for a in range(len(shape)) if a not in places]
    at = axes[0] if neighbours else 0
    if not neighbours:
        x = bb.emit(relax.op.permute_dims(x, [*axes, *rest]))
    extents = [shape[a] for a in axes]
    if len(axes) > 1:
        outer = [shape[a] for a in rest]
        x = bb.emit(relax.op.reshape(x, [*outer[:at], prod(extents), *outer[at:]]))
    flat = None
    for extent, index in zip(extents, places.values(), strict=True):
        number = bb.emit(relax.op.astype(index, "int32"))
        inside = bb.emit(relax.op.floor_mod(number, relax.const(extent, "int32")))
        before = None if flat is None else bb.emit(relax.op.multiply(flat, relax.const(extent, "int32")))
        flat = inside if before is None else bb.emit(relax.op.add(before, inside))
    return relax.op.take(x, flat, at)


def _addmm(node: Node, importer: Importer) -> Value:
    """`alpha * a @ b + beta * bias`, with the product as first operand."""
    bias, a, b = (importer.env[n] for n in node.args[:3])
    bb = importer.block_builder
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    product = bb.emit(relax.op.matmul(a, b))
    if alpha != 1:
        product = bb.emit(relax.op.multiply(product, relax.const(alpha, "float32")))
    if beta != 1:
        bias = bb.emit(relax.op.multiply(bias, relax.const(beta, "float32")))
    return relax.op.add(product, bias)


_CONVERTERS: dict[str, Converter] = {
    "quantize_per_tensor.default": _quantize,
    "dequantize_per_tensor.default": _dequantize,
    "dequantize_per_channel.default": _dequantize_channels,
    **dict.fromkeys(("hardtanh.default", "hardtanh_.default"), _hardtanh),
    **dict.fromkeys(("elu.default", "elu_.default"), _elu),
    **dict.fromkeys(("hardswish.default", "hardswish_.default"), _hardswish),
    "addmm.default": _addmm,
    "index.Tensor": _index,
    "amax.default": _extreme(relax.op.max),
    "amin.default": _extreme(relax.op.min),
    "upsample_nearest2d.vec": _upsample_nearest,
    "upsample_bilinear2d.vec": _upsample_bilinear,
    "clamp_min.default": _clamp(1, None),
    "clamp_max.default": _clamp(None, 1),
    "clamp.default": _clamp(1, 2),
    "avg_pool2d.default": _avg_pool,
    "_adaptive_avg_pool2d.default": _adaptive_average,
}
CONVERTERS: Mapping[str, Converter] = MappingProxyType({k: _emitting(c) for k, c in _CONVERTERS.items()})
