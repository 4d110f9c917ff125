"""Random single-operator cases, one generator an operator, over odd shapes and extreme scales.

A generator adds one operator with its tensors to a `ModelWriter`. Scales are drawn so that multipliers lie on both
sides of one and accumulators on both sides of saturation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.testing.tflite import ModelWriter

Generator = Callable[[np.random.Generator, str, ModelWriter], None]

NONE, RELU, RELU_N1_TO_1, RELU6 = 0, 1, 2, 3
SAME, VALID = 0, 1


def log_uniform(rng: np.random.Generator, lo: float, hi: float) -> float:
    """A scale, as float32 stores it; now and then a power of two, with which products come to lie halfway between two
    results."""
    scale = np.exp(rng.uniform(np.log(lo), np.log(hi)))
    whole = 2.0 ** np.floor(np.log2(scale))
    return float(np.float32(whole if rng.random() < 0.3 and whole >= lo else scale))


def zero_point(rng: np.random.Generator, dtype: str) -> int:
    """Any stored value, often an end of the range or its middle; int16 and floats have none."""
    if dtype in ("int16", "float32"):
        return 0
    info = np.iinfo(dtype)
    if rng.random() < 0.3:
        return int(rng.choice([info.min, info.max, (info.min + info.max + 1) // 2]))
    return int(rng.integers(info.min, info.max + 1))


def stored(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Any values of the type; floats are normal."""
    if dtype == "float32":
        return rng.standard_normal(shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, size=shape).astype(dtype)


def dims(rng: np.random.Generator, *limits: int) -> tuple[int, ...]:
    """One extent of 1 to `limit` for every limit."""
    return tuple(int(rng.integers(1, limit + 1)) for limit in limits)


def quantized(rng: np.random.Generator, dtype: str, lo: float = 1e-3, hi: float = 1.0) -> tuple[float, int]:
    return log_uniform(rng, lo, hi), zero_point(rng, dtype)


def activation(rng: np.random.Generator) -> int:
    return int(rng.choice([NONE, NONE, RELU, RELU_N1_TO_1, RELU6]))


