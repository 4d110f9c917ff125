"""Rows of docs/references.md that no other test holds: other libraries surprise there, this project computes the right value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
pytest.importorskip("onnxruntime")

import onnx
from onnx import helper, numpy_helper

from tvm_cascade.frontend import load
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.litert_check import equal_outputs, host_equals
from tvm_cascade.testing.reference import Compiled
from tvm_cascade.testing.tflite import ModelWriter

_LOWER: Any = LowerQuantized()
CODES = [np.arange(-128, 128).astype("int8")]  # every stored value of int8


@pytest.mark.parametrize("scale", [1 / 128, 1 / 100, 1 / 300, 0.0131])
@pytest.mark.parametrize("kind", ["TANH", "RELU6"])
def test_functions_of_int8_read_the_scale_of_their_output(tmp_path: Path, kind: str, scale: float) -> None:
    """TensorFlow Lite Micro writes steps of 1/128 for every TANH, and a RELU6 of the scale of its input."""
    for zero in (0, -17):
        writer = ModelWriter()
        x = writer.activation((256,), "int8", 0.05, 3)
        writer.operator(kind, [x], [writer.tensor((256,), "int8", scale, zero)])
        equal_outputs(tmp_path, writer, CODES)
    host_equals(tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("kind", ["TANH", "LOGISTIC"])
def test_tanh_and_logistic_read_any_scale_of_their_input(tmp_path: Path, kind: str, dtype: str) -> None:
    """At 2^-12 and 2^-11 LiteRT's default kernels of int16 leave the tables; outputs have the scale that LiteRT demands."""
    limits = np.iinfo(dtype)
    codes = np.arange(limits.min, limits.max + 1, 31 if dtype == "int16" else 1).astype(dtype)
    steps = 2.0 ** (limits.bits - 1) * (2 if kind == "LOGISTIC" and dtype != "int16" else 1)
    zero = {"int16": 0, "int8": -128 * (kind == "LOGISTIC"), "uint8": 128 * (kind == "TANH")}[dtype]
    for scale in (2**-12, 2**-11, 0.0007, 0.0131, 2**-5, 0.3):
        writer = ModelWriter()
        x = writer.activation(codes.shape, dtype, scale, 128 if dtype == "uint8" else 0)
        writer.operator(kind, [x], [writer.tensor(codes.shape, dtype, 1 / steps, zero)])
        equal_outputs(tmp_path, writer, [codes])
        host_equals(tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8"])
def test_quantize_rounds_alike_wherever_an_element_stands(tmp_path: Path, dtype: str) -> None:
    """The default kernel of LiteRT rounds eight halves to even, and five away from zero."""
    zero = 128 if dtype == "uint8" else 0
    writer = ModelWriter()
    x = writer.activation((13,), "float32")
    writer.operator("QUANTIZE", [x], [writer.tensor((13,), dtype, 1.0, zero)], "QuantizeOptions", version=2)
    for half, rounded in ((2.5, 3), (-2.5, -3), (0.5, 1)):
        (made,) = equal_outputs(tmp_path, writer, [np.full(13, half, "float32")])
        assert (made.astype(int) - zero).tolist() == [rounded] * 13
    host_equals(tmp_path)


@pytest.mark.parametrize(("size", "corners"), [((12, 12), True), ((7, 3), False)])
def test_bilinear_resizes_of_int8_have_the_reference_s_ten_bits(tmp_path: Path, size: Any, corners: bool) -> None:
    """They are more than a step from the rounded float result."""
    writer = ModelWriter()
    x, to = writer.activation((1, 5, 5, 2), "int8", 0.05, 3), writer.constant(np.array(size, "int32"))
    out = writer.tensor((1, *size, 2), "int8", 0.05, 3)
    writer.operator("RESIZE_BILINEAR", [x, to], [out], "ResizeBilinearOptions", alignCorners=corners)
    equal_outputs(tmp_path, writer)


def test_means_of_int8_are_rounded_twice_as_the_reference_does(tmp_path: Path) -> None:
    writer = ModelWriter()
    x, axes = writer.activation((40, 6), "int8", 0.05, 3), writer.constant(np.array([1], "int32"))
    writer.operator("MEAN", [x, axes], [writer.tensor((40,), "int8", 0.03, -5)], "ReducerOptions")
    equal_outputs(tmp_path, writer)


def _computed(path: Path, nodes: list[Any], held: dict[str, Any], x: np.ndarray) -> np.ndarray:
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(x.shape)) for name in "xy"]
    weights = [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return Compiled(_LOWER(load(path)))(x)[0]


def test_clips_whose_ranges_do_not_overlap(tmp_path: Path) -> None:
    """onnxscript's optimizer makes one of them, with another value."""
    nodes = [helper.make_node("Clip", ["x", "a", "b"], ["c"]), helper.make_node("Clip", ["c", "d", "e"], ["y"])]
    held = {name: np.float32(v) for name, v in zip("abde", (0, 1, 2, 3), strict=True)}
    assert _computed(tmp_path / "n.onnx", nodes, held, np.array([-5, 0.5, 2.5, 9], "float32")).tolist() == [2] * 4


def test_two_pairs_of_quantizers_round_twice(tmp_path: Path) -> None:
    """0.3 is one step of 0.5, which is two steps of 0.3; ONNX Runtime's optimizations make one pair of both."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "half", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["a", "half", "zero"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "third", "zero"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "third", "zero"], ["y"]),
    ]
    held = {"half": np.float32(0.5), "third": np.float32(0.3), "zero": np.int8(0)}
    made = _computed(tmp_path / "n.onnx", nodes, held, np.array([0.3, -0.3, 0.2], "float32"))
    np.testing.assert_allclose(made, [0.6, -0.6, 0], rtol=1e-6)
