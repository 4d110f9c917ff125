"""Random single-operator cases of float activations beside stored weights ("dynamic range"), and of numbers that are no
quantized ones: int32, booleans; see `operator_cases`. Each generator has one type, whatever is asked."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.testing.operator_cases import SAME, Generator, dims, either_sign, log_uniform, stored
from tvm_cascade.testing.tflite import ELEMENT_TYPES, ModelWriter

Shape = tuple[int, ...]
Random = np.random.Generator
_NUMBERS = ("float32", "float32", "int32")


def _shape(rng: Random, least: int = 1, most: int = 4) -> Shape:
    return dims(rng, 3, 5, 5, 6)[4 - int(rng.integers(least, most + 1)) :]


def _smaller(rng: Random, shape: Shape) -> Shape:
    small = tuple(1 if rng.random() < 0.4 else d for d in shape)
    return small[int(rng.integers(0, len(small))) :] if rng.random() < 0.3 else small


def _values(rng: Random, shape: Shape, dtype: str) -> np.ndarray:
    if dtype == "int32":
        return rng.integers(-9, 10, shape).astype(dtype)
    return rng.random(shape) < 0.5 if dtype == "bool" else rng.standard_normal(shape).astype(dtype)


# Float activations, stored weights.


def _bytes(rng: Random, w: ModelWriter, shape: Shape, axis: int | None) -> int:
    scale: Any = log_uniform(rng, 1e-3, 0.1)
    if axis is not None:
        scale = np.array([log_uniform(rng, 1e-3, 0.1) for _ in range(shape[axis])], "float32")
    return w.tensor(shape, "int8", scale, axis=axis or 0, data=rng.integers(-127, 128, shape).astype("int8"))


def _hybrid_window(rng: Random, size: Shape, kernel: Shape) -> tuple[dict[str, Any], Shape]:
    padding, stride = int(rng.integers(0, 2)), dims(rng, 2, 2)
    dilation = dims(rng, 2, 2) if rng.random() < 0.2 and stride == (1, 1) else (1, 1)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if any(s > n for s, n in zip(spans, size, strict=True)):
        padding = SAME
    result = tuple(
        -(-n // s) if padding == SAME else (n - span) // s + 1 for n, s, span in zip(size, stride, spans, strict=True)
    )
    how: dict[str, Any] = {
        "padding": padding,
        "strideH": stride[0],
        "strideW": stride[1],
        "dilationHFactor": dilation[0],
    }
    return {
        **how,
        "dilationWFactor": dilation[1],
        "fusedActivationFunction": int(rng.choice([0, 1, 3])),
    }, result


def hybrid_conv(rng: Random, _dtype: str, w: ModelWriter) -> None:
    n, h, wd, cin, cout, kh, kw = dims(rng, 2, 9, 8, 6, 6, 3, 3)
    how, size = _hybrid_window(rng, (h, wd), (kh, kw))
    x = w.activation((n, h, wd, cin), "float32")
    kernel = _bytes(rng, w, (cout, kh, kw, cin), 0 if rng.random() < 0.7 else None)
    bias = w.constant(stored(rng, (cout,), "float32"))
    w.operator("CONV_2D", [x, kernel, bias], [w.tensor((n, *size, cout), "float32")], "Conv2DOptions", **how)


def hybrid_depthwise(rng: Random, _dtype: str, w: ModelWriter) -> None:
    n, h, wd, c, times, kh, kw = dims(rng, 2, 9, 8, 6, 2, 3, 3)
    how, size = _hybrid_window(rng, (h, wd), (kh, kw))
    x = w.activation((n, h, wd, c), "float32")
    kernel, bias = _bytes(rng, w, (1, kh, kw, c * times), 3), w.constant(stored(rng, (c * times,), "float32"))
    out = w.tensor((n, *size, c * times), "float32")
    w.operator("DEPTHWISE_CONV_2D", [x, kernel, bias], [out], "DepthwiseConv2DOptions", depthMultiplier=times, **how)


def hybrid_dense(rng: Random, _dtype: str, w: ModelWriter) -> None:
    rows, depth, units = _shape(rng, 1, 3)[-2:], int(rng.integers(1, 40)), int(rng.integers(1, 9))
    keep, asymmetric = len(rows) > 1, bool(rng.random() < 0.5)
    x = w.activation((*rows, depth), "float32")
    weights = _bytes(rng, w, (units, depth), 0 if rng.random() < 0.6 else None)
    bias = w.constant(stored(rng, (units,), "float32")) if rng.random() < 0.6 else -1
    how: dict[str, Any] = {
        "asymmetricQuantizeInputs": asymmetric,
        "keepNumDims": keep,
        "fusedActivationFunction": int(rng.choice([0, 1, 3])),
    }
    w.operator(
        "FULLY_CONNECTED", [x, weights, bias], [w.tensor((*rows, units), "float32")], "FullyConnectedOptions", **how
    )


def hybrid_matmul(rng: Random, _dtype: str, w: ModelWriter) -> None:
    n, depth, units, lead = *dims(rng, 5, 24, 6), _shape(rng, 1, 2)
    turned = bool(rng.random() < 0.5)
    x = w.activation((*lead, n, depth), "float32")
    weights = _bytes(rng, w, (units, depth) if turned else (depth, units), None)
    how: dict[str, Any] = {"adjY": turned, "asymmetricQuantizeInputs": bool(rng.random() < 0.5)}
    w.operator("BATCH_MATMUL", [x, weights], [w.tensor((*lead, n, units), "float32")], "BatchMatMulOptions", **how)


def embedding(rng: Random, _dtype: str, w: ModelWriter) -> None:
    rows, depth, count = dims(rng, 9, 8, 6)
    places = w.constant(rng.integers(0, rows, count).astype("int32"))
    x = w.activation((count, depth), "float32")
    table = (
        w.constant(stored(rng, (rows, depth), "float32")) if rng.random() < 0.4 else _bytes(rng, w, (rows, depth), None)
    )
    looked = w.tensor((count, depth), "float32")
    w.operator("EMBEDDING_LOOKUP", [places, table], [looked], inner=True)
    out = w.tensor((count, depth), "float32")
    w.operator("ADD", [looked, x], [out], "AddOptions")


# Numbers that are not quantized.


def _plain(name: str, low: float, high: float, options: str | None = None) -> Generator:
    """Return the generator for a float function in a range, which a TANH makes: inputs are drawn by what runs the file."""

    def generate(rng: Random, _dtype: str, w: ModelWriter) -> None:
        shape = _shape(rng)
        x, bounded, scaled = w.activation(shape, "float32"), w.tensor(shape, "float32"), w.tensor(shape, "float32")
        w.operator("TANH", [x], [bounded], inner=True)
        half = w.constant(np.array((high - low) / 2, "float32"))
        w.operator("MUL", [bounded, half], [scaled], "MulOptions", inner=True)
        moved = w.tensor(shape, "float32")
        w.operator(
            "ADD", [scaled, w.constant(np.array((high + low) / 2, "float32"))], [moved], "AddOptions", inner=True
        )
        w.operator(name, [moved], [w.tensor(shape, "float32")], options)

    return generate


def _division(name: str, options: str) -> Generator:
    def generate(rng: Random, _dtype: str, w: ModelWriter) -> None:
        shape, dtype = _shape(rng), str(rng.choice(("float32", "int32")))
        divisors = rng.choice([-7, -3, -2, -1, 1, 2, 3, 5], _smaller(rng, shape)).astype(dtype)
        w.operator(name, [w.activation(shape, dtype), w.constant(divisors)], [w.tensor(shape, dtype)], options)

    return generate


def power(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape, dtype = _shape(rng), str(rng.choice(("float32", "int32")))
    exponents = rng.integers(0, 3, _smaller(rng, shape)).astype(dtype)
    x = w.activation(shape, dtype)
    w.operator("POW", [x, w.constant(exponents)], [w.tensor(shape, dtype)], "PowOptions")


def add_n(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape, dtype = _shape(rng), str(rng.choice(("float32", "int32")))
    parts = [w.activation(shape, dtype) for _ in range(int(rng.integers(2, 5)))]
    w.operator("ADD_N", parts, [w.tensor(shape, dtype)], "AddNOptions")


def logic(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    name, table = [
        ("LOGICAL_AND", "LogicalAndOptions"),
        ("LOGICAL_OR", "LogicalOrOptions"),
        ("LOGICAL_NOT", "LogicalNotOptions"),
    ][int(rng.integers(3))]
    given = [w.activation(shape, "bool")]
    if name != "LOGICAL_NOT":
        given.append(w.activation(_smaller(rng, shape), "bool"))
    w.operator(name, given, [w.tensor(shape, "bool")], table)


def _axes(rng: Random, shape: Shape) -> tuple[list[int], bool, list[int]]:
    axes = sorted(rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), replace=False).tolist())
    keep = bool(rng.random() < 0.5)
    return axes, keep, [1 if d in axes else e for d, e in enumerate(shape) if keep or d not in axes]


def truths(rng: Random, _dtype: str, w: ModelWriter) -> None:
    """Draw REDUCE_ANY and REDUCE_ALL."""
    shape = _shape(rng)
    axes, keep, result = _axes(rng, shape)
    given = [w.activation(shape, "bool"), w.constant(either_sign(rng, axes, len(shape)))]
    name = str(rng.choice(("REDUCE_ANY", "REDUCE_ALL")))
    w.operator(name, given, [w.tensor(result, "bool")], "ReducerOptions", keepDims=keep)


def int32_reductions(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    axes, keep, result = _axes(rng, shape)
    name = str(rng.choice(("SUM", "REDUCE_MAX", "REDUCE_MIN", "MEAN")))
    given = [w.activation(shape, "int32"), w.constant(either_sign(rng, axes, len(shape)))]
    w.operator(name, given, [w.tensor(result, "int32")], "ReducerOptions", keepDims=keep)


def int32_arithmetic(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    name, table = [("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions"), ("MAXIMUM", "MaximumMinimumOptions"),
                   ("MINIMUM", "MaximumMinimumOptions"), ("SQUARED_DIFFERENCE", "SquaredDifferenceOptions")][
        int(rng.integers(6))
    ]  # fmt: skip
    small = _smaller(rng, shape)
    y = w.constant(_values(rng, small, "int32")) if rng.random() < 0.4 else w.activation(small, "int32")
    given = [w.activation(shape, "int32"), y]
    w.operator(name, given if rng.random() < 0.5 else given[::-1], [w.tensor(shape, "int32")], table)


def cumsum(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape, dtype = _shape(rng), str(rng.choice(_NUMBERS))
    axis = w.constant(np.array(either_sign(rng, [int(rng.integers(len(shape)))], len(shape))[0], "int32"))
    how: dict[str, Any] = {"exclusive": bool(rng.random() < 0.5), "reverse": bool(rng.random() < 0.5)}
    w.operator("CUMSUM", [w.activation(shape, dtype), axis], [w.tensor(shape, dtype)], "CumsumOptions", **how)


def scatter_nd(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape, dtype = _shape(rng, 1, 3), str(rng.choice(_NUMBERS))
    depth = int(rng.integers(1, len(shape) + 1))
    count = int(rng.integers(1, min(4, prod(shape[:depth])) + 1))
    flat = rng.choice(prod(shape[:depth]), count, replace=False)
    places = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype("int32")
    updates = w.activation((count, *shape[depth:]), dtype)
    given = [w.constant(places), updates, w.constant(np.array(shape, "int32"))]
    w.operator("SCATTER_ND", given, [w.tensor(shape, dtype)], "ScatterNdOptions")


def one_hot(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape, depth = _shape(rng, 1, 3), int(rng.integers(1, 6))
    axis = int(rng.integers(-1, len(shape) + 1))
    at = len(shape) if axis < 0 else axis
    x, places = w.activation(shape, "float32"), w.tensor(shape, "int32")
    w.operator("CAST", [x], [places], "CastOptions", inDataType=0, outDataType=2, inner=True)
    pair = [w.constant(np.array(v, "float32")) for v in ((1.0, 0.0) if rng.random() < 0.6 else (2.5, -1.0))]
    out = w.tensor((*shape[:at], depth, *shape[at:]), "float32")
    w.operator("ONE_HOT", [places, w.constant(np.array(depth, "int32")), *pair], [out], "OneHotOptions", axis=axis)


def cast(rng: Random, _dtype: str, w: ModelWriter) -> None:
    source, target = (str(v) for v in rng.choice(("float32", "int32", "bool", "int8", "uint8", "int16"), 2))
    shape = _shape(rng)
    how: dict[str, Any] = {"inDataType": ELEMENT_TYPES[source], "outDataType": ELEMENT_TYPES[target]}
    w.operator("CAST", [w.activation(shape, source)], [w.tensor(shape, target)], "CastOptions", **how)


def response_normalization(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 2, 4, 4, 9)
    how: dict[str, Any] = {
        "radius": int(rng.integers(0, 3)),
        "bias": 1.0,
        "alpha": float(rng.choice((1e-3, 0.5))),
        "beta": float(rng.choice((0.5, 0.75))),
    }
    w.operator(
        "LOCAL_RESPONSE_NORMALIZATION", [w.activation(shape, "float32")], [w.tensor(shape, "float32")],
        "LocalResponseNormalizationOptions", **how,
    )  # fmt: skip


def l2_pool(rng: Random, _dtype: str, w: ModelWriter) -> None:
    n, h, wd, c, kh, kw, sh, sw = dims(rng, 2, 8, 8, 4, 3, 3, 2, 2)
    padding = SAME if kh > h or kw > wd else int(rng.integers(0, 2))
    size = (-(-h // sh), -(-wd // sw)) if padding == SAME else ((h - kh) // sh + 1, (wd - kw) // sw + 1)
    how: dict[str, Any] = {"padding": padding, "strideH": sh, "strideW": sw, "filterHeight": kh, "filterWidth": kw}
    x, out = w.activation((n, h, wd, c), "float32"), w.tensor((n, *size, c), "float32")
    w.operator("L2_POOL_2D", [x], [out], "Pool2DOptions", **how)


def padv2(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape, dtype = _shape(rng), str(rng.choice(_NUMBERS))
    widths = rng.integers(0, 3, (len(shape), 2)).astype("int32")
    result = [d + int(a) + int(b) for d, (a, b) in zip(shape, widths, strict=True)]
    given = [w.activation(shape, dtype), w.constant(widths), w.constant(np.array(rng.integers(-5, 6), dtype))]
    w.operator("PADV2", given, [w.tensor(result, dtype)], "PadV2Options")


def update_slice(rng: Random, _dtype: str, w: ModelWriter) -> None:
    shape, dtype = _shape(rng, 1, 3), str(rng.choice(_NUMBERS))
    part = (int(rng.integers(1, shape[0] + 1)), *shape[1:])
    start = np.array([int(rng.integers(0, d - p + 1)) for d, p in zip(shape, part, strict=True)], "int32")
    given = [w.activation(shape, dtype), w.activation(part, dtype), w.constant(start)]
    w.operator("DYNAMIC_UPDATE_SLICE", given, [w.tensor(shape, dtype)], "DynamicUpdateSliceOptions")


def _rnn(name: str) -> Generator:
    def generate(rng: Random, _dtype: str, w: ModelWriter) -> None:
        batch, steps, depth, units = dims(rng, 3, 4, 5, 5)
        major = bool(rng.random() < 0.5)
        lead = (batch,) if name == "RNN" else (steps, batch) if major else (batch, steps)
        x = w.activation((*lead, depth), "float32")
        small = np.float32(0.4)
        given = [x, *(w.constant(stored(rng, (units, e), "float32") * small) for e in (depth, units))]
        given += [w.constant(stored(rng, (units,), "float32")), w.tensor((batch, units), "float32", variable=True)]
        how: dict[str, Any] = {"fusedActivationFunction": int(rng.choice([1, 4]))}
        table = "RNNOptions" if name == "RNN" else "SequenceRNNOptions"
        how |= {} if name == "RNN" else {"timeMajor": major}
        w.operator(name, given, [w.tensor((*lead, units), "float32")], table, **how)

    return generate


def int4_layers(rng: Random, dtype: str, w: ModelWriter) -> None:
    """Draw FULLY_CONNECTED with weights of four bits, beside int8 activations or floats."""
    rows, depth, units = dims(rng, 4, 40, 9)
    data = rng.integers(-7, 8, (units, depth)).astype("int8")
    hybrid = bool(rng.random() < 0.5)
    scales = np.array([log_uniform(rng, 1e-2, 0.2) for _ in range(units)], "float32")
    weights = w.small(data, scales)
    if hybrid:
        x, bias = w.activation((rows, depth), "float32"), w.constant(stored(rng, (units,), "float32"))
        out = w.tensor((rows, units), "float32")
    else:
        scale = log_uniform(rng, 1e-2, 0.1)
        x = w.activation((rows, depth), "int8", scale, int(rng.integers(-20, 21)))
        data32 = rng.integers(-500, 500, units).astype("int32")
        bias = w.tensor((units,), "int32", (scales * scale).astype("float32"), 0, data=data32)
        typical = scale * float(np.median(scales)) * 127 * 4 * np.sqrt(depth) / 127
        out = w.tensor((rows, units), "int8", float(np.float32(typical)), int(rng.integers(-20, 21)))
    w.operator("FULLY_CONNECTED", [x, weights, bias], [out], "FullyConnectedOptions", version=7)


OPERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "hybrid_conv": hybrid_conv,
        "hybrid_depthwise": hybrid_depthwise,
        "hybrid_dense": hybrid_dense,
        "hybrid_matmul": hybrid_matmul,
        "embedding": embedding,
        "floor": _plain("FLOOR", -3.6, 3.9),  # an ulp of TANH next to 1 changes no integer
        "sin": _plain("SIN", -4, 4),
        "cos": _plain("COS", -4, 4, "CosOptions"),
        "square": _plain("SQUARE", -4, 4, "SquareOptions"),
        "sign": _plain("SIGN", -1, 1, "SignOptions"),
        "floor_div": _division("FLOOR_DIV", "FloorDivOptions"),
        "floor_mod": _division("FLOOR_MOD", "FloorModOptions"),
        "power": power,
        "add_n": add_n,
        "logic": logic,
        "truths": truths,
        "int32_reductions": int32_reductions,
        "int32_arithmetic": int32_arithmetic,
        "cumsum": cumsum,
        "scatter_nd": scatter_nd,
        "one_hot": one_hot,
        "cast": cast,
        "response_normalization": response_normalization,
        "l2_pool": l2_pool,
        "padv2": padv2,
        "update_slice": update_slice,
        "rnn": _rnn("RNN"),
        "sequence_rnn": _rnn("UNIDIRECTIONAL_SEQUENCE_RNN"),
        "int4_layers": int4_layers,
    }
)
KINDS = tuple((name, "float32") for name in OPERATORS)
