"""Small Relax networks for tests, benchmarks and tutorials, with random weights from a seed.

`Net("float32")` writes plain Relax operators in NHWC or NCHW. `Net("int8")` writes the islands that Relax's TFLite
importer makes of a quantized file, always NHWC: `dequantize -> operator -> quantize [-> clip]`, pools on the integers.

    net = Net("int8")
    x = net.input((1, 32, 32, 3))
    x = net.conv(x, 16, kernel=3, stride=2, activation="relu")
    mod = net.finish(net.dense(net.flatten(net.global_pool(x)), 10))

Weight scales are chosen so that activations neither saturate nor vanish, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, Literal, TypeAlias

import numpy as np
from tvm import relax as _relax
from tvm.ir import IRModule

from tvm_cascade.errors import UsageError

relax: Any = _relax  # its nodes get their fields at run time, where no type checker sees them
Expr: TypeAlias = Any

Activation = Literal["relu", "relu6"] | None
Padding = Literal["same", "valid"] | int | tuple[int, int, int, int]

_SCALE = 0.05  # of every int8 activation unless `scales="varied"`
_WEIGHT_STD = 73.0  # of uniform integers in [-127, 127]


@dataclass(frozen=True, slots=True)
class Value:
    """An activation of a `Net`."""

    expr: Expr
    shape: tuple[int, ...]
    scale: float = 0.0  # int8 only: real = scale * (q - zero_point)
    zero_point: int = 0


class Net:
    """A builder of one Relax function `main` with a single dataflow block.

    Parameters
    ----------
    dtype : "float32" or "int8"
        Of all activations.
    layout : "NHWC" or "NCHW"
        Of images; int8 is always NHWC.
    seed : int
        Of weights, biases and varied scales.
    scales : "shared" or "varied"
        int8 only. Shared: one scale for all activations, so that concatenations copy. Varied: one each, and `concat`
        requantizes, as the int8 reference refuses unequal scales.

    Attributes
    ----------
    macs, weights : int
        Multiply-accumulates as the literature counts them (padding included) and weights (without biases) so far.
    """

    def __init__(
        self,
        dtype: Literal["float32", "int8"] = "float32",
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        seed: int = 0,
        scales: Literal["shared", "varied"] = "shared",
    ) -> None:
        if dtype == "int8" and layout != "NHWC":
            raise UsageError("int8 networks are NHWC, as TFLite's are: leave layout out")
        self.dtype, self.layout, self.scales = dtype, layout, scales
        self.macs = 0
        self.weights = 0
        self._random = np.random.default_rng(seed)
        self._builder = relax.BlockBuilder()
        self._inputs: list[Expr] = []
        self._lines: list[tuple[Expr, Expr]] = []

    # Edges of the network.

    def input(self, shape: Sequence[int], name: str | None = None) -> Value:
        """A graph input of that shape (batch first, in the network's layout)."""
        var = relax.Var(name or f"input{len(self._inputs)}", relax.TensorType(tuple(shape), self.dtype))
        self._inputs.append(var)
        scale, zero = self._quantization()
        return Value(var, tuple(shape), scale, zero)

    def finish(self, outputs: Value | Sequence[Value]) -> IRModule:
        """The module; `outputs` become its result, a tuple where several are given. The net is spent then."""
        several = not isinstance(outputs, Value)
        values = list(outputs) if not isinstance(outputs, Value) else [outputs]
        bb = self._builder
        with bb.function("main", self._inputs, attrs={"num_input": len(self._inputs)}):
            with bb.dataflow():
                for var, expr in self._lines:
                    bb.emit_normalized(relax.VarBinding(var, expr))
                results = [bb.emit_output(v.expr) for v in values]
            bb.emit_func_output(relax.Tuple(results) if several else results[0])
        return bb.finalize()

    # Operators with weights.

    def conv(
        self,
        x: Value,
        channels: int,
        kernel: int | tuple[int, int] = 3,
        stride: int | tuple[int, int] = 1,
        padding: Padding = "same",
        *,
        groups: int = 1,
        dilation: int | tuple[int, int] = 1,
        activation: Activation = None,
        bias: bool = True,
    ) -> Value:
        """2-d convolution; `padding` is TFLite's same or valid, one number, or (top, left, bottom, right)."""
        kernel, stride, dilation = _pair(kernel), _pair(stride), _pair(dilation)
        n, h, w, c = self._nhwc(x)
        pads, oh, ow = _extents((h, w), kernel, stride, dilation, padding)
        depth = c // groups
        shape = self._image(n, oh, ow, channels)
        self._count(prod(kernel) * depth * channels, n * oh * ow)
        attrs = {"strides": list(stride), "padding": pads, "dilation": list(dilation), "groups": groups}
        if self.dtype == "float32":
            value = self._float_conv(x, (*kernel, depth, channels), attrs, shape, bias)
            return self._activate(value, activation)
        weights, scales = self._int8_weights(
            (*kernel, depth, channels) if groups != c or c == 1 else (1, *kernel, channels), prod(kernel) * depth
        )
        if groups == c and c > 1:
            weights = self._emit(relax.op.reshape(weights, (*kernel, channels, 1)))
        layout = "HWOI" if groups == c and c > 1 else "HWIO"
        y = relax.op.nn.conv2d(
            self._dequantize(x), weights, **attrs, data_layout="NHWC", kernel_layout=layout, out_layout="NHWC"
        )
        return self._quantized_sum(x, self._emit(y), scales, shape, activation)

    def depthwise(self, x: Value, *window: Any, multiplier: int = 1, **options: Any) -> Value:
        """Depthwise convolution with `multiplier` outputs per channel; kernel, stride, padding and options as of `conv`."""
        c = self.channels(x)
        return self.conv(x, c * multiplier, *window, groups=c, **options)

    def separable(
        self, x: Value, channels: int, *window: Any, activation: Activation = None, bias: bool = True, **options: Any
    ) -> Value:
        """Depthwise convolution without activation, arguments as of `conv`, then a 1x1 convolution."""
        x = self.depthwise(x, *window, bias=bias, **options)
        return self.conv(x, channels, 1, activation=activation, bias=bias)

    def dense(self, x: Value, units: int, *, activation: Activation = None, bias: bool = True) -> Value:
        """Fully connected over the last axis."""
        depth = x.shape[-1]
        shape = (*x.shape[:-1], units)
        self._count(depth * units, prod(x.shape[:-1]))
        if self.dtype == "float32":
            weights = self._float_weights((depth, units), depth)
            y = self._emit(relax.op.matmul(x.expr, weights))
            if bias:
                y = self._emit(relax.op.add(y, self._float_weights((units,), 1)))
            return self._activate(Value(y, shape), activation)
        scale = self._weight_scale(depth)
        kernel = relax.op.permute_dims(relax.const(self._integers((units, depth)), "int8"), [1, 0])
        weights = relax.op.dequantize(
            self._emit(kernel), relax.const(scale, "float32"), relax.const(0, "int32"), axis=1
        )
        y = self._emit(relax.op.matmul(self._dequantize(x), self._emit(weights)))
        return self._quantized_sum(x, y, np.asarray(scale, "float32"), shape, activation)

    def batch_norm(self, x: Value) -> Value:
        """Inference batch normalization in float; nothing in int8, where converters fold it away."""
        if self.dtype != "float32":
            return x
        c = self.channels(x)
        gamma, var = (relax.const(self._random.uniform(0.5, 1.5, c), "float32") for _ in range(2))
        beta, mean = (relax.const(self._random.normal(0, 0.1, c), "float32") for _ in range(2))
        axis = self._channel_axis(x)
        y = self._emit(relax.op.nn.batch_norm(x.expr, gamma, beta, mean, var, axis=axis, training=False))
        return Value(self._emit(relax.TupleGetItem(y, 0)), x.shape)

    # Operators without weights.

    def max_pool(self, x: Value, kernel: int | tuple[int, int] = 2, stride: int | tuple[int, int] | None = None,
                 padding: Padding = "valid") -> Value:  # fmt: skip
        """Maximum over windows; the stride defaults to the kernel."""
        expr, shape = self._pool(relax.op.nn.max_pool2d, x.expr, x, kernel, stride, padding)
        return Value(expr, shape, x.scale, x.zero_point)

    def avg_pool(self, x: Value, kernel: int | tuple[int, int] = 2, stride: int | tuple[int, int] | None = None,
                 padding: Padding = "valid") -> Value:  # fmt: skip
        """Mean over the valid part of each window."""
        if self.dtype == "float32":
            expr, shape = self._pool(relax.op.nn.avg_pool2d, x.expr, x, kernel, stride, padding)
            return Value(expr, shape)
        wide = self._emit(relax.op.astype(x.expr, "int32"))
        expr, shape = self._pool(relax.op.nn.avg_pool2d, wide, x, kernel, stride, padding)
        return Value(self._emit(relax.op.astype(expr, "int8")), shape, x.scale, x.zero_point)

    def global_pool(self, x: Value) -> Value:
        """Mean over height and width, both kept as 1."""
        n, _, _, c = self._nhwc(x)
        axes = [1, 2] if self.layout == "NHWC" else [2, 3]
        shape = self._image(n, 1, 1, c)
        y = self._emit(relax.op.mean(self._real(x), axes, keepdims=True))
        return self._back(y, shape, x.scale, x.zero_point)

    def add(self, a: Value, b: Value, activation: Activation = None) -> Value:
        return self._binary(relax.op.add, a, b, activation)

    def mul(self, a: Value, b: Value, activation: Activation = None) -> Value:
        """Product; broadcasts."""
        return self._binary(relax.op.multiply, a, b, activation)

    def concat(self, parts: Sequence[Value], axis: int | None = None) -> Value:
        """Along the channels unless an axis is given."""
        axis = self._channel_axis(parts[0]) if axis is None else axis
        first = parts[0]
        same = [p if (p.scale, p.zero_point) == (first.scale, first.zero_point) else self.requantize(p, first)
                for p in parts]  # fmt: skip
        shape = list(first.shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        y = self._emit(relax.op.concat([self._real(p) for p in same], axis=axis))
        return self._back(y, tuple(shape), first.scale, first.zero_point)

    def requantize(self, x: Value, like: Value) -> Value:
        """int8 only: `x` in the scale and zero point of `like`."""
        return self._back(self._real(x), x.shape, like.scale, like.zero_point)

    def relu(self, x: Value) -> Value:
        return self._back(self._emit(relax.op.nn.relu(self._real(x))), x.shape, *self._quantization())

    def sigmoid(self, x: Value) -> Value:
        return self._back(self._emit(relax.op.sigmoid(self._real(x))), x.shape, 1 / 256, -128)

    def tanh(self, x: Value) -> Value:
        return self._back(self._emit(relax.op.tanh(self._real(x))), x.shape, 1 / 128, 0)

    def softmax(self, x: Value) -> Value:
        """Over the last axis."""
        return self._back(self._emit(relax.op.nn.softmax(self._real(x), axis=-1)), x.shape, 1 / 256, -128)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return Value(self._emit(relax.op.reshape(x.expr, tuple(shape))), tuple(shape), x.scale, x.zero_point)

    def flatten(self, x: Value) -> Value:
        """(N, everything else)."""
        return self.reshape(x, (x.shape[0], prod(x.shape[1:])))

    def matmul(self, a: Value, b: Value) -> Value:
        """Product of two activations, float only."""
        if self.dtype != "float32":
            raise UsageError("matmul of two activations exists in float32 only: use dense")
        y = self._emit(relax.op.matmul(a.expr, b.expr))
        self.macs += prod(a.shape) * b.shape[-1]
        return Value(y, (*a.shape[:-1], b.shape[-1]))

    def channels(self, x: Value) -> int:
        """Extent of the channel axis."""
        return x.shape[self._channel_axis(x)]

    # Everything below writes one binding or one island.

    def _emit(self, expr: Expr) -> Expr:
        expr = self._builder.normalize(expr)
        var = relax.DataflowVar(f"lv{len(self._lines)}", expr.ty)
        self._lines.append((var, expr))
        return var

    def _count(self, weights: int, positions: int) -> None:
        self.weights += weights
        self.macs += weights * positions

    def _channel_axis(self, x: Value) -> int:
        return 1 if self.layout == "NCHW" and len(x.shape) == 4 else len(x.shape) - 1

    def _nhwc(self, x: Value) -> tuple[int, int, int, int]:
        a, b, c, d = x.shape
        return (a, b, c, d) if self.layout == "NHWC" else (a, c, d, b)

    def _image(self, n: int, h: int, w: int, c: int) -> tuple[int, int, int, int]:
        return (n, h, w, c) if self.layout == "NHWC" else (n, c, h, w)

    def _quantization(self) -> tuple[float, int]:
        if self.dtype == "float32":
            return 0.0, 0
        if self.scales == "shared":
            return _SCALE, -3
        return float(np.float32(_SCALE * self._random.uniform(0.7, 1.4))), int(self._random.integers(-12, 13))

    def _integers(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._random.integers(-127, 128, shape).astype("int8")

    def _weight_scale(self, depth: int) -> float:
        return 1 / (_WEIGHT_STD * sqrt(depth))

    def _float_weights(self, shape: tuple[int, ...], depth: int) -> Expr:
        return relax.const(self._random.standard_normal(shape) / sqrt(max(depth, 1)), "float32")

    def _int8_weights(self, shape: tuple[int, ...], depth: int) -> tuple[Expr, np.ndarray]:
        scales = (self._weight_scale(depth) * self._random.uniform(0.8, 1.25, shape[-1])).astype("float32")
        kernel = relax.const(self._integers(shape), "int8")
        y = relax.op.dequantize(kernel, relax.const(scales, "float32"), relax.const(0, "int32"), axis=3)
        return self._emit(y), scales

    def _float_conv(self, x: Value, hwio: tuple[int, ...], attrs: dict, shape: tuple[int, ...], bias: bool) -> Value:
        nchw = self.layout == "NCHW"
        kernel = (hwio[3], hwio[2], hwio[0], hwio[1]) if nchw else hwio
        weights = self._float_weights(kernel, prod(hwio[:3]))
        y = self._emit(
            relax.op.nn.conv2d(
                x.expr, weights, **attrs, data_layout=self.layout, kernel_layout="OIHW" if nchw else "HWIO"
            )
        )
        if bias:
            y = self._emit(relax.op.add(y, self._float_weights((hwio[3], 1, 1) if nchw else (hwio[3],), 4)))
        return Value(y, shape)

    def _activate(self, x: Value, activation: Activation) -> Value:
        if activation is None:
            return x
        call = relax.op.nn.relu(x.expr) if activation == "relu" else relax.op.clip(x.expr, 0.0, 6.0)
        return Value(self._emit(call), x.shape, x.scale, x.zero_point)

    def _dequantize(self, x: Value) -> Expr:
        call = relax.op.dequantize(x.expr, relax.const(x.scale, "float32"), relax.const(x.zero_point, "int32"), axis=0)
        return self._emit(call)

    def _real(self, x: Value) -> Expr:
        return x.expr if self.dtype == "float32" else self._dequantize(x)

    def _back(self, y: Expr, shape: tuple[int, ...], scale: float, zero: int) -> Value:
        if self.dtype == "float32":
            return Value(y, shape)
        call = relax.op.quantize(y, relax.const(scale, "float32"), relax.const(zero, "int32"), axis=0, out_dtype="int8")
        return Value(self._emit(call), shape, scale, zero)

    def _quantized_sum(
        self, x: Value, y: Expr, scales: np.ndarray, shape: tuple[int, ...], activation: Activation
    ) -> Value:
        """Bias in int32 at the accumulator's scale, quantize, and the activation as a clip of the integers."""
        bias_scale = (np.float32(x.scale) * scales).astype("float32")
        bias = (self._random.normal(0, 0.2, shape[-1]) / bias_scale).round().astype("int32")
        real = relax.op.dequantize(
            relax.const(bias, "int32"), relax.const(bias_scale, "float32"), relax.const(0, "int32"), axis=0
        )
        y = self._emit(relax.op.add(y, self._emit(real)))
        value = self._back(y, shape, *self._quantization())
        if activation is None:
            return value
        zero = value.zero_point
        high = 127 if activation == "relu" else min(127, zero + round(6 / value.scale))
        return Value(
            self._emit(relax.op.clip(value.expr, float(max(-128, zero)), float(high))), shape, value.scale, zero
        )

    def _binary(self, op, a: Value, b: Value, activation: Activation) -> Value:
        shape = tuple(np.broadcast_shapes(a.shape, b.shape))
        y = Value(self._emit(op(self._real(a), self._real(b))), shape)
        return self._back(self._activate(y, activation).expr, shape, *self._quantization())

    def _pool(self, op, expr, x: Value, kernel, stride, padding: Padding) -> tuple[Expr, tuple[int, ...]]:
        kernel = _pair(kernel)
        stride = kernel if stride is None else _pair(stride)
        n, h, w, c = self._nhwc(x)
        pads, oh, ow = _extents((h, w), kernel, stride, (1, 1), padding)
        y = op(expr, list(kernel), list(stride), pads, layout=self.layout)
        return self._emit(y), self._image(n, oh, ow, c)


def _pair(v: int | tuple[int, int]) -> tuple[int, int]:
    return (v, v) if isinstance(v, int) else v


def _extents(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: Padding,
) -> tuple[list[int], int, int]:
    """Padding as [top, left, bottom, right], and the output's height and width."""
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if padding == "same":
        total = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(size, stride, spans, strict=True)]
        pads = [total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2]
    elif padding == "valid":
        pads = [0, 0, 0, 0]
    else:
        pads = [padding] * 4 if isinstance(padding, int) else list(padding)
    high = (size[0] + pads[0] + pads[2] - spans[0]) // stride[0] + 1
    wide = (size[1] + pads[1] + pads[3] - spans[1]) // stride[1] + 1
    return pads, high, wide
