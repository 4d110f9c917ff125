"""The oracle of `run --check`: which kernels it ran, and how far a network carries its roundings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")


import tvm_cascade
from tvm_cascade.checking.compare_outputs import difference
from tvm_cascade.checking.doubles import DoubleReference, Turn
from tvm_cascade.checking.reference import output_steps, reference_outputs
from tvm_cascade.checking.sensitivity import quantizes
from tvm_cascade.errors import LoadError, MissingToolError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.activation_cases import abs_, elu
from tvm_cascade.testing.operator_cases import Generator
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter


@pytest.mark.parametrize("operator, note", [(elu, "^the reference ones say: .*ELU"), (abs_, "^$")])
def test_other_kernels_than_the_reference_are_named(tmp_path: Path, operator: Generator, note: str) -> None:
    writer = ModelWriter()
    operator(np.random.default_rng(0), "int8", writer)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    (x,) = io_spec(load(tmp_path / "m.tflite")).inputs
    expected = reference_outputs(tmp_path / "m.tflite", {x.name: np.zeros(x.shape, "int8")})
    assert len(expected.outputs) == 1
    assert re.search(note, expected.note)
    assert expected.by == f"LiteRT's {'reference' if note == '^$' else 'ordinary'} kernels"


def _chain(path: Path, gain: float, opset: int) -> None:
    """Eight quantized products by a matrix that multiplies a step by about `gain`."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(0)
    weights = np.linalg.qr(rng.standard_normal((16, 16)))[0].astype("float32") * np.float32(gain)
    constants = {"s": np.float32(0.1), "z": np.array(0, "int8"), "w": weights}
    nodes, value = [], "x"
    for k in range(8):
        nodes.append(helper.make_node("QuantizeLinear", [value, "s", "z"], [f"q{k}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{k}", "s", "z"], [f"d{k}"]))
        nodes.append(helper.make_node("MatMul", [f"d{k}", "w"], [value := f"m{k}"]))
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [400, 16]) for n in ("x", value)]
    held = [numpy_helper.from_array(np.asarray(c), n) for n, c in constants.items()]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)


def test_the_reach_of_roundings_is_the_networks_own(tmp_path: Path) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((400, 16)).astype("float32")}
    reaches = []
    for name, gain, opset in (("calm", 0.3, 13), ("wild", 1.6, 19), ("wild", 1.6, 19)):
        path = tmp_path / f"{name}.onnx"
        _chain(path, gain, opset)
        assert quantizes(path) and output_steps(path) == {}  # the output itself is float
        plain, moved = (DoubleReference(path, {}, t).run(x)["m7"] for t in (None, Turn(np.random.default_rng(0))))
        reaches.append(difference(plain, moved))
    assert reaches[0] < 0.1 < 0.5 < reaches[1] == reaches[2]  # the same draws every time


