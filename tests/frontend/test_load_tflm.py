"""Operators of TensorFlow Lite Micro's own networks, bit for bit as LiteRT's reference computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.checking.reference import reference_outputs
from tvm_cascade.errors import CascadeError, LoadError, UnsupportedOperatorError
from tvm_cascade.frontend import load
from tvm_cascade.passes.integer.fixed_point import quantize_multiplier, rounding_divide, srdhm
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing import move_cases, operator_cases, weighted_cases
from tvm_cascade.testing.litert_check import equal_outputs, host_equals
from tvm_cascade.testing.reference import Compiled, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

TYPES = ("int8", "uint8", "int16", "float32")


@pytest.mark.parametrize("dtype", TYPES)
def test_the_largest_elements_and_their_places(tmp_path: Path, dtype: str) -> None:
    """Few different values: most of the largest are equal, and the first of them are chosen."""
    writer = ModelWriter()
    for shape, k in (((9,), 4), ((3, 7), 7), ((2, 2, 5), 1)):
        x = writer.activation(shape, dtype, 0.1)
        outs = [writer.tensor((*shape[:-1], k), dtype, 0.1), writer.tensor((*shape[:-1], k), "int32")]
        writer.operator("TOPK_V2", [x, writer.constant(np.array(k, "int32"))], outs, "TopKV2Options")
    rng = np.random.default_rng(0)
    few = [rng.integers(1, 4, shape).astype(dtype) for shape in ((9,), (3, 7), (2, 2, 5))]
    signed = [(-a if dtype != "uint8" else 255 - a).astype(dtype) for a in few]
    places = equal_outputs(tmp_path, writer, few, signed)[1]
    assert len(set(places.tolist())) == 4
    equal_outputs(tmp_path, writer)
    host_equals(tmp_path)


@pytest.mark.parametrize("k", [0, 6])
def test_more_elements_than_there_are_are_refused(tmp_path: Path, k: int) -> None:
    writer = ModelWriter()
    outs = [writer.tensor((k,), "int8", 0.1), writer.tensor((k,), "int32")]
    x = writer.activation((5,), "int8", 0.1)
    writer.operator("TOPK_V2", [x, writer.constant(np.array(k, "int32"))], outs, "TopKV2Options")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match=rf"TOPK_V2.*k of {k} for \[5\]"):
        load(tmp_path / "m.tflite")


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32"])
def test_elements_at_computed_coordinates(tmp_path: Path, dtype: str) -> None:
    writer = ModelWriter()
    x, at = writer.activation((3, 4, 5), dtype, 0.1), writer.activation((2, 6, 2), "int32")
    one = writer.activation((7, 1), "int32")
    writer.operator("GATHER_ND", [x, at], [writer.tensor((2, 6, 5), dtype, 0.1)], "GatherNdOptions")
    writer.operator("GATHER_ND", [x, one], [writer.tensor((7, 4, 5), dtype, 0.1)], "GatherNdOptions")
    rng = np.random.default_rng(1)
    data = rng.integers(-100, 100, (3, 4, 5)).astype(dtype)
    places = np.stack([rng.integers(0, 3, (2, 6)), rng.integers(0, 4, (2, 6))], -1).astype("int32")
    equal_outputs(tmp_path, writer, [data, places, rng.integers(0, 3, (7, 1)).astype("int32")])


def test_elements_at_the_places_of_the_largest(tmp_path: Path) -> None:
    writer = ModelWriter()
    scores, rows = writer.activation((9,), "int8", 0.1), writer.activation((9, 4), "int8", 0.2, 3)
    best, places = writer.tensor((3,), "int8", 0.1), writer.tensor((3,), "int32")
    writer.operator("TOPK_V2", [scores, writer.constant(np.array(3, "int32"))], [best, places], "TopKV2Options")
    column = writer.tensor((3, 1), "int32")
    writer.operator("EXPAND_DIMS", [places, writer.constant(np.array(1, "int32"))], [column], inner=True)
    writer.operator("GATHER_ND", [rows, column], [writer.tensor((3, 4), "int8", 0.2, 3)], "GatherNdOptions")
    equal_outputs(tmp_path, writer)
    host_equals(tmp_path)


@pytest.mark.parametrize("kinds", [("int16", "int32"), ("int32", "int8"), ("int32", "int16")])
@pytest.mark.parametrize("ratio", [1e-9, 0.3, 1.0, 3e4])
def test_quantization_from_and_to_32_bits(tmp_path: Path, kinds: tuple[str, str], ratio: float) -> None:
    writer, (given, made) = ModelWriter(), kinds
    x = writer.activation((2, 50), given, 1e-3)
    scale = 1e-3 / ratio
    zero = 0 if made == "int16" else -5
    writer.operator("QUANTIZE", [x], [writer.tensor((2, 50), made, scale, zero)], "QuantizeOptions")
    equal_outputs(tmp_path, writer)
    host_equals(tmp_path)


def _svdf(
    writer: ModelWriter, dtype: str, batch: int, rank: int, seed: int = 0, kind: str = "int16", activation: int = 1
) -> None:
    """Scales and weights with which features and outputs reach from flat to saturated. `kind`: of the state."""
    rng = np.random.default_rng(seed)
    depth, units, steps = 9, 7, 4
    whole = dtype == "int8"
    x = writer.activation((batch, depth), dtype, 0.02, 5)
    features = rng.integers(-127, 128, (rank * units, depth)).astype("int8")
    most = np.iinfo(kind).max
    times = rng.integers(-most, most + 1, (rank * units, steps)).astype(kind)
    bias = (rng.integers(-90000, 90000, units) // (1 if kind == "int16" else 10)).astype("int32")
    scales = (0.01, 1 / (2 * most), 0.004 if kind == "int16" else 0.02)  # of features, times and state
    held = [
        writer.constant(features, scales[0]) if whole else writer.constant(features.astype("float32")),
        writer.constant(times, scales[1]) if whole else writer.constant((times / most).astype("float32")),
        writer.constant(bias, 0.001) if whole else writer.constant((bias / 9e4).astype("float32")),
    ]
    if seed % 2:
        held[2] = -1
    zero = 3 if kind == "int8" else 0
    state = writer.tensor((batch, rank * units * steps), kind if whole else dtype, scales[2], zero, variable=True)
    out = writer.tensor((batch, units), dtype, 0.1 * (1 + seed) if kind == "int16" else 0.02, -20)
    how: dict[str, Any] = {"rank": rank, "fusedActivationFunction": activation}
    writer.operator("SVDF", [x, *held, state], [out], "SVDFOptions", version=4, **how)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_filters_of_keyword_spotting(tmp_path: Path, dtype: str) -> None:
    writer = ModelWriter()
    for seed, (batch, rank) in enumerate(((1, 1), (3, 2), (1, 4))):
        _svdf(writer, dtype, batch, rank, seed)
    made = equal_outputs(tmp_path, writer)
    assert dtype == "float32" or len(np.unique(np.concatenate([m.ravel() for m in made]))) > 10
    host_equals(tmp_path)


@pytest.mark.parametrize("rank", [1, 2])
def test_filters_whose_state_is_int8_have_the_arithmetic_of_micro(tmp_path: Path, rank: int) -> None:
    """LiteRT reads such weights as int16, beyond their end: here a step from a state of zero is spelled out, filter by
    filter, and what arbitrates in LiteRT's place is held to it too."""
    writer, filters = ModelWriter(), 7 * rank
    _svdf(writer, "int8", 2, rank, kind="int8")
    path = tmp_path / "m.tflite"
    path.write_bytes(writer.finish())
    x = np.random.default_rng(3).integers(-128, 128, (2, 9)).astype("int8")
    lower: Any = LowerQuantized()
    (made,) = Compiled(lower(load(path, stateless=True)))(x)
    features, times, bias = (writer._buffers[k].data for k in (1, 2, 3))
    weights = features.view("int8").reshape(filters, 9).astype("int64")
    last, added = times.view("int8").reshape(filters, 4)[:, -1].astype("int64"), bias.view("int32").astype("int64")
    first = np.float32(0.02) * np.float32(0.01) / np.float32(0.02)
    second = np.float32(0.02) * np.float32(1 / 254) / np.float32(0.02)
    state = np.clip(_rescaled((x.astype("int64") - 5) @ weights.T, first) + 3, -128, 127) - 3
    total = (state * last).reshape(2, 7, rank).sum(-1) + added
    np.testing.assert_array_equal(made, np.clip(_rescaled(total, second) - 20, -128, 127))
    expected = reference_outputs(path, {"t0": x})
    assert expected.note == "LiteRT with SVDF: with a state of int8 computed as one of int16"
    np.testing.assert_array_equal(next(iter(expected.outputs.values())), made)
    assert len(np.unique(made)) > 5
    lowest, highest = int(state.min()), int(state.max())
    assert lowest == -131 and highest == 124  # both ends saturate, around the zero point