def _extent(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    span = (kernel - 1) * dilation + 1
    return -(-size // stride) if padding == SAME else (size - span) // stride + 1


def _spatial(rng: np.random.Generator) -> tuple[list[int], list[int], list[int], list[int], int]:
    """Sizes, kernels, strides, dilations of rows and columns, and the padding."""
    padding = int(rng.integers(0, 2))
    kernel = list(dims(rng, 5, 5))
    stride = list(dims(rng, 3, 3))
    dilation = list(dims(rng, 2, 3)) if rng.random() < 0.3 else [1, 1]
    least = [(k - 1) * d + 1 if padding == VALID else 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [m + int(rng.integers(0, 9)) for m in least]
    return size, kernel, stride, dilation, padding


def weights(
    rng: np.random.Generator, w: ModelWriter, shape: tuple[int, ...], dtype: str, axis: int
) -> tuple[int, np.ndarray]:
    """Weights and the scale of every channel: per channel or per tensor for int8, with a zero point for uint8."""
    if dtype == "float32":
        return w.constant(stored(rng, shape, dtype)), np.ones(1)
    if dtype == "uint8":
        scale = log_uniform(rng, 1e-3, 1e-1)
        return w.constant(stored(rng, shape, dtype), scale, zero_point(rng, dtype)), np.array([scale])
    data = rng.integers(-127, 128, size=shape).astype("int8")
    count = shape[axis] if rng.random() < 0.7 else 1
    scales = np.array([log_uniform(rng, 1e-4, 1e-1) for _ in range(count)], "float32")
    if count > 1 and rng.random() < 0.2:
        scales[0] = 1e-9  # a channel that vanished in training
    return w.tensor(shape, "int8", scales, 0, axis=axis, data=data), scales


def biases(rng: np.random.Generator, w: ModelWriter, units: int, scales: np.ndarray, x_scale: float, dtype: str) -> int:
    """int32, int64 beside int16 activations, floats beside floats."""
    if dtype == "float32":
        return w.constant(stored(rng, (units,), dtype))
    wide = dtype == "int16"
    reach = 5_000_000 if wide else 20_000
    data = rng.integers(-reach, reach, size=units).astype("int64" if wide else "int32")
    return w.tensor((units,), str(data.dtype), (scales * x_scale).astype("float32"), 0, data=data)


def output_scale(rng: np.random.Generator, x_scale: float, scales: np.ndarray, terms: int) -> float:
    """From an 8-bit output that saturates to one that hardly moves."""
    typical = x_scale * float(np.median(scales)) * 127 * 127 * np.sqrt(terms)
    return float(np.float32(typical * log_uniform(rng, 2e-4, 1.0)))


def conv2d(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    size, kernel, stride, dilation, padding = _spatial(rng)
    n, cin, cout = dims(rng, 2, 9, 9)
    xs, xz = quantized(rng, dtype)
    x = w.activation((n, *size, cin), dtype, xs, xz)
    filters, scales = weights(rng, w, (cout, *kernel, cin), dtype, 0)
    bias = biases(rng, w, cout, scales, xs, dtype)
    _convolved(
        rng, dtype, w, "CONV_2D", "Conv2DOptions", [x, filters, bias], (n, cout), (size, kernel, stride, dilation),
        padding, output_scale(rng, xs, scales, kernel[0] * kernel[1] * cin),
    )  # fmt: skip


def depthwise_conv2d(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    size, kernel, stride, dilation, padding = _spatial(rng)
    n, channels, times = dims(rng, 2, 7, 3)
    xs, xz = quantized(rng, dtype)
    x = w.activation((n, *size, channels), dtype, xs, xz)
    filters, scales = weights(rng, w, (1, *kernel, channels * times), dtype, 3)
    bias = biases(rng, w, channels * times, scales, xs, dtype)
    _convolved(
        rng, dtype, w, "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", [x, filters, bias], (n, channels * times),
        (size, kernel, stride, dilation), padding, output_scale(rng, xs, scales, kernel[0] * kernel[1]),
        depthMultiplier=times,
    )  # fmt: skip


def _convolved(
    rng: np.random.Generator,
    dtype: str,
    w: ModelWriter,
    name: str,
    options: str,
    inputs: list[int],
    outer: tuple[int, int],
    window: tuple[list[int], list[int], list[int], list[int]],
    padding: int,
    scale: float,
    **values: Any,
) -> None:
    size, kernel, stride, dilation = window
    rows, columns = (_extent(*axis, padding) for axis in zip(size, kernel, stride, dilation, strict=True))
    out = w.tensor((outer[0], rows, columns, outer[1]), dtype, scale, zero_point(rng, dtype))
    w.operator(
        name, inputs, [out], options, padding=padding, strideH=stride[0], strideW=stride[1],
        dilationHFactor=dilation[0], dilationWFactor=dilation[1], fusedActivationFunction=activation(rng), **values,
    )  # fmt: skip


def fully_connected(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    n, depth, units = dims(rng, 4, 40, 12)
    xs, xz = quantized(rng, dtype)
    flat = rng.random() < 0.5 or depth % 2
    shape = (n, depth) if flat else (n, 1, 2, depth // 2)
    x = w.activation(shape, dtype, xs, xz)
    if rng.random() < 0.2:  # weights that another operator computes
        kind, scale = "int8" if dtype == "int16" else dtype, log_uniform(rng, 1e-3, 1e-1)
        zero = zero_point(rng, dtype) if kind == dtype else 0
        filters, scales = w.activation((units, depth), kind, scale, zero), np.array([scale])
    else:
        filters, scales = weights(rng, w, (units, depth), dtype, 0)
    bias = biases(rng, w, units, scales, xs, dtype) if rng.random() < 0.8 else -1
    out = w.tensor((n, units), dtype, output_scale(rng, xs, scales, depth), zero_point(rng, dtype))
    w.operator(
        "FULLY_CONNECTED", [x, filters, bias], [out], "FullyConnectedOptions", fusedActivationFunction=activation(rng),
        version=4,
    )  # fmt: skip


def _broadcastable(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    shape = dims(rng, 2, 5, 5, 7)[4 - int(rng.integers(1, 5)) :]
    kind = rng.random()
    if kind < 0.6:
        return shape, shape, shape
    small = tuple(1 if rng.random() < 0.5 else d for d in shape)
    small = small[int(rng.integers(0, len(small))) :] if rng.random() < 0.3 else small
    return (shape, small, shape) if kind < 0.8 else (small, shape, shape)


def _binary(name: str, options: str, product: bool) -> Generator:
    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        left, right, result = _broadcastable(rng)
        (s1, z1), (s2, z2) = quantized(rng, dtype, 1e-4, 10.0), quantized(rng, dtype, 1e-4, 10.0)
        a = w.activation(left, dtype, s1, z1)
        constant = rng.random() < 0.2
        b = w.constant(stored(rng, right, dtype), s2, z2) if constant else w.activation(right, dtype, s2, z2)
        typical = s1 * s2 * 100 if product else max(s1, s2)
        out = w.tensor(result, dtype, float(np.float32(typical * log_uniform(rng, 1e-2, 1e2))), zero_point(rng, dtype))
        inputs = [a, b] if rng.random() < 0.5 or left != right else [b, a]
        # as the converter of 16x8 networks writes it: the other kernel knows powers of two alone
        plain: dict[str, Any] = {} if product else {"potScaleInt16": False}
        w.operator(name, inputs, [out], options, fusedActivationFunction=activation(rng), **plain)

    return generate


def _pool(name: str) -> Generator:
    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        size, kernel, stride, _, padding = _spatial(rng)
        size = [max(s, k) if padding == VALID else s for s, k in zip(size, kernel, strict=True)]
        n, channels = dims(rng, 2, 9)
        s, z = quantized(rng, dtype)
        x = w.activation((n, *size, channels), dtype, s, z)
        rows, columns = (_extent(*axis, 1, padding) for axis in zip(size, kernel, stride, strict=True))
        other = name == "AVERAGE_POOL_2D" and rng.random() < 0.2
        so, zo = quantized(rng, dtype) if other else (s, z)
        out = w.tensor((n, rows, columns, channels), dtype, so, zo)
        w.operator(
            name, [x], [out], "Pool2DOptions", padding=padding, strideH=stride[0], strideW=stride[1],
            filterHeight=kernel[0], filterWidth=kernel[1], fusedActivationFunction=activation(rng),
        )  # fmt: skip

    return generate


def either_sign(rng: np.random.Generator, axes: Sequence[int], rank: int) -> np.ndarray:
    """Axes as operators take them: some counted from the end."""
    return np.array([a - rank if rng.random() < 0.4 else a for a in axes], "int32")


def reducer(name: str, limits: tuple[int, int, int, int], most: int, scales: tuple[float, float]) -> Generator:
    """An operator over up to `most` axes, whose output has a scale between these times the input's."""

    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        shape = dims(rng, *limits)
        axes = sorted(rng.choice(4, size=int(rng.integers(1, most + 1)), replace=False).tolist())
        keep_dims = bool(rng.random() < 0.5)
        xs, xz = quantized(rng, dtype)
        inputs = [w.activation(shape, dtype, xs, xz), w.constant(either_sign(rng, axes, 4))]
        result = [1 if d in axes else e for d, e in enumerate(shape) if keep_dims or d not in axes]
        out = w.tensor(result, dtype, float(np.float32(xs * log_uniform(rng, *scales))), zero_point(rng, dtype))
        w.operator(name, inputs, [out], "ReducerOptions", keepDims=keep_dims)

    return generate


def concatenation(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    rank = int(rng.integers(1, 5))
    shape, axis = list(dims(rng, 2, 5, 5, 7)[4 - rank :]), int(rng.integers(0, rank))
    so, zo = quantized(rng, dtype)
    parts = []
    for _ in range(int(rng.integers(1, 5))):
        own = [int(rng.integers(1, 6)) if d == axis else e for d, e in enumerate(shape)]
        same = dtype != "uint8" or rng.random() < 0.3
        s, z = (so, zo) if same else (float(np.float32(so * log_uniform(rng, 0.1, 10))), zero_point(rng, dtype))
        parts.append((w.activation(own, dtype, s, z), own[axis]))
    result = [sum(e for _, e in parts) if d == axis else e for d, e in enumerate(shape)]
    out = w.tensor(result, dtype, so, zo)
    negative = bool(rng.random() < 0.5)
    w.operator(
        "CONCATENATION", [p for p, _ in parts], [out], "ConcatenationOptions", axis=axis - rank if negative else axis
    )


def pad(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 2, 5, 5, 7)[4 - int(rng.integers(1, 5)) :]
    widths = rng.integers(0, 4, size=(len(shape), 2)).astype("int32")
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    out = w.tensor([d + int(p.sum()) for d, p in zip(shape, widths, strict=True)], dtype, s, z)
    if rng.random() < 0.5:
        w.operator("PAD", [x, w.constant(widths)], [out], "PadOptions")
        return
    value = w.constant(stored(rng, (1,), dtype), s, z)
    w.operator("PADV2", [x, w.constant(widths), value], [out], "PadV2Options")


def relu_family(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 2, 5, 5, 7)[4 - int(rng.integers(1, 5)) :]
    xs, xz = quantized(rng, dtype, 1e-3, 0.3)
    x = w.activation(shape, dtype, xs, xz)
    out = w.tensor(shape, dtype, float(np.float32(xs * log_uniform(rng, 0.1, 4.0))), zero_point(rng, dtype))
    kinds = ["RELU", "RELU6"] if dtype == "int16" else ["RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"]
    w.operator(str(rng.choice(kinds)), [x], [out])


def softmax(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 3, 3, 3, 20)[4 - int(rng.integers(1, 5)) :]
    x = w.activation(shape, dtype, *quantized(rng, dtype, 1e-3, 3.0))
    out = w.tensor(shape, dtype, 1 / 32768 if dtype == "int16" else 1 / 256, -128 if dtype == "int8" else 0)
    beta = float(rng.choice([1.0, 1.0, 0.5, 2.0, 0.1]))
    w.operator("SOFTMAX", [x], [out], "SoftmaxOptions", beta=beta)


def quantize(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 2, 5, 5, 7)[4 - int(rng.integers(1, 5)) :]
    target = str(rng.choice(["int8", "int16" if dtype == "int16" else "uint8"]))
    xs, xz = quantized(rng, dtype)
    x = w.activation(shape, dtype, xs, xz)
    out = w.tensor(shape, target, float(np.float32(xs * log_uniform(rng, 0.05, 20.0))), zero_point(rng, target))
    w.operator("QUANTIZE", [x], [out], "QuantizeOptions")


def reshape(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 2, 5, 5, 7)
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    target = [shape[0] * shape[1], shape[2] * shape[3]]
    out = w.tensor(target, dtype, s, z)
    given = w.constant(np.array(target, "int32"))
    w.operator("RESHAPE", [x, given], [out], "ReshapeOptions", newShape=np.array(target, "int32"))


def transpose(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 3, 5, 5, 7)[4 - int(rng.integers(2, 5)) :]
    axes = rng.permutation(len(shape)).astype("int32")
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    out = w.tensor([shape[a] for a in axes], dtype, s, z)
    w.operator("TRANSPOSE", [x, w.constant(axes)], [out], "TransposeOptions")


def strided_slice(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 3, 7, 7, 7)[4 - int(rng.integers(1, 5)) :]
    begin, end, stride, result = [], [], [], []
    for extent in shape:
        step = int(rng.integers(1, 4)) * (1 if rng.random() < 0.8 else -1)
        lo, hi = sorted(int(v) for v in rng.integers(0, extent + 1, size=2))
        lo, hi = (min(lo, extent - 1), max(hi, min(lo, extent - 1) + 1))
        first, last = (lo, hi) if step > 0 else (hi - 1, lo - 1)
        begin.append(first if rng.random() < 0.7 else first - extent)
        end.append(
            last if last >= 0 and rng.random() < 0.7 and last < extent else last - extent if last < extent else last
        )
        stride.append(step)
        result.append(-(-(hi - lo) // abs(step)))
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    out = w.tensor(result, dtype, s, z)
    bounds = [w.constant(np.array(v, "int32")) for v in (begin, end, stride)]
    w.operator("STRIDED_SLICE", [x, *bounds], [out], "StridedSliceOptions")


def slice_(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 3, 7, 7, 7)[4 - int(rng.integers(1, 5)) :]
    begin = [int(rng.integers(0, d)) for d in shape]
    size = [int(rng.integers(1, d - b + 1)) for d, b in zip(shape, begin, strict=True)]
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    given = [-1 if b + e == d and rng.random() < 0.5 else e for b, e, d in zip(begin, size, shape, strict=True)]
    bounds = [w.constant(np.array(v, "int32")) for v in (begin, given)]
    w.operator("SLICE", [x, *bounds], [w.tensor(size, dtype, s, z)], "SliceOptions")


def split(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = list(dims(rng, 2, 5, 5, 7)[4 - int(rng.integers(1, 5)) :])
    axis, parts = int(rng.integers(0, len(shape))), int(rng.integers(1, 5))
    own = list(shape)
    shape[axis] *= parts
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    outs = [w.tensor(own, dtype, s, z) for _ in range(parts)]
    given = either_sign(rng, [axis], len(shape)).reshape(())
    w.operator("SPLIT", [w.constant(given), x], outs, "SplitOptions", numSplits=parts)


def div(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """The reference divides floats alone."""
    left, right, result = _broadcastable(rng)
    divisors = rng.uniform(0.1, 3.0, right) * rng.choice([-1.0, 1.0], right)
    inputs = [w.activation(left, dtype), w.constant(divisors.astype(dtype))]
    w.operator("DIV", inputs, [w.tensor(result, dtype)], "DivOptions", fusedActivationFunction=activation(rng))


OPERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "conv2d": conv2d,
        "depthwise_conv2d": depthwise_conv2d,
        "fully_connected": fully_connected,
        "add": _binary("ADD", "AddOptions", product=False),
        "sub": _binary("SUB", "SubOptions", product=False),
        "mul": _binary("MUL", "MulOptions", product=True),
        "average_pool2d": _pool("AVERAGE_POOL_2D"),
        "max_pool2d": _pool("MAX_POOL_2D"),
        "mean": reducer("MEAN", (3, 9, 9, 7), 3, (0.02, 5.0)),
        "concatenation": concatenation,
        "pad": pad,
        "relu_family": relu_family,
        "softmax": softmax,
        "quantize": quantize,
        "reshape": reshape,
        "transpose": transpose,
        "strided_slice": strided_slice,
        "slice": slice_,
        "split": split,
    }
)

# quantize has no meaning here
FLOAT: Mapping[str, Generator] = MappingProxyType(
    {**{k: v for k, v in OPERATORS.items() if k != "quantize"}, "div": div}
)

# with int8 weights and int64 biases
INT16 = tuple(OPERATORS)
