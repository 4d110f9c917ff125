"""Random single-operator cases of further operators with weights or statistics; see `operator_cases`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tvm_cascade.testing.operator_cases import (
    SAME,
    Generator,
    biases,
    dims,
    either_sign,
    log_uniform,
    output_scale,
    quantized,
    reducer,
    stored,
    weights,
    zero_point,
)
from tvm_cascade.testing.tflite import ModelWriter


def transpose_conv(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    n, h, wd, cin, cout = dims(rng, 2, 5, 5, 6, 6)
    kernel, stride, padding = list(dims(rng, 4, 4)), list(dims(rng, 3, 3)), int(rng.integers(0, 2))
    xs, xz = quantized(rng, dtype)
    x = w.activation((n, h, wd, cin), dtype, xs, xz)
    filters, scales = weights(rng, w, (cout, *kernel, cin), dtype, 0)
    extents = [
        d * s if padding == SAME else (d - 1) * s + max(k, s) for d, s, k in zip((h, wd), stride, kernel, strict=True)
    ]
    shape = w.constant(np.array([n, *extents, cout], "int32"))
    inputs = [shape, filters, x] + ([biases(rng, w, cout, scales, xs, dtype)] if rng.random() < 0.5 else [])
    scale = output_scale(rng, xs, scales, kernel[0] * kernel[1] * cin)
    out = w.tensor((n, *extents, cout), dtype, scale, zero_point(rng, dtype))
    w.operator(
        "TRANSPOSE_CONV", inputs, [out], "TransposeConvOptions", padding=padding, strideH=stride[0], strideW=stride[1],
        version=3,
    )  # fmt: skip


def grouped_conv2d(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """A convolution whose filters read a part of the channels: 2 to 4 groups, now and then of one channel."""
    n, h, wd, kh, kw, sy, sx = dims(rng, 2, 7, 7, 3, 3, 2, 2)
    groups, own, times = int(rng.integers(2, 5)), int(rng.integers(1, 7)), int(rng.integers(1, 5))
    xs, xz = quantized(rng, dtype)
    x = w.activation((n, h, wd, groups * own), dtype, xs, xz)
    cout = groups * times
    filters, scales = weights(rng, w, (cout, kh, kw, own), dtype, 0)
    bias = biases(rng, w, cout, scales, xs, dtype)
    shape = (n, -(-h // sy), -(-wd // sx), cout)
    out = w.tensor(shape, dtype, output_scale(rng, xs, scales, kh * kw * own), zero_point(rng, dtype))
    w.operator(
        "CONV_2D", [x, filters, bias], [out], "Conv2DOptions", padding=SAME, strideH=sy, strideW=sx,
        dilationHFactor=1, dilationWFactor=1, fusedActivationFunction=int(rng.integers(0, 2)), version=3,
    )  # fmt: skip


def prelu(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 2, 5, 5, 7)
    xs, xz = quantized(rng, dtype)
    x = w.activation(shape, dtype, xs, xz)
    kind = "int8" if dtype == "int16" else dtype  # the reference reads slopes of int16 activations as bytes
    slopes = w.constant(
        stored(rng, (1, 1, shape[3]), kind),
        log_uniform(rng, 1e-3, 1e-2),
        0 if kind != dtype else zero_point(rng, dtype),
    )
    out = w.tensor(shape, dtype, float(np.float32(xs * log_uniform(rng, 0.3, 3.0))), zero_point(rng, dtype))
    w.operator("PRELU", [x, slopes], [out])


sum_ = reducer("SUM", (3, 5, 5, 7), 4, (0.5, 50.0))


def reduce_prod(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """Over all but the one extent of an input near 1, so that products neither vanish nor saturate."""
    shape = dims(rng, 3, 4, 2, 3)
    axes = sorted(rng.choice(4, size=int(rng.integers(1, 4)), replace=False).tolist())
    keep_dims = bool(rng.random() < 0.5)
    reach = 2.0 ** (15 if dtype == "int16" else 7)
    x = w.activation(shape, dtype, log_uniform(rng, 0.5, 3.0) / reach, zero_point(rng, dtype))
    result = [1 if d in axes else e for d, e in enumerate(shape) if keep_dims or d not in axes]
    out = w.tensor(result, dtype, log_uniform(rng, 0.1, 1.0) / reach, zero_point(rng, dtype))
    w.operator(
        "REDUCE_PROD",
        [x, w.constant(either_sign(rng, axes, 4))],
        [out],
        "ReducerOptions",
        keepDims=keep_dims,
        version=2,
    )


def batch_matmul(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    n, depth, m = dims(rng, 5, 24, 6)
    batch = dims(rng, 3, 3)[2 - int(rng.integers(0, 3)) :]
    adjoint = [bool(rng.random() < 0.4), bool(rng.random() < 0.4)]
    batches = [tuple(1 if rng.random() < 0.2 else d for d in batch) for _ in range(2)]
    batch = tuple(max(pair) for pair in zip(*batches, strict=True))
    if rng.random() < 0.3:  # of lower rank than the other
        batches[1] = batches[1][int(rng.integers(0, len(batch) + 1)) :]
        batch = tuple(
            max(a, b) for a, b in zip(batches[0], (1,) * (len(batch) - len(batches[1])) + batches[1], strict=True)
        )
    left = (*batches[0], depth, n) if adjoint[0] else (*batches[0], n, depth)
    right = (*batches[1], m, depth) if adjoint[1] else (*batches[1], depth, m)
    (s1, z1), (s2, z2) = quantized(rng, dtype), quantized(rng, dtype)
    a = w.activation(left, dtype, s1, z1)
    constant = rng.random() < 0.3
    b = w.constant(stored(rng, right, dtype), s2, z2) if constant else w.activation(right, dtype, s2, z2)
    out = w.tensor((*batch, n, m), dtype, output_scale(rng, s1, np.array([s2]), depth), zero_point(rng, dtype))
    w.operator("BATCH_MATMUL", [a, b], [out], "BatchMatMulOptions", adjX=adjoint[0], adjY=adjoint[1])


def lstm(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """Float, now and then with peepholes, or int8 with a cell of int16 whose gates reach from flat to saturated; either now and
    then with a projection."""
    batch, steps, depth, units = dims(rng, 3, 5, 6, 6)
    major, coupled = bool(rng.random() < 0.4), bool(rng.random() < 0.3)
    made = int(rng.integers(1, 6)) if rng.random() < 0.5 else units  # by a projection
    shape, result_shape = ((steps, batch), (steps, batch, made)) if major else ((batch, steps), (batch, steps, made))
    (sx, zx), (sh, zh) = (quantized(rng, dtype, 1e-3, 0.1), (log_uniform(rng, 2e-3, 1 / 127), zero_point(rng, dtype)))
    x = w.activation((*shape, depth), dtype, sx, zx)
    inputs = [x, *([-1] * 23)]
    for k in range(1 if coupled else 0, 4):
        sw, sr = log_uniform(rng, 1e-3, 0.05), log_uniform(rng, 1e-3, 0.05)
        inputs[1 + k] = w.constant(stored(rng, (units, depth), dtype), sw)
        inputs[5 + k] = w.constant(stored(rng, (units, made), dtype), sr)
        bias = rng.normal(0, 2 / (sx * sw), units).round() if dtype == "int8" else stored(rng, (units,), dtype)
        inputs[12 + k] = w.constant(bias.astype("int32" if dtype == "int8" else dtype), sx * sw)
    exponent = int(rng.integers(-15, -10))
    if dtype == "float32" and rng.random() < 0.4:
        for k in range(1 if coupled else 0, 3):
            inputs[9 + k] = w.constant(stored(rng, (units,), dtype))
    (su, zu), bias_type = (quantized(rng, dtype, 5e-3, 1 / 127) if made != units else (sh, zh)), "int32"
    if made != units:
        weights, sp = stored(rng, (made, units), dtype), log_uniform(rng, 1e-3, 0.02)
        shift = rng.normal(0, 2 / (su * sp), made).round().astype(bias_type) if dtype == "int8" else None
        inputs[16] = w.constant(weights, sp)
        inputs[17] = w.constant(stored(rng, (made,), dtype) if shift is None else shift, su * sp)
        inputs[17] = inputs[17] if rng.random() < 0.5 else -1
    inputs[18] = w.tensor((batch, made), dtype, sh, zh, variable=True)
    inputs[19] = w.tensor((batch, units), "int16" if dtype == "int8" else dtype, 2.0**exponent, variable=True)
    between = [w.tensor((1,), dtype, su, zu) for _ in range(5)] if dtype == "int8" else []
    clip, last = (float(rng.uniform(0.2, 1.0)) if rng.random() < 0.3 else 0.0 for _ in range(2))
    options = {"fusedActivationFunction": 4, "timeMajor": major, "cellClip": clip}
    options["projClip"] = last if dtype == "float32" or made != units else 0.0
    name, table = "UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTMOptions"
    w.operator(name, inputs, [w.tensor(result_shape, dtype, sh, zh)], table, intermediates=between, **options)


def svdf(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """Float, or int8 with a state of int16."""
    batch, depth, units, rank, steps = dims(rng, 3, 12, 6, 4, 5)
    (xs, xz), (fs, ts) = quantized(rng, dtype, 1e-3, 0.1), (log_uniform(rng, 1e-3, 0.05) for _ in range(2))
    kind = "int16" if dtype == "int8" else dtype
    state = log_uniform(rng, 1e-4, 1e-2)
    out_scale = float(np.float32(state * ts * 32768 * 128 * log_uniform(rng, 0.2, 20.0)))
    inputs = [
        w.activation((batch, depth), dtype, xs, xz),
        w.constant(stored(rng, (rank * units, depth), dtype), fs),
        w.constant(stored(rng, (rank * units, steps), kind), ts),
        w.constant(rng.normal(0, 3 * out_scale / (state * ts), units).astype("int32"), state * ts)
        if dtype == "int8"
        else w.constant(stored(rng, (units,), dtype)),
        w.tensor((batch, rank * units * steps), kind, state, variable=True),
    ]
    inputs[3] = inputs[3] if rng.random() < 0.7 else -1
    out = w.tensor((batch, units), dtype, out_scale, zero_point(rng, dtype))
    w.operator("SVDF", inputs, [out], "SVDFOptions", rank=rank, fusedActivationFunction=1, version=3)


OPERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "transpose_conv": transpose_conv,
        "grouped_conv2d": grouped_conv2d,
        "prelu": prelu,
        "sum": sum_,
        "reduce_prod": reduce_prod,
        "batch_matmul": batch_matmul,
        "svdf": svdf,
    }
)
# the reference sums int8 as if it were unsigned, and has no products of uint8
KINDS = tuple(
    (name, dtype)
    for name in OPERATORS
    for dtype in ("int8", "uint8")
    if (name, dtype) not in (("sum", "int8"), ("batch_matmul", "uint8"), ("reduce_prod", "uint8"), ("svdf", "uint8"))
)
INT16 = ("transpose_conv", "grouped_conv2d", "batch_matmul", "prelu", "reduce_prod")