def _rescaled(x: np.ndarray, multiplier: np.float32) -> np.ndarray:
    m, s = quantize_multiplier(float(multiplier))
    return rounding_divide(srdhm(x << max(s, 0), m), max(-s, 0))


@pytest.mark.parametrize(
    "wrong, message",
    [({"activation": 0}, "another activation than RELU"), ({"own": 3}, "rank 3 of"), ({"own": 0}, "rank 0 of")],
)
def test_filters_of_other_forms_are_refused(tmp_path: Path, wrong: dict[str, int], message: str) -> None:
    writer = ModelWriter()
    _svdf(writer, "int8", 1, 2, activation=wrong.get("activation", 1))
    writer._operators[0].builtinOptions.rank = wrong.get("own", 2)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match=f"SVDF.*{message}"):
        load(tmp_path / "m.tflite")


def test_filters_without_a_state_of_their_own_are_refused(tmp_path: Path) -> None:
    writer = ModelWriter()
    _svdf(writer, "int8", 1, 1)
    writer._tensors[4].isVariable = False
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match=r"SVDF.*a state that is no variable"):
        load(tmp_path / "m.tflite")


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_shapes_that_the_file_leaves_empty_are_computed(tmp_path: Path, dtype: str) -> None:
    writer = ModelWriter()
    generators = (operator_cases.conv2d, operator_cases.fully_connected, operator_cases.OPERATORS["mean"])
    for generate in (*generators, weighted_cases.batch_matmul, weighted_cases.transpose_conv, move_cases.split_v):
        generate(np.random.default_rng(3), dtype, writer)
    for op in writer._operators:
        for output in op.outputs:
            writer._tensors[output].shape = np.array([], "int32")
    made = equal_outputs(tmp_path, writer)
    assert sorted({m.ndim for m in made}) == [1, 2, 3, 4]
    host_equals(tmp_path)


