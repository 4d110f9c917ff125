"""`QuantizedConv`: an 8-bit convolution as data for the convolution kernels, read from an `OperatorSpec`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tvm_cascade.operators.record import TensorType
from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.schedules.kernels.spec import ONCE, OperatorSpec
from tvm_cascade.schedules.rules.geometry import Sliding
from tvm_cascade.schedules.rules.requantize import Requantize, accumulator_bounds, constant_channels, plan_requantize

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}  # of activations that the kernels know


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An input to a concat along the channels that is fused into a convolution (`schedules.rules.parts`)."""

    channels: int
    table: np.ndarray | None = None  # [256] by which its values are requantized; None: they are not


@dataclass(frozen=True, eq=False)
class QuantizedConv:
    """An 8-bit convolution, NHWC with batch 1.

    `weights` is [kh, kw, inputs, outputs] with the zero point subtracted: int16 if a difference needs nine bits, else
    int8; inputs count per group. A depthwise convolution has 1 input, and channels times `multiplier` outputs.
    """

    window: Sliding
    weights: np.ndarray
    bias: np.ndarray
    input_zero_point: int
    requantize: Requantize
    depthwise: bool
    multiplier: int = 1
    dtype: str = "int8"  # of the input
    out_dtype: str = "int8"
    parts: tuple[Part, ...] = ()  # of the input, where it is a concat that was removed
    groups: int = 1  # 1 for depthwise
    unsigned: bool = False  # whether the file's weights are uint8

    @property
    def non_contiguous(self) -> bool:
        """Return True if neighbouring taps in a kernel row have inputs that are not adjacent in memory."""
        return self.groups > 1 or self.window.dilation[1] > 1

    @property
    def outputs(self) -> int:
        return self.weights.shape[-1]

    def without_values(self) -> QuantizedConv:
        """Return the convolution with zeros for everything that kernels read from tables: weights, biases,
        requantization constants, zero points.

        The general requantization keeps the zero point.
        """
        q = self.requantize
        requantize = replace(q, table=blank(q.table), reason="", zero_point=0 if q.in_lanes else q.zero_point)
        return replace(
            self, weights=blank(self.weights), bias=blank(self.bias), requantize=requantize, input_zero_point=0
        )

    @property
    def form(self) -> Hashable:
        """Return everything that distinguishes this convolution, except the constants' values. For a convolution
        without `parts`.
        """
        given = [getattr(record, f.name) for record in (self, self.requantize) for f in fields(record)]
        return tuple(
            (v.shape, str(v.dtype)) if isinstance(v, np.ndarray) else v for v in given if v is not self.requantize
        )


