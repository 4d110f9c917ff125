"""Random single-operator cases of comparisons, choices, reorderings, roots and chains of floats; see
`operator_cases`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.testing.operator_cases import Generator, dims, log_uniform, quantized, stored, zero_point
from tvm_cascade.testing.tflite import ModelWriter

Shape = tuple[int, ...]
_LOWEST = {"int8": -128, "uint8": 0, "int16": 0, "float32": 0}


def _shape(rng: np.random.Generator, least: int = 1) -> Shape:
    return dims(rng, 3, 5, 5, 6)[4 - int(rng.integers(least, 5)) :]


def _smaller(rng: np.random.Generator, shape: Shape) -> Shape:
    small = tuple(1 if rng.random() < 0.4 else d for d in shape)
    return small[int(rng.integers(0, len(small))) :] if rng.random() < 0.3 else small


def _test(name: str, options: str) -> Generator:
    """A comparison, whose outcome then becomes a number."""

    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        shape = _shape(rng)
        one = log_uniform(rng, 1e-4, 0.9)
        scales = [one, one if rng.random() < 0.5 or dtype == "int16" else log_uniform(rng, 1e-4, 0.9)]
        zeros = [zero_point(rng, dtype) for _ in scales]
        zeros[1] = zeros[0] if rng.random() < 0.5 else zeros[1]  # equality is rare otherwise
        x = w.activation(shape, dtype, scales[0], zeros[0])
        small = _smaller(rng, shape)
        constant = rng.random() < 0.3
        y = w.constant(stored(rng, small, dtype), scales[1], zeros[1]) if constant else None
        y = w.activation(small, dtype, scales[1], zeros[1]) if y is None else y
        truth = w.tensor(shape, "bool")
        w.operator(
            name, [x, y] if rng.random() < 0.5 or small != shape else [y, x], [truth], options, version=2, inner=True
        )
        real = w.tensor(shape, "float32")
        w.operator("CAST", [truth], [real], "CastOptions", inDataType=6, outDataType=0, inner=dtype != "float32")
        if dtype != "float32":
            out = w.tensor(shape, dtype, log_uniform(rng, 5e-3, 2.0), zero_point(rng, dtype))
            w.operator("QUANTIZE", [real], [out], "QuantizeOptions")

    return generate


def select(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """One of two tensors, either constant now and then, by a tensor of booleans."""
    shape = _shape(rng)
    s, z = quantized(rng, dtype)
    condition = w.activation(_smaller(rng, shape), "bool")
    shapes = [shape, _smaller(rng, shape)]
    rng.shuffle(shapes)
    fixed = int(rng.integers(0, 4))
    values = [
        w.constant(stored(rng, p, dtype), s, z) if k == fixed else w.activation(p, dtype, s, z)
        for k, p in enumerate(shapes)
    ]
    w.operator("SELECT_V2", [condition, *values], [w.tensor(shape, dtype, s, z)], "SelectV2Options")


def broadcast_to(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    s, z = quantized(rng, dtype)
    x = w.activation(_smaller(rng, shape), dtype, s, z)
    given = w.constant(np.array(shape, "int32"))
    w.operator("BROADCAST_TO", [x, given], [w.tensor(shape, dtype, s, z)], "BroadcastToOptions", version=3)


def reverse(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    first = int(rng.integers(0, len(shape)))  # the reference reverses axes that follow each other
    axes = np.arange(first, int(rng.integers(first, len(shape))) + 1, dtype="int32")
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    w.operator("REVERSE_V2", [x, w.constant(axes)], [w.tensor(shape, dtype, s, z)], "ReverseV2Options", version=3)


def strided_slice_masks(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """Bounds left out, axes dropped, axes made, the rest in dots: what Python's slices are converted to."""
    shape = dims(rng, 3, 5, 5, 6)[int(rng.integers(0, 2)) :]
    dots = int(rng.integers(0, len(shape))) if rng.random() < 0.5 else -1
    new_axis = int(rng.integers(0, len(shape))) if rng.random() < 0.4 else -1
    index: list[Any] = []
    rows: list[tuple[int, int, int]] = []  # begin, end, stride
    masks: dict[str, Any] = {f"{name}Mask": 0 for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")}

    def add(item: Any, row: tuple[int, int, int], *set_masks: str) -> None:
        for mask in set_masks:
            masks[mask] |= 1 << len(rows)
        index.append(item)
        rows.append(row)

    for axis, extent in enumerate(shape):
        if axis == new_axis:
            add(None, (0, 0, 1), "newAxisMask")
        kind = rng.random()
        if axis == dots:
            add(Ellipsis, (0, 0, 1), "ellipsisMask")
        elif kind < 0.3:
            at = int(rng.integers(-extent, extent))
            add(at, (at, at + 1, 1), "shrinkAxisMask")
        elif kind < 0.6:
            first = int(rng.integers(0, extent))
            add(slice(first, None), (first, 0, 1), "endMask")
        else:
            add(slice(None, None, -1), (0, 0, -1), "beginMask", "endMask")
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    out = w.tensor(np.empty(shape)[tuple(index)].shape, dtype, s, z)
    bounds = [w.constant(np.array(v, "int32")) for v in zip(*rows, strict=True)]
    w.operator("STRIDED_SLICE", [x, *bounds], [out], "StridedSliceOptions", **masks)


def gather_batches(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """Indices of their own for every batch."""
    shape = _shape(rng, 2)
    count = int(rng.integers(1, len(shape)))
    own = dims(rng, 4, 3)[: int(rng.integers(1, 3))]
    indices = rng.integers(0, shape[count], size=(*shape[:count], *own)).astype("int32")
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    out = w.tensor([*indices.shape, *shape[count + 1 :]], dtype, s, z)
    w.operator("GATHER", [x, w.constant(indices)], [out], "GatherOptions", axis=count, batchDims=count)


def gather_nd(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    depth, own = int(rng.integers(1, len(shape) + 1)), dims(rng, 4, 3)[: int(rng.integers(1, 3))]
    indices = np.stack([rng.integers(0, d, size=own) for d in shape[:depth]], -1).astype("int32")
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    out = w.tensor([*own, *shape[depth:]], dtype, s, z)
    w.operator("GATHER_ND", [x, w.constant(indices)], [out], "GatherNdOptions")


def top_k(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    k = int(rng.integers(1, shape[-1] + 1))
    x = w.activation(shape, dtype, *quantized(rng, dtype))
    outs = [w.tensor((*shape[:-1], k), dtype, 0.1), w.tensor((*shape[:-1], k), "int32")]
    w.operator("TOPK_V2", [x, w.constant(np.array(k, "int32"))], outs, "TopKV2Options")


def concat_constants(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """Some parts constant."""
    shape = list(_shape(rng))
    axis, s, z = int(rng.integers(0, len(shape))), *quantized(rng, dtype)
    parts, total, kinds = [], 0, rng.permutation([True, False, bool(rng.random() < 0.5)])
    for constant in kinds:
        own = [int(rng.integers(1, 4)) if d == axis else e for d, e in enumerate(shape)]
        total += own[axis]
        data = stored(rng, tuple(own), dtype)
        parts.append(w.constant(data, s, z) if constant else w.activation(own, dtype, s, z))
    out = w.tensor([total if d == axis else e for d, e in enumerate(shape)], dtype, s, z)
    w.operator("CONCATENATION", parts, [out], "ConcatenationOptions", axis=axis)


def _gelu(approximate: bool) -> Generator:
    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        shape = _shape(rng)
        s, z = quantized(rng, dtype, 1e-3, 0.1) if dtype != "int16" else (log_uniform(rng, 1e-5, 1e-3), 0)
        out = w.tensor(shape, dtype, float(np.float32(s * log_uniform(rng, 0.3, 3.0))), zero_point(rng, dtype))
        w.operator("GELU", [w.activation(shape, dtype, s, z)], [out], "GeluOptions", approximate=approximate)

    return generate


def _root(name: str) -> Generator:
    """Of what is not negative: the reference refuses the rest."""

    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        shape = _shape(rng)
        s = log_uniform(rng, 1e-4, 1.0)
        x = w.activation(shape, dtype, s, _LOWEST[dtype])
        if dtype in ("int16", "float32"):
            above = w.tensor(shape, dtype, s, 0)
            w.operator("EXP" if dtype == "float32" else "RELU", [x], [above], inner=True)
            x = above
        typical = s**0.5 * (10 if name == "SQRT" else 1 / (10 * s))
        step = float(np.float32(typical * log_uniform(rng, 1e-2, 1e-1) / (200 if dtype == "int16" else 1)))
        w.operator(name, [x], [w.tensor(shape, dtype, step, zero_point(rng, dtype))])

    return generate


def squared_difference(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    (s1, z1), (s2, z2) = quantized(rng, dtype, 1e-3, 0.3), quantized(rng, dtype, 1e-3, 0.3)
    x, small = w.activation(shape, dtype, s1, z1), _smaller(rng, shape)
    constant = rng.random() < 0.3
    y = w.constant(stored(rng, small, dtype), s2, z2) if constant else w.activation(small, dtype, s2, z2)
    least = (2 * max(s1, s2)) ** 2 / (1 << 14)  # below, the reference's multiplier exceeds one
    out = w.tensor(shape, dtype, float(np.float32(least * log_uniform(rng, 1.1, 2e5))), zero_point(rng, dtype))
    inputs = [x, y] if rng.random() < 0.5 or small != shape else [y, x]
    w.operator("SQUARED_DIFFERENCE", inputs, [out], version=2)


_UNARY = {"NEG": "NegOptions", "FLOOR": None, "SIN": None, "SQUARE": "SquareOptions", "ABS": "AbsOptions"}


def float_chain(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """Float operators between a dequantize and a quantize."""
    shape = _shape(rng)
    last = x = w.activation(shape, dtype, *quantized(rng, dtype, 1e-3, 0.1))
    if dtype != "float32":
        last = w.tensor(shape, "float32")
        w.operator("DEQUANTIZE", [x], [last], "DequantizeOptions", inner=True)
    for _ in range(int(rng.integers(1, 4))):
        name, result = str(rng.choice([*_UNARY, "ADD", "MUL"])), w.tensor(shape, "float32")
        if name in _UNARY:
            w.operator(name, [last], [result], _UNARY[name], inner=dtype != "float32")
        else:
            number = w.constant(rng.uniform(-2, 2, ()).astype("float32"))
            options = "AddOptions" if name == "ADD" else "MulOptions"
            w.operator(name, [last, number], [result], options, inner=dtype != "float32")
        last = result
    if dtype != "float32":
        out = w.tensor(shape, dtype, log_uniform(rng, 1e-3, 0.1), zero_point(rng, dtype))
        w.operator("QUANTIZE", [last], [out], "QuantizeOptions")


def prelu_by_place(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """Slopes that differ by row or column too."""
    shape = dims(rng, 2, 5, 5, 7)
    s, z = quantized(rng, dtype)
    kind = "int8" if dtype == "int16" else dtype
    own = tuple(d if rng.random() < 0.7 else 1 for d in shape[1:])
    slopes = w.constant(
        stored(rng, own, kind), log_uniform(rng, 1e-3, 1e-2), 0 if kind != dtype else zero_point(rng, dtype)
    )
    out = w.tensor(shape, dtype, float(np.float32(s * log_uniform(rng, 0.3, 3.0))), zero_point(rng, dtype))
    w.operator("PRELU", [w.activation(shape, dtype, s, z), slopes], [out])


OPERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "equal": _test("EQUAL", "EqualOptions"),
        "not_equal": _test("NOT_EQUAL", "NotEqualOptions"),
        "greater": _test("GREATER", "GreaterOptions"),
        "greater_equal": _test("GREATER_EQUAL", "GreaterEqualOptions"),
        "less": _test("LESS", "LessOptions"),
        "less_equal": _test("LESS_EQUAL", "LessEqualOptions"),
        "select": select,
        "broadcast_to": broadcast_to,
        "reverse": reverse,
        "strided_slice_masks": strided_slice_masks,
        "gather_batches": gather_batches,
        "gather_nd": gather_nd,
        "top_k": top_k,
        "concat_constants": concat_constants,
        "gelu": _gelu(False),
        "gelu_tanh": _gelu(True),
        "sqrt": _root("SQRT"),
        "rsqrt": _root("RSQRT"),
        "squared_difference": squared_difference,
        "float_chain": float_chain,
        "prelu_by_place": prelu_by_place,
    }
)

_INT8_ONLY = frozenset({"sqrt", "rsqrt", "squared_difference"})  # the reference has no uint8 form
KINDS = tuple(
    (name, dtype) for name in OPERATORS for dtype in ("int8", "uint8") if dtype == "int8" or name not in _INT8_ONLY
)
# not those of which the reference has no int16 form, nor those that stay float in int16
INT16 = tuple(n for n in OPERATORS if n not in ("sqrt", "squared_difference", "float_chain", "gather_nd"))