def test_decoders_of_detections_are_left_to_the_host(tmp_path: Path) -> None:
    writer = ModelWriter()
    boxes, scores = writer.activation((1, 6, 4), "float32"), writer.activation((1, 6, 3), "float32")
    anchors = writer.constant(np.zeros((6, 4), "float32"))
    outs = [writer.tensor(shape, "float32") for shape in ((1, 2, 4), (1, 2), (1, 2), (1,))]
    writer.operator("CUSTOM", [boxes, scores, anchors], outs, custom="TFLite_Detection_PostProcess")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match=r"TFLite_Detection_PostProcess.*left to the host"):
        load(tmp_path / "m.tflite")


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32"])
def test_a_transposed_convolution_whose_size_is_an_input_wants_its_value(tmp_path: Path, dtype: str) -> None:
    """As those of a network for sound that were cut out of it."""
    writer = ModelWriter()
    weighted_cases.transpose_conv(np.random.default_rng(5), dtype, writer)
    op = writer._operators[0]
    size = np.array(writer._tensors[op.outputs[0]].shape, "int32")
    op.inputs[0] = writer.activation((4,), "int32", name="size")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match=r"TRANSPOSE_CONV .* fix it by --input-value"):
        load(tmp_path / "m.tflite")
    tvm_cascade.compile(
        tmp_path / "m.tflite", target="host", output=tmp_path / "p", input_value={"size": size.tolist()}
    )
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "m.tflite").match


