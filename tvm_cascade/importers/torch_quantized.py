"""Converters for Relax's torch importer: the operators of PT2E networks, and what the importer gets wrong.

PT2E (`torch.ops.quantized_decomposed`) gives scales and zero points as numbers, per channel as tensors, and clamps to
[quant_min, quant_max]. It leaves biases float: see `biases`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax as _relax

ir: Any = tvm.ir  # nodes of TVM get their fields at run time
relax: Any = _relax
Value: TypeAlias = Any
Node: TypeAlias = Any  # of torch's graph
Importer: TypeAlias = Any  # Relax's
Converter = Callable[[Node, Importer], Value]


def _argument(node: Node, index: int, name: str, otherwise: object = None) -> Any:
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, otherwise)


def _stored_type(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _scalars(node: Node) -> tuple[Value, Value]:
    """Scale and zero point of one tensor, as constants."""
    scale, zero = float(_argument(node, 1, "scale")), int(_argument(node, 2, "zero_point"))
    return relax.const(np.float32(scale)), relax.const(np.int32(zero))


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
    return importer.block_builder.emit(relax.op.clip(stored, float(lo), float(hi)))


def _dequantize(node: Node, importer: Importer) -> Value:
    scale, zero = _scalars(node)
    return importer.block_builder.emit(relax.op.dequantize(importer.env[node.args[0]], scale, zero, axis=0))


def _dequantize_channels(node: Node, importer: Importer) -> Value:
    """Scales are parameters of the module yet; zero points, int64 there, come as int32."""
    scales, zeros = importer.env[node.args[1]], importer.env[node.args[2]]
    axis = int(_argument(node, 3, "axis"))
    return importer.block_builder.emit(
        relax.op.dequantize(importer.env[node.args[0]], scales, relax.op.astype(zeros, "int32"), axis=axis)
    )


def _hardtanh(node: Node, importer: Importer) -> Value:
    """The importer looks for the bounds among keywords only, and takes [-1, 1] otherwise."""
    lo, hi = _argument(node, 1, "min_val", -1.0), _argument(node, 2, "max_val", 1.0)
    return importer.block_builder.emit(relax.op.clip(importer.env[node.args[0]], float(lo), float(hi)))


def _elu(node: Node, importer: Importer) -> Value:
    """The importer leaves out both scales, and so computes another function for SELU."""
    x, bb = importer.env[node.args[0]], importer.block_builder
    alpha, scale, inner = (
        float(_argument(node, i, name, 1.0)) for i, name in enumerate(("alpha", "scale", "input_scale"), 1)
    )
    one, by_alpha = relax.const(np.float32(1)), relax.const(np.float32(-alpha))
    scaled = x if inner == 1.0 else bb.emit(relax.op.multiply(x, relax.const(np.float32(inner))))
    below = bb.emit(relax.op.nn.relu(bb.emit(relax.op.subtract(one, bb.emit(relax.op.exp(scaled))))))
    value = bb.emit(relax.op.add(bb.emit(relax.op.multiply(by_alpha, below)), bb.emit(relax.op.nn.relu(x))))
    return value if scale == 1.0 else bb.emit(relax.op.multiply(value, relax.const(np.float32(scale))))


def _hardswish(node: Node, importer: Importer) -> Value:
    """`x * relu6(x + 3) / 6`, in the order that integer lowering looks for."""
    x, bb = importer.env[node.args[0]], importer.block_builder
    three, six = (relax.const(np.float32(v)) for v in (3, 6))
    gate = bb.emit(relax.op.clip(bb.emit(relax.op.add(x, three)), 0, 6))
    return bb.emit(relax.op.divide(bb.emit(relax.op.multiply(x, gate)), six))


def _upsample_nearest(node: Node, importer: Importer) -> Value:
    """Pixel `floor(i * in / out)`, as torch takes it; the importer takes the one nearest to the middle."""
    x, size = importer.env[node.args[0]], list(node.meta["val"].shape[2:])
    if not all(isinstance(d, int) for d in size):  # symbolic: bound to numbers when the importer is done
        factors = _argument(node, 2, "scale_factors") or ()
        if len(factors) != len(size) or any(f != int(f) for f in factors):
            raise NotImplementedError("an interpolate to a symbolic size: export it with fixed sizes")
        size = [d * int(f) for d, f in zip(x.ty.shape.values[2:], factors, strict=True)]
    return importer.block_builder.emit(
        relax.op.image.resize2d(
            x,
            tuple(size),
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
    )


def _extreme(operator: Any) -> Converter:
    """amax and amin: over axes, all where none is given."""

    def convert(node: Node, importer: Importer) -> Value:
        axes, kept = _argument(node, 1, "dim", ()), bool(_argument(node, 2, "keepdim", False))
        axes = [int(axes)] if isinstance(axes, int) else [int(a) for a in axes]
        return importer.block_builder.emit(operator(importer.env[node.args[0]], axes or None, kept))

    return convert


def _addmm(node: Node, importer: Importer) -> Value:
    """The product first, then its bias."""
    bias, a, b = (importer.env[n] for n in node.args[:3])
    bb = importer.block_builder
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    product = bb.emit(relax.op.matmul(a, b))
    if alpha != 1:
        product = bb.emit(relax.op.multiply(product, relax.const(np.float32(alpha))))
    if beta != 1:
        bias = bb.emit(relax.op.multiply(bias, relax.const(np.float32(beta))))
    return bb.emit(relax.op.add(product, bias))


CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        "quantize_per_tensor.default": _quantize,
        "dequantize_per_tensor.default": _dequantize,
        "dequantize_per_channel.default": _dequantize_channels,
        "hardtanh.default": _hardtanh,
        "hardtanh_.default": _hardtanh,
        "elu.default": _elu,
        "elu_.default": _elu,
        "hardswish.default": _hardswish,
        "hardswish_.default": _hardswish,
        "addmm.default": _addmm,
        "amax.default": _extreme(relax.op.max),
        "amin.default": _extreme(relax.op.min),
        "upsample_nearest2d.vec": _upsample_nearest,
    }
)