def blank(array: np.ndarray) -> np.ndarray:
    """Return zeros in an array's shape and type, all in a single element of memory."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def in_four_bits(weights: np.ndarray) -> bool:
    """Return True for weights in [-8, 8)."""
    return bool(weights.min() >= -8 and weights.max() < 8)


_MOST_SIXTEENTH = 1 << 27  # sums below it may be sixteen times as large


def of_four_bits(conv: Any, multiple: int) -> bool:
    """Return True for a layer that kernels of weights of four bits take: its weights are in [-8, 8), its input channels a
    multiple of `multiple`, and sixteen times its sums have 32 bits. `conv` is a `QuantizedConv`, or a `HybridLayer`."""
    plain = not (conv.depthwise or conv.parts or conv.unsigned or conv.window.tile_rows)
    if not plain or conv.weights.shape[2] % multiple or not in_four_bits(conv.weights):
        return False
    most = 2 * 8 * 255 * conv.weights[..., 0].size  # of products and the zero point's part
    start = 0 if conv.bias.dtype.kind == "f" else int(np.abs(conv.bias.astype(np.int64)).max())
    return start + most < _MOST_SIXTEENTH


def read_conv(spec: OperatorSpec) -> QuantizedConv | None:
    """Read a convolution as a `QuantizedConv`; None for any other operator, and for forms unknown to the kernels.

    The kernels know 8-bit tensors with int8 weights and a single zero point; batch 1; padding at the top of at most the
    input's height; no row dilation together with a row table.
    """
    if spec.kind in ("concat_conv2d", "concat_depthwise_conv2d"):
        return _read_parts(spec, spec.kind.removeprefix("concat_"))
    if spec.kind not in CONVOLUTIONS | {"depthwise_conv2d"} or len(spec.constants) != 4:
        return None
    weights, bias, _, _ = spec.constants
    data = spec.inputs[0]
    if not {data.dtype, spec.output.dtype} <= RANGES.keys() or weights.dtype != np.int8 or weights.ndim != 4:
        return None
    if data.shape[0] != 1 or bias.dtype != np.int32:
        return None
    weights = centred(weights, spec.attributes.weight_zero_point or 0)
    depthwise, groups = spec.kind == "depthwise_conv2d", spec.attributes.groups or 1
    if depthwise:
        weights = weights.reshape(*weights.shape[:2], 1, -1)
    elif weights.shape[2] * groups != data.shape[3]:
        return None
    window = Sliding.of(spec, (weights.shape[0], weights.shape[1]))
    if not window.wraps_once or (window.rows_by_table and window.dilated_rows):
        return None
    return _conv(spec, window, weights, depthwise)


def centred(weights: np.ndarray, zero_point: int) -> np.ndarray:
    """Subtract the zero point from int8 weights; return int16 if int8 cannot hold a difference."""
    if weights.dtype == np.int8 and not zero_point:
        return weights
    wide = weights.astype(np.int16) - np.int16(zero_point)
    return wide.astype(np.int8) if wide.min() >= -128 and wide.max() <= 127 else wide


def _read_parts(spec: OperatorSpec, kind: str) -> QuantizedConv | None:
    """Read a convolution fused with a concat of the input: as if the concat existed, then with `parts`.

    The parts' tables are the first constants.
    """
    which, tables, constants = spec.attributes.table_of_part or (), spec.constants[:-4], spec.constants[-4:]
    shapes, dtype = [t.shape for t in spec.inputs], spec.inputs[0].dtype
    alike = len(which) == len(shapes) and len({(len(s), *s[:3]) for s in shapes}) == 1 and len(shapes[0]) == 4
    if not alike or {t.dtype for t in spec.inputs} != {dtype}:
        return None
    parts = tuple(Part(s[3], None if t < 0 else tables[t]) for s, t in zip(shapes, which, strict=True))
    channels = sum(p.channels for p in parts)
    plain = kind in CONVOLUTIONS and constants[0].ndim == 4 and constants[0].shape[2] == channels
    if not (plain or kind == "depthwise_conv2d") or spec.attributes.part_axis != 3:
        return None
    whole = TensorType((*shapes[0][:3], channels), dtype)
    conv = read_conv(replace(spec, kind=kind, inputs=(whole,), constants=constants))
    if conv is None or conv.groups > 1 or conv.window.dilation != (1, 1):
        return None
    return replace(conv, parts=parts)


def _conv(spec: OperatorSpec, window: Sliding, weights: np.ndarray, depthwise: bool) -> QuantizedConv:
    given, dtype, out, outputs = spec.attributes, spec.inputs[0].dtype, spec.output.dtype, spec.output.shape[3]
    zeros = given.input_zero_point or 0, given.output_zero_point or 0
    layer = _Layer(
        id(spec.constants),
        spec.constants,
        weights,
        dtype,
        outputs,
        zeros,
        given.clamp or RANGES[out],
        given.rounding == ONCE,
    )
    weights, bias, requantize = _requantized(layer)
    times = outputs // window.channels if depthwise else 1
    groups = 1 if depthwise else given.groups or 1
    conv = QuantizedConv(window, weights, bias, zeros[0], requantize, depthwise, times, dtype, out, groups=groups)
    return replace(conv, unsigned=given.weight_type == "uint8")


@dataclass(frozen=True, slots=True)
class _Layer:
    """The facts behind a layer's requantization. Equal layers have identical constants, not merely equal ones."""

    identity: int  # of `constants`
    constants: tuple[np.ndarray, ...] = field(compare=False)
    weights: np.ndarray = field(compare=False)  # of four axes, the zero point subtracted
    dtype: str  # of the input
    outputs: int
    zero_points: tuple[int, int]  # of input and output
    clamp: tuple[int, ...]
    even: bool  # rounds once, half to even


@lru_cache(maxsize=256)  # kernels of a row, of some pixels and of several rows share a layer
def _requantized(layer: _Layer) -> tuple[np.ndarray, np.ndarray, Requantize]:
    """Return a layer's weights, bias and requantization, with constant-output channels replaced by zero weights."""
    weights, outputs, (zero_in, zero_out) = layer.weights, layer.outputs, layer.zero_points
    _, bias, *ratio = layer.constants
    lo, hi = layer.clamp
    bias, (m, s) = bias.ravel(), (np.broadcast_to(a.ravel(), (outputs,)).astype(np.int64) for a in ratio)
    bounds = accumulator_bounds(weights.reshape(-1, outputs), bias, zero_in, RANGES[layer.dtype])
    constant, value = constant_channels(m, s, *bounds, zero_out, (lo, hi), layer.even)
    if constant.any():
        # v is the accumulator 4 (v - zo) under the multiplier 2^30 and the shift -1, the short form: (2 (v - zo) + 1) >> 1.
        # 2^30 + 1 gives the same, rounded once, and no accumulator lies halfway
        weights = np.where(constant, 0, weights).astype(weights.dtype)
        bias = np.where(constant, 4 * (value - zero_out), bias).astype(bias.dtype)
        m, s = np.where(constant, 1 << 30 | layer.even, m), np.where(constant, -1, s)
        bounds = accumulator_bounds(weights.reshape(-1, outputs), bias, zero_in, RANGES[layer.dtype])
        if layer.even and not plan_requantize(m, s, *bounds, zero_out, (lo, hi), True).short:
            m = np.where(constant, 1 << 30, m)  # others lie halfway: 4 (v - zo) is exact in the narrow form
    return weights, bias, plan_requantize(m, s, *bounds, zero_out, (lo, hi), layer.even)
