"""Arithmetic of `.tflite` files beside quantized tensors, as LiteRT computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm
from tvm import relax

import tvm_cascade
from tvm_cascade.errors import LoadError, UnsupportedOperatorError
from tvm_cascade.frontend import load
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.testing.litert_check import equal_planned
from tvm_cascade.testing.reference import Reference
from tvm_cascade.testing.tflite import ELEMENT_TYPES, ModelWriter

TWO = {
    "DIV": "DivOptions",
    "FLOOR_DIV": "FloorDivOptions",
    "POW": "PowOptions",
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions",
}


def of_two(name: str, dtype: str, other: np.ndarray | None = None) -> ModelWriter:
    """A file of one operator on an input [1, 4] and a constant, or another input."""
    w = ModelWriter()
    x = w.activation((1, 4), dtype)
    y = w.activation((1, 4), dtype) if other is None else w.constant(other.astype(dtype))
    w.operator(name, [x, y], [w.tensor((1, 4), dtype)], TWO[name])
    return w


@pytest.mark.parametrize("divisor", [0.0, -0.0, [0.0], [[0.0, 2.0, -0.0, 0.0]]])
def test_quotients_by_a_constant_0_are_bounded_as_the_reference_bounds_them(tmp_path: Path, divisor: object) -> None:
    x = np.array([[1, -3, 2, 0]], "float32")
    (made,) = equal_planned(tmp_path, of_two("DIV", "float32", np.array(divisor)), [x], exact=True)
    assert abs(made[0, 0]) == np.finfo("float32").max
    assert np.isnan(made[0, 3])


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_squared_differences(tmp_path: Path, dtype: str) -> None:
    given = [np.array([[-7, 0, 5, 8]], dtype), np.array([[2, 3, 0, -40000]], dtype)]
    equal_planned(tmp_path, of_two("SQUARED_DIFFERENCE", dtype), given)


def test_averages_over_channels_run_row_by_row(tmp_path: Path) -> None:
    """Local response normalization between two operators: a few rows of it are held, not the image."""
    w = ModelWriter()
    x, y = w.activation((1, 16, 16, 8), "float32"), w.tensor((1, 8, 8, 8), "float32")
    half, normal = (w.tensor((1, 16, 16, 8), "float32") for _ in range(2))
    w.operator("RELU6", [x], [half])
    how = {"radius": 2, "alpha": 0.3, "bias": 1.5, "beta": 0.75}
    w.operator("LOCAL_RESPONSE_NORMALIZATION", [half], [normal], "LocalResponseNormalizationOptions", **how)
    size = {"strideW": 2, "strideH": 2, "filterWidth": 2, "filterHeight": 2}
    w.operator("MAX_POOL_2D", [normal], [y], "Pool2DOptions", padding=1, **size)
    w.outputs = [y]
    path = tmp_path / "n.tflite"
    path.write_bytes(w.finish())
    tvm_cascade.compile(path, target="host", output=tmp_path / "fw", stream_input=True)
    assert tvm_cascade.run(tmp_path / "fw", check=path).match
    assert tvm_cascade.plan(path, stream_input=True).peak_bytes < 16 * 16 * 8 * 4


def test_integers_to_a_power(tmp_path: Path) -> None:
    given = [np.array([[-7, -1, 5, 2]], "int32"), np.array([[3, 77, 0, 30]], "int32")]
    (made,) = equal_planned(tmp_path, of_two("POW", "int32"), given)
    assert made.tolist() == [[-343, -1, 1, 1 << 30]]
    equal_planned(tmp_path, of_two("POW", "int32", np.array([[3, 77, 0, 30]])), given[:1])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_floats_beyond_an_integer_type_become_its_ends(tmp_path: Path, dtype: str) -> None:
    """Compilers and cores leave them open: x86 gave the least integer, Cortex-M4 0 for NaN."""
    x = np.array(
        [-2.5, 300, -0.5, 255.5, 127.6, -129, 7e4, -7e4, 3e9, -3e9, 2.0**31, -(2.0**31), 1e19, -1e19], "float32"
    )
    x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan, -3.7, 2.0**31 - 128], "float32")])
    w = ModelWriter()
    given, made = w.activation(x.shape, "float32"), w.tensor(x.shape, dtype)
    types = {"inDataType": ELEMENT_TYPES["float32"], "outDataType": ELEMENT_TYPES[dtype]}
    w.operator("CAST", [given], [made], "CastOptions", **types)
    (ours,) = equal_planned(tmp_path, w, [x])
    info = np.iinfo(dtype)
    truncated = [info.max if np.isnan(v) else int(max(min(v, 2.0**70), -(2.0**70))) for v in x]
    assert ours.tolist() == [max(min(v, info.max), info.min) for v in truncated]


def test_casts_behind_stored_integers_saturate(tmp_path: Path) -> None:
    """What marks a network of TFLite outlives the passes on its quantized part."""
    w = ModelWriter()
    x = w.activation((1, 4, 4, 2), "int8", 0.1)
    stored = w.convolution(x, 3, 3, 1, np.random.default_rng(0))
    real, large = w.tensor((1, 4, 4, 3), "float32"), w.tensor((1, 4, 4, 3), "float32")
    w.operator("DEQUANTIZE", [stored], [real], "DequantizeOptions")
    w.operator("MUL", [real, w.constant(np.array([1e10], "float32"))], [large], "MulOptions")
    types = {"inDataType": ELEMENT_TYPES["float32"], "outDataType": ELEMENT_TYPES["int32"]}
    w.operator("CAST", [large], [w.tensor((1, 4, 4, 3), "int32")], "CastOptions", **types)
    *_, ours = equal_planned(tmp_path, w, [np.arange(-16, 16, dtype="int8").reshape(1, 4, 4, 2)], exact=True)
    assert {2**31 - 1, -(2**31)} <= {*ours.flatten().tolist()}


@pytest.mark.parametrize("objective", ["bytes", "latency"])
def test_programs_cast_as_the_reference_does(tmp_path: Path, objective: Any) -> None:
    """What marks a network of TFLite outlives the passes of TVM's pipeline and the stages of two branches."""
    w, shape = ModelWriter(), (1, 2, 2, 2)
    x, less = w.activation(shape, "float32"), w.tensor(shape, "float32")
    w.operator("NEG", [x], [less])
    for source, dtype in ((x, "int32"), (less, "int8"), (less, "int64")):
        types = {"inDataType": ELEMENT_TYPES["float32"], "outDataType": ELEMENT_TYPES[dtype]}
        w.operator("CAST", [source], [w.tensor(shape, dtype)], "CastOptions", **types)
    given = np.array([3e9, -3e9, 1e19, -1e19, np.inf, np.nan, -128.9, 7.5], "float32").reshape(shape)
    (tmp_path / "n.tflite").write_bytes(w.finish())
    program = tvm.compile(load(tmp_path / "n.tflite"), "llvm", relax_pipeline=cascade_pipeline(objective=objective))
    made = relax.VirtualMachine(program, tvm.cpu())["main"](tvm.runtime.tensor(given))
    for ours, theirs in zip(made, Reference(w.finish()).run([given]), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.parametrize(
    "name, dtype, other, text",
    [
        ("DIV", "int32", [0], "its divisor .input 1. holds 0"),
        ("FLOOR_DIV", "float32", [1, 0, 1, 1], "its divisor .input 1. holds 0"),
        ("POW", "int32", [-1], "its exponent .input 1. is negative"),
    ],
)
def test_what_the_reference_refuses_to_compute_is_refused(
    tmp_path: Path, name: str, dtype: str, other: list[int], text: str
) -> None:
    (tmp_path / "m.tflite").write_bytes(of_two(name, dtype, np.array(other)).finish())
    with pytest.raises(LoadError, match=text):
        load(tmp_path / "m.tflite")


@pytest.mark.parametrize(
    "shape, dtype, axis, exclusive, reverse",
    [
        ((7,), "int32", -1, True, False),
        ((2, 5, 3), "float32", 1, False, True),
        ((6, 8), "float32", 0, True, True),
        ((1, 3, 4), "int32", 2, False, False),
    ],
)
def test_cumulative_sums(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, axis: int, exclusive: bool, reverse: bool
) -> None:
    w = ModelWriter()
    given = [w.activation(shape, dtype), w.constant(np.array([axis], "int32"))]
    w.operator("CUMSUM", given, [w.tensor(shape, dtype)], "CumsumOptions", exclusive=exclusive, reverse=reverse)
    equal_planned(tmp_path, w)


def test_a_size_that_is_an_input_is_refused_with_the_remedy(tmp_path: Path) -> None:
    w = ModelWriter()
    shape, x = w.activation((4,), "int32"), w.activation((1, 3, 3, 2), "float32")
    given = [shape, w.constant(np.ones((4, 3, 3, 2), "float32")), x]
    how: dict[str, Any] = {"padding": 0, "strideH": 2, "strideW": 2}
    w.operator("TRANSPOSE_CONV", given, [w.tensor((1, 6, 6, 4), "float32")], "TransposeConvOptions", **how)
    (tmp_path / "m.tflite").write_bytes(w.finish())
    with pytest.raises(UnsupportedOperatorError, match=r"output shape .* fix it by --input-value"):
        tvm_cascade.compile(tmp_path / "m.tflite", target="host", output=tmp_path / "p")


@pytest.mark.parametrize("name", ["ARG_MAX", "ARG_MIN"])
def test_places_of_extreme_integers(tmp_path: Path, name: str) -> None:
    w = ModelWriter()
    given = [w.activation((2, 3, 5), "int32"), w.constant(np.array([1], "int32"))]
    w.operator(name, given, [w.tensor((2, 5), "int32")], f"Arg{name[4:].title()}Options", outputType=2)
    least = np.full((2, 3, 5), -(1 << 31), "int32")
    equal_planned(tmp_path, w, [least], [np.random.default_rng(0).integers(-9, 9, (2, 3, 5), "int32")])


@pytest.mark.parametrize("axes, kept", [([2], False), ([0, 1], True), ([0, 1, 2], False)])
def test_means_of_integers_are_divided_toward_zero(tmp_path: Path, axes: list[int], kept: bool) -> None:
    """Their sums exceed 32 bits."""
    w, shape = ModelWriter(), (2, 3, 5)
    given = [w.activation(shape, "int32"), w.constant(np.array(axes, "int32"))]
    made = [1 if a in axes else d for a, d in enumerate(shape) if kept or a not in axes]
    w.operator("MEAN", given, [w.tensor(made, "int32")], "ReducerOptions", keepDims=kept)
    equal_planned(tmp_path, w)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("size", [(7, 9), (2, 1), (3, 10)])
def test_a_nearest_resize_by_corners_and_centers(tmp_path: Path, size: tuple[int, int], dtype: str) -> None:
    w = ModelWriter()
    given = [w.activation((1, 3, 4, 2), dtype, 0.5), w.constant(np.array(size, "int32"))]
    both: dict[str, Any] = {"alignCorners": True, "halfPixelCenters": True}
    w.operator(
        "RESIZE_NEAREST_NEIGHBOR",
        given,
        [w.tensor((1, *size, 2), dtype, 0.5)],
        "ResizeNearestNeighborOptions",
        **both,
    )
    equal_planned(tmp_path, w)


@pytest.mark.parametrize("slopes", [(4,), (1, 4), (3, 4), (3, 1), (1, 1)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_computed_slopes_are_integers(tmp_path: Path, dtype: str, slopes: tuple[int, ...]) -> None:
    w = ModelWriter()
    x, alpha = w.activation((2, 3, 4), dtype, 0.0228, 7), w.activation(slopes, dtype, 0.217, 1)
    w.operator("PRELU", [x, alpha], [w.tensor((2, 3, 4), dtype, 0.0613, 3)])
    equal_planned(tmp_path, w, exact=True)
