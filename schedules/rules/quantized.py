"""What a lowered integer convolution computes, read from its PrimFunc's attributes and constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.rules.geometry import Sliding
from tvm_cascade.schedules.rules.requantize import Requantize, accumulator_bounds, constant_channels, plan_requantize

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}  # of activations that the kernels know


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a concat along the channels that a convolution reads where it lies."""

    channels: int
    table: np.ndarray | None = None  # 256 values that requantize it


@dataclass(frozen=True, eq=False)
class QuantizedConv:
    """An 8-bit convolution, NHWC with one batch.

    `weights` is [kh, kw, inputs, outputs], less their zero point: int8 with int8 activations, int16 with uint8 ones;
    inputs are those of one group. Of a depthwise one inputs is 1, outputs channels times `multiplier`.
    """

    window: Sliding
    weights: np.ndarray
    bias: np.ndarray
    input_zero_point: int
    requantize: Requantize
    depthwise: bool
    multiplier: int = 1
    dtype: str = "int8"  # of activations
    parts: tuple[Part, ...] = ()  # of the input, where it is a concat that does not exist
    groups: int = 1  # of one that is not depthwise

    @property
    def apart(self) -> bool:
        """Whether something lies between the inputs of neighbouring taps of a kernel row."""
        return self.groups > 1 or self.window.dilation[1] > 1

    @property
    def outputs(self) -> int:
        return self.weights.shape[-1]


def parameters(func: Any) -> list[Any]:
    """The tensors of a PrimFunc: activations, constants, outputs."""
    return list(func.params)


def shape_of(param: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in param.ty.shape)


def dtype_of(param: Any) -> str:
    dtype = param.ty.dtype
    return str(getattr(dtype, "dtype", dtype))


def _ints(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value]
    try:
        return [int(v) for v in value]
    except TypeError:
        return [int(value)]


def attribute(func: PrimFunc, name: str, default: Any = None) -> Any:
    attrs = func.attrs
    return attrs[name] if attrs is not None and name in attrs else default


def integers(func: PrimFunc, name: str, default: tuple[int, ...]) -> list[int]:
    """A list-valued (or scalar) integer attribute."""
    value = attribute(func, name)
    return list(default) if value is None else _ints(value)


def read_conv(func: PrimFunc, constants: tuple[np.ndarray, ...]) -> QuantizedConv | None:
    """The convolution `func` computes, None where it is another operator or a kind the kernels do not know.

    Known are int8 tensors with int8 weights of zero point 0, and uint8 tensors with uint8 weights of one zero point; one
    batch, padding within the input's height, no dilation where rows are located by a table.
    """
    kind = str(attribute(func, "op_kind", ""))
    if kind in ("concat_conv2d", "concat_depthwise_conv2d"):
        return _read_parts(func, constants, kind.removeprefix("concat_"))
    if kind not in ("conv2d", "depthwise_conv2d") or len(constants) != 4:
        return None
    weights, bias, multiplier, shift = constants
    data, out = parameters(func)[0], parameters(func)[-1]
    dtype, zeros = dtype_of(data), set(integers(func, "weight_zero_point", (0,)))
    if dtype not in RANGES or dtype_of(out) != dtype or str(weights.dtype) != dtype or weights.ndim != 4:
        return None
    if len(zeros) != 1 or (dtype == "int8" and zeros != {0}):
        return None
    if dtype == "uint8":
        weights = weights.astype(np.int16) - np.int16(zeros.pop())
    if shape_of(data)[0] != 1 or bias.dtype != np.int32:
        return None
    depthwise = kind == "depthwise_conv2d"
    groups = integers(func, "groups", (1,))[0]
    channels = shape_of(data)[3]
    if depthwise:
        weights = weights.reshape(*weights.shape[:2], 1, -1)
    elif weights.shape[2] * groups != channels:
        return None
    conv = _conv(func, weights, bias, multiplier, shift, depthwise)
    g = conv.window
    return conv if g.wraps_once and (g.dilation == (1, 1) or not g.located) else None