def test_a_transposed_convolution_that_stays_float_is_computed_before_it_is_quantized(tmp_path: Path) -> None:
    """Found by fuzzing: no multiplier holds a scale so small, and what the operator became stood behind its reader."""
    writer = ModelWriter()
    weighted_cases.transpose_conv(np.random.default_rng(5), "int8", writer)
    op = writer._operators[0]
    quantization: Any = writer._tensors[op.outputs[0]].quantization
    quantization.scale, quantization.zeroPoint = np.array([1e-40], "float32"), np.array([0])
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    lower: Any = LowerQuantized()
    x = random_inputs([{"dtype": "int8", "shape": tuple(writer._tensors[op.inputs[2]].shape)}], 0)
    made = Compiled(lower(load(tmp_path / "m.tflite")))(*x)[0]
    assert {-128, 127} <= set(np.unique(made).tolist()) <= {-128, 0, 127}


def test_a_softmax_of_bytes_in_halfwords(tmp_path: Path) -> None:
    """As TensorFlow Lite Micro's keyword network ends: probabilities in 16 bits, then in 32."""
    writer = ModelWriter()
    for shape, scale in (((3, 2), 0.07), ((1, 5, 11), 0.3), ((2, 40), 0.01)):
        x, y = writer.activation(shape, "int8", scale, 2), writer.tensor(shape, "int16", 1 / 65535, -32768)
        writer.operator("SOFTMAX", [x], [y], "SoftmaxOptions", beta=1.0)
        writer.operator("QUANTIZE", [y], [writer.tensor(shape, "int32", 2 / 65535)], "QuantizeOptions")
    equal_outputs(tmp_path, writer)
    host_equals(tmp_path)


def test_other_halfwords_with_a_zero_point_are_refused(tmp_path: Path) -> None:
    for name, zero in (("SOFTMAX", -32767), ("QUANTIZE", 5), ("TANH", -32768)):
        writer = ModelWriter()
        x, y = writer.activation((3, 2), "int8", 0.1), writer.tensor((3, 2), "int16", 1 / 65536, zero)
        writer.operator(
            name,
            [x],
            [y],
            "SoftmaxOptions" if name == "SOFTMAX" else None,
            **{"beta": 1.0} if name == "SOFTMAX" else {},
        )
        (tmp_path / "m.tflite").write_bytes(writer.finish())
        with pytest.raises(UnsupportedOperatorError, match=f"{name}.*int16 with a zero point"):
            load(tmp_path / "m.tflite")


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", ["REDUCE_ALL", "REDUCE_ANY"])
def test_reductions_of_booleans(tmp_path: Path, kind: str, kept: bool) -> None:
    writer = ModelWriter()
    for axes, shape in (((1,), (4, 1, 2)), ((-1, 0), (1, 3, 1))):
        x, axis = writer.activation((4, 3, 2), "bool"), writer.constant(np.array(axes, "int32"))
        out = shape if kept else tuple(d for d in shape if d > 1)
        writer.operator(kind, [x, axis], [writer.tensor(out, "bool")], "ReducerOptions", keepDims=kept)
    data = [np.random.default_rng(k).random((4, 3, 2)) < 0.5 for k in range(2)]
    equal_outputs(tmp_path, writer, data)


def _scattered(places: Any, updates: tuple[int, ...], shape: tuple[int, ...], dtype: str = "float32") -> ModelWriter:
    writer = ModelWriter()
    held = [writer.constant(np.array(a, "int32")) for a in (places, shape)]
    given = [held[0], writer.activation(updates, dtype), held[1]]
    writer.operator("SCATTER_ND", given, [writer.tensor(shape, dtype)], "ScatterNdOptions")
    return writer


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_updates_at_constant_places(tmp_path: Path, dtype: str) -> None:
    """The rest is zero."""
    for places, updates, shape in (
        ([[3], [1]], (2, 4), (6, 4)),
        ([[1, 2], [0, 0], [1, 0]], (3, 2), (2, 3, 2)),
        ([[[4], [0]], [[1], [2]]], (2, 2), (5,)),
    ):
        equal_outputs(tmp_path, _scattered(places, updates, shape, dtype))


@pytest.mark.parametrize(
    ("places", "said"), [([[1], [1]], "name a place twice"), ([[1], [6]], r"lies outside of the shape \[6, 4\]")]
)
def test_updates_at_places_that_are_not_there_or_twice_are_refused(tmp_path: Path, places: Any, said: str) -> None:
    (tmp_path / "m.tflite").write_bytes(_scattered(places, (2, 4), (6, 4)).finish())
    with pytest.raises(CascadeError, match=f"SCATTER_ND.*{said}"):
        load(tmp_path / "m.tflite")