def _running_sum(path: Path, scale: float) -> None:
    """Write a Scan whose state of int8 gets a number of another scale added; with 0.05 every sum is at a tie or exact."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper, steps = onnx.helper, onnx.numpy_helper, 8
    body = [
        helper.make_node("DequantizeLinear", ["state", "twice", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["row", "scale", "zero"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "twice", "zero"], ["new"]),
        helper.make_node("Identity", ["new"], ["row_out"]),
    ]

    def ports(**shapes: tuple[int, ...]) -> list[Any]:
        return [helper.make_tensor_value_info(name, onnx.TensorProto.INT8, s) for name, s in shapes.items()]

    constants = {"scale": np.float32(scale), "twice": np.float32(0.1), "zero": np.int8(0)}
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(
        body, "body", ports(state=(1, 16), row=(1, 16)), ports(new=(1, 16), row_out=(1, 16)), held
    )
    scan = helper.make_node("Scan", ["i", "x"], ["last", "all"], num_scan_inputs=1, body=graph)
    inputs, outputs = ports(i=(1, 16), x=(steps, 1, 16)), ports(last=(1, 16), all=(steps, 1, 16))
    whole = helper.make_graph([scan], "g", inputs, outputs)
    onnx.save(helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_running_sums_at_ties_are_checked(tmp_path: Path) -> None:
    """Ties are rounded as double precision has them; sums of another scale are told all the same."""
    _running_sum(tmp_path / "sum.onnx", 0.05)
    _running_sum(tmp_path / "other.onnx", 0.07)
    assert quantizes(tmp_path / "sum.onnx")
    tvm_cascade.compile(tmp_path / "sum.onnx", target="host", output=tmp_path / "sum")
    report = tvm_cascade.run(tmp_path / "sum", check=tmp_path / "sum.onnx")
    assert report.match is True
    assert tvm_cascade.run(tmp_path / "sum", check=tmp_path / "other.onnx").match is False


def _checked(path: Path, w: ModelWriter) -> tuple[np.ndarray, np.ndarray, str]:
    """What we make of random inputs, and what the arbiter does, with its note."""
    path.write_bytes(w.finish())
    lower: Any = LowerQuantized()
    mod = load(path)
    feed = random_inputs(Reference(w.finish()).inputs, 0)
    expected = reference_outputs(path, dict(zip((s.name for s in io_spec(mod).inputs), feed, strict=True)))
    return Compiled(lower(mod))(*feed)[0], next(iter(expected.outputs.values())), expected.note


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_sums_are_arbitrated_or_doubted(tmp_path: Path, dtype: str) -> None:
    """The reference reads signed integers as unsigned bytes."""
    w = ModelWriter()
    x, y = w.activation((1, 4, 6), dtype, 0.1, 3 * (dtype == "int8")), w.tensor((1, 6), dtype, 0.3)
    w.operator("SUM", [x, w.constant(np.array([1], "int32"))], [y], "ReducerOptions", keepDims=False)
    ours, theirs, note = _checked(tmp_path / "sums.tflite", w)
    if dtype == "int16":
        assert note == "LiteRT's reference SUM reads int16 as unsigned bytes"
    else:
        assert note == "LiteRT with SUM: of int8 computed as of uint8"
        np.testing.assert_array_equal(ours, theirs)
        assert (Reference(w.finish()).run(random_inputs(Reference(w.finish()).inputs, 0))[0] != theirs).any()


def test_the_window_of_a_response_normalization_is_arbitrated(tmp_path: Path) -> None:
    w = ModelWriter()
    x, y = w.activation((2, 3, 4, 9), "float32"), w.tensor((2, 3, 4, 9), "float32")
    how = {"radius": 2, "alpha": 0.3, "bias": 1.5, "beta": 0.6}
    w.operator("LOCAL_RESPONSE_NORMALIZATION", [x], [y], "LocalResponseNormalizationOptions", **how)
    ours, theirs, note = _checked(tmp_path / "lrn.tflite", w)
    assert note == "LiteRT with LOCAL_RESPONSE_NORMALIZATION: computed by TensorFlow's definition"
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    reference = Reference(w.finish())
    assert np.abs(reference.run(random_inputs(reference.inputs, 0))[0] - theirs).max() > 0.01


@pytest.mark.parametrize("asymmetric", [False, True])
def test_batches_of_two_axes_by_stored_weights_are_arbitrated(tmp_path: Path, asymmetric: bool) -> None:
    w, rng = ModelWriter(), np.random.default_rng(0)
    x, y = w.activation((2, 3, 2, 8), "float32"), w.tensor((2, 3, 2, 4), "float32")
    weights = w.constant(rng.integers(-127, 128, (4, 8)).astype("int8"), 0.02)
    how = {"adjY": True, "asymmetricQuantizeInputs": asymmetric}
    w.operator("BATCH_MATMUL", [x, weights], [y], "BatchMatMulOptions", **how)
    ours, theirs, note = _checked(tmp_path / "batches.tflite", w)
    assert note == "LiteRT with BATCH_MATMUL: with one batch axis"
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    reference = Reference(w.finish())
    assert np.abs(reference.run(random_inputs(reference.inputs, 0))[0] - theirs).max() > 1


def test_biases_of_int16_layers_are_named(tmp_path: Path) -> None:
    """The reference reads 32-bit biases of unnamed type as 64 bits."""
    w, rng = ModelWriter(), np.random.default_rng(0)
    x = w.activation((3, 8), "int16", 0.001)
    filters = w.constant(rng.integers(-127, 128, (4, 8)).astype("int8"), 0.004)
    bias = w.constant(rng.integers(-(1 << 20), 1 << 20, 4).astype("int32"), 0.001 * 0.004)
    w.operator("FULLY_CONNECTED", [x, filters, bias], [w.tensor((3, 4), "int16", 0.0004)], "FullyConnectedOptions")
    ours, theirs, note = _checked(tmp_path / "bias.tflite", w)
    assert note == "LiteRT with FULLY_CONNECTED: told that its bias has 32 bits"
    np.testing.assert_array_equal(ours, theirs)


def test_numbers_beyond_2_to_the_31_steps_are_arbitrated(tmp_path: Path) -> None:
    """The reference casts them to the least integer whatever their sign: half of the results are wrong."""
    w = ModelWriter()
    x, y = w.activation((60,), "float32"), w.tensor((60,), "int8", 1e-11, -3)
    w.operator("QUANTIZE", [x], [y], "QuantizeOptions")
    ours, theirs, note = _checked(tmp_path / "small.tflite", w)
    assert note == "LiteRT with QUANTIZE: told numbers within 2^30 steps"
    np.testing.assert_array_equal(ours, theirs)
    assert set(theirs.tolist()) == {-128, 127}
    reference = Reference(w.finish())
    assert (reference.run(random_inputs(reference.inputs, 0))[0] != theirs).sum() > 10


@pytest.mark.parametrize("dtype, zero", [("int8", -7), ("uint8", 200)])
def test_bytes_are_quantized_to_32_bits(tmp_path: Path, dtype: str, zero: int) -> None:
    """As TensorFlow Lite Micro does; LiteRT refuses it."""
    w = ModelWriter()
    x, y = w.activation((60,), dtype, 0.3, zero), w.tensor((60,), "int32", 1e-4, 11)
    w.operator("QUANTIZE", [x], [y], "QuantizeOptions")
    path = tmp_path / "wide.tflite"
    path.write_bytes(w.finish())
    lower: Any = LowerQuantized()
    stored = np.arange(60).astype(dtype)
    expected = reference_outputs(path, {io_spec(load(path)).inputs[0].name: stored})
    assert expected.note == "LiteRT with QUANTIZE: of 8 bits to 32 computed by way of 16"
    (theirs,) = expected.outputs.values()
    np.testing.assert_array_equal(Compiled(lower(load(path)))(stored)[0], theirs)
    np.testing.assert_allclose((theirs - 11) * 1e-4, 0.3 * (stored.astype("int32") - zero), atol=1e-4)


def _model(path: Path, kind: str, shape: tuple[int, ...], opset: int = 19, **attrs: Any) -> dict[str, np.ndarray]:
    """One operator with a weight where it needs one; its input."""
    onnx = pytest.importorskip("onnx")
    helper, rng = onnx.helper, np.random.default_rng(0)
    weights = {"ConvTranspose": rng.standard_normal((4, 3, 3, 3)), "Resize": np.array([1, 1, 1, 0.3])}
    held = [onnx.numpy_helper.from_array(weights[kind].astype("float32"), "w")] if kind in weights else []
    unused = [""] if kind == "Resize" else []
    node = helper.make_node(kind, ["x", *unused, *(w.name for w in held)], ["y"], **attrs)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")], held)
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return {"x": rng.standard_normal(shape).astype("float32")}


_WRONG: list[tuple[str, tuple[int, ...], int, dict[str, Any], str]] = [
    ("Softmax", (1, 4, 5, 6), 11, {"axis": 1}, "Softmax of opset 11"),
    ("LRN", (1, 4, 5, 6), 19, {"size": 3, "alpha": 0.1}, "LRN"),
    ("ConvTranspose", (1, 4, 5, 6), 19, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, "ConvTranspose of SAME_UPPER"),
    ("GlobalMaxPool", (1, 4, 5), 19, {}, "GlobalMaxPool of another rank than 4"),
    (
        "Resize",
        (1, 4, 5, 4),
        19,
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        "Resize to one element by pytorch_half_pixel",
    ),
    (
        "MaxPool",
        (1, 4, 5, 7),
        19,
        {"auto_pad": "SAME_LOWER", "kernel_shape": [4, 2], "strides": [2, 3]},
        "MaxPool of SAME_LOWER",
    ),
    (
        "AveragePool",
        (1, 4, 6, 7),
        19,
        {"auto_pad": "SAME_UPPER", "kernel_shape": [3, 3], "dilations": [2, 1]},
        "AveragePool of SAME with dilation",
    ),
]


@pytest.mark.parametrize(("kind", "shape", "opset", "attrs", "about"), _WRONG)
def test_where_onnx_s_evaluator_is_wrong_it_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    shape: tuple[int, ...],
    opset: int,
    attrs: dict[str, Any],
    about: str,
) -> None:
    x = _model(tmp_path / "m.onnx", kind, shape, opset, **attrs)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    remedy = "pip install 'tvm-cascade[check]', whose ONNX Runtime --check then uses"
    expected = reference_outputs(tmp_path / "m.onnx", x)
    assert (expected.by, expected.note) == ("ONNX's evaluator", f"it is wrong about {about}: {remedy}")


def test_of_the_last_axis_softmax_is_the_same_in_every_opset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = _model(tmp_path / "m.onnx", "Softmax", (3, 7), 11, axis=1)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert reference_outputs(tmp_path / "m.onnx", x).note == ""


def test_what_the_evaluator_refuses_names_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    x = _model(tmp_path / "m.onnx", "ConvTranspose", (1, 4, 5, 6), group=2)
    with pytest.raises(
        MissingToolError,
        match=r"pip install 'tvm-cascade\[check\]', whose ONNX Runtime --check then uses: ONNX's evaluator says",
    ):
        reference_outputs(tmp_path / "m.onnx", x)


def test_onnxruntime_is_asked_first(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    x = _model(tmp_path / "m.onnx", "Softmax", (1, 4, 5, 6), 11, axis=1)
    expected = reference_outputs(tmp_path / "m.onnx", x)
    assert (expected.by, expected.note) == ("ONNX Runtime without optimizations", "")
    np.testing.assert_allclose(expected.outputs["y"].sum(), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("padding", ["SAME_LOWER", "SAME_UPPER"])
@pytest.mark.parametrize("size, stride, dilation", [(6, 1, 2), (9, 2, 2), (8, 3, 2), (7, 1, 1)])
def test_the_padding_of_dilated_pools_is_written_out(
    tmp_path: Path, kind: str, padding: str, size: int, stride: int, dilation: int
) -> None:
    """ONNX Runtime pads as if windows were not dilated, and returns fewer elements."""
    pytest.importorskip("onnxruntime")
    attrs = {"kernel_shape": [3, 1], "strides": [stride, 1], "dilations": [dilation, 1], "auto_pad": padding}
    x = _model(tmp_path / "m.onnx", kind, (1, 2, size, 4), 22, **attrs)
    expected = reference_outputs(tmp_path / "m.onnx", x)
    assert expected.by == "ONNX Runtime without optimizations" and (kind in expected.note) is (dilation > 1)
    count = -(-size // stride)
    total = max((count - 1) * stride + 2 * dilation + 1 - size, 0)
    front = total // 2 if padding == "SAME_UPPER" else -(-total // 2)
    padded = np.pad(x["x"], ((0, 0), (0, 0), (front, total - front), (0, 0)), constant_values=np.nan)
    taps = [padded[:, :, k * dilation :][:, :, ::stride][:, :, :count] for k in range(3)]
    with np.errstate(all="ignore"):
        want = (np.nanmean if kind == "AveragePool" else np.nanmax)(np.stack(taps), axis=0)
    np.testing.assert_allclose(expected.outputs["y"], want, rtol=1e-6)
    tvm_cascade.compile(tmp_path / "m.onnx", target="host", output=tmp_path / "p")
    np.testing.assert_allclose(tvm_cascade.run(tmp_path / "p", inputs=x).outputs["y"], want, rtol=1e-6)


def test_what_onnxruntime_refuses_the_evaluator_computes(tmp_path: Path) -> None:
    """Tangents of double precision are in ONNX, and not in ONNX Runtime."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, [3]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Tan", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9),
        tmp_path / "m.onnx",
    )
    expected = reference_outputs(tmp_path / "m.onnx", {"x": np.array([1, -2, 3], "float64")})
    assert expected.by == "ONNX's evaluator" and expected.note.startswith("ONNX Runtime refuses it: ")
    np.testing.assert_allclose(expected.outputs["y"], np.tan([1, -2, 3]))


@pytest.mark.parametrize("name", ["m.tflite", "m.onnx", "m.pt2"])
@pytest.mark.parametrize("data", [b"", b"garbage, and more of it", b"\x08\x00\x00\x00TFL3\xff\xff\xff\x7f"])
def test_files_that_hold_no_model_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    pytest.importorskip({"m.onnx": "onnx", "m.pt2": "torch"}.get(name, "ai_edge_litert"))
    (tmp_path / name).write_bytes(data)
    with pytest.raises(LoadError, match=r"not a|is empty"):
        reference_outputs(tmp_path / name, {"x": np.zeros((1, 2), "float32")})