def _read_parts(func: PrimFunc, constants: tuple[np.ndarray, ...], kind: str) -> QuantizedConv | None:
    """The convolution of a concat along the channels, read as if that existed; tables come first of the constants."""
    count, which = integers(func, "num_activations", (1,))[0], integers(func, "table_of_part", ())
    data, out, tables = parameters(func)[:count], parameters(func)[-1], constants[:-4]
    shapes, dtype = [shape_of(p) for p in data], dtype_of(data[0])
    alike = len(which) == count and len({(len(s), *s[:3]) for s in shapes}) == 1 and len(shapes[0]) == 4
    if not alike or {dtype_of(p) for p in data} != {dtype}:
        return None
    parts = tuple(Part(s[3], None if t < 0 else tables[t]) for s, t in zip(shapes, which, strict=True))
    channels = sum(p.channels for p in parts)
    plain = kind == "conv2d" and constants[-4].ndim == 4 and constants[-4].shape[2] == channels
    if not (plain or kind == "depthwise_conv2d") or integers(func, "part_axis", (-1,)) != [3]:
        return None
    shapes = [(*shapes[0][:3], channels), *(c.shape for c in constants[-4:]), shape_of(out)]
    types = [dtype, *(str(c.dtype) for c in constants[-4:]), dtype_of(out)]
    params = [tirx.decl_buffer(s, d, f"p{k}") for k, (s, d) in enumerate(zip(shapes, types, strict=True))]
    attrs = {k: v for k, v in func.attrs.items() if k != "global_symbol"} | {"op_kind": kind, "num_activations": 1}
    made = tvm.ir.make_node("ir.DictAttrs", **attrs)
    conv = read_conv(PrimFunc(params, tirx.Evaluate(tirx.const(0, "int32")), attrs=made), constants[-4:])
    if conv is None or conv.groups > 1 or conv.window.dilation != (1, 1):
        return None
    return replace(conv, parts=parts)


def _conv(
    func: PrimFunc,
    weights: np.ndarray,
    bias: np.ndarray,
    multiplier: np.ndarray,
    shift: np.ndarray,
    depthwise: bool,
) -> QuantizedConv:
    _, height, width, channels = shape_of(parameters(func)[0])
    _, out_height, out_width, outputs = shape_of(parameters(func)[-1])
    strides, padding = integers(func, "strides", (1, 1)), integers(func, "padding", (0, 0, 0, 0))
    dilation = integers(func, "dilation", (1, 1))
    window = Sliding(
        height,
        width,
        channels,
        out_height,
        out_width,
        (weights.shape[0], weights.shape[1]),
        (strides[0], strides[1]),
        (padding[0], padding[1]),
        (dilation[0], dilation[1]),
        bool(attribute(func, "located", 0)),
        integers(func, "step_rows", (0,))[0],
        integers(func, "joined_rows", (1,))[0],
    )
    zero_in = integers(func, "input_zero_point", (0,))[0]
    zero_out = integers(func, "output_zero_point", (0,))[0]
    dtype = dtype_of(parameters(func)[0])
    clamp = integers(func, "clamp", RANGES[dtype])
    m, s = (np.broadcast_to(a.ravel(), (outputs,)).astype(np.int64) for a in (multiplier, shift))
    weights, bias, m, s = _settle(weights, bias.ravel(), m, s, zero_in, zero_out, (clamp[0], clamp[1]), dtype)
    low, high = accumulator_bounds(weights.reshape(-1, outputs), bias, zero_in, RANGES[dtype])
    requantize = plan_requantize(m, s, low, high, zero_out, (clamp[0], clamp[1]))
    times = outputs // channels if depthwise else 1
    groups = 1 if depthwise else integers(func, "groups", (1,))[0]
    return QuantizedConv(window, weights, bias, zero_in, requantize, depthwise, times, dtype, groups=groups)


def _settle(
    weights: np.ndarray,
    bias: np.ndarray,
    m: np.ndarray,
    s: np.ndarray,
    zero_in: int,
    zero_out: int,
    clamp: tuple[int, int],
    dtype: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Weights, bias, multipliers and shifts with channels of constant output put in a form that requantizes shortly.

    A constant v is the accumulator 4 (v - zo) under the multiplier 2^30 and the shift -1: (2 (v - zo) + 1) >> 1.
    """
    low, high = accumulator_bounds(weights.reshape(-1, weights.shape[-1]), bias, zero_in, RANGES[dtype])
    constant, value = constant_channels(m, s, low, high, zero_out, clamp)
    if not constant.any():
        return weights, bias, m, s
    settled = np.where(constant, 0, weights).astype(weights.dtype)
    settled_bias = np.where(constant, 4 * (value - zero_out), bias).astype(bias.dtype)
    return settled, settled_bias, np.where(constant, 1 << 30, m), np.where(constant, -1, s)
