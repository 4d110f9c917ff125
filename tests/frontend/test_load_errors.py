"""Whatever a file holds, `load` returns a module or raises one `LoadError` with one line that names the file."""

from __future__ import annotations

import re
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflite

pytest.importorskip("ai_edge_litert")

from tvm_cascade.errors import LoadError, MissingToolError, UnsupportedOperatorError, UsageError
from tvm_cascade.frontend import load
from tvm_cascade.importers.tflite.model import open_model
from tvm_cascade.testing import weighted_cases
from tvm_cascade.testing.operator_cases import OPERATORS
from tvm_cascade.testing.tflite import ModelWriter

_IS_VARIABLE = 4 + 2 * 5  # of a tensor, the sixth field: its place in the table of fields


@pytest.fixture(scope="module")
def model() -> bytes:
    """One case of every operator."""
    rng, writer = np.random.default_rng(0), ModelWriter()
    for generate in OPERATORS.values():
        generate(rng, "int8", writer)
    return writer.finish()


def _refused(path: Path, data: bytes, match: str = "") -> LoadError | None:
    """The error of loading `data`; None where it loads."""
    path.write_bytes(data)
    try:
        load(path)
    except LoadError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
        assert match in str(error)
        return error
    return None


def test_truncated_at_every_length_of_a_sweep(tmp_path: Path, model: bytes) -> None:
    lengths = [*range(0, 64), *range(64, len(model), max(len(model) // 150, 1))]
    for length in lengths:
        assert _refused(tmp_path / "cut.tflite", model[:length]) is not None, length


@pytest.mark.parametrize("beyond", [False, True])
def test_operator_codes_beyond_the_file_or_over_each_other(tmp_path: Path, model: bytes, beyond: bool) -> None:
    """Where a file is cut, codes that nothing uses become others."""
    table: Any = open_model(model)._tab
    vector, data = table.Vector(table.Offset(6)), bytearray(model)
    if beyond:
        struct.pack_into("<I", data, vector - 4, (len(model) - vector) // 4 + 1)
    else:
        struct.pack_into("<I", data, vector, 4)
    assert _refused(tmp_path / "codes.tflite", bytes(data), "its operator codes") is not None


def test_flags_of_variables_beyond_the_file(tmp_path: Path) -> None:
    """Which are read before the operators are: they say what a recurrent operator keeps."""
    writer = ModelWriter()
    weighted_cases.lstm(np.random.default_rng(0), "float32", writer)
    data = bytearray(writer.finish())
    graph: Any = tflite.Model.GetRootAs(data).Subgraphs(0)
    table = next(t._tab for t in map(graph.Tensors, range(graph.TensorsLength())) if t.IsVariable())
    entry = table.Pos - int.from_bytes(data[table.Pos : table.Pos + 4], "little", signed=True) + _IS_VARIABLE
    data[entry : entry + 2] = b"\xff\xff"
    assert _refused(tmp_path / "m.tflite", bytes(data), "an offset points outside") is not None


def test_random_bytes_behind_a_valid_header(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for size in (0, 1, 7, 8, 9, 64, 1000, 100_000):
        noise = rng.integers(0, 256, size=size).astype("uint8").tobytes()
        assert _refused(tmp_path / "noise.tflite", noise) is not None
        assert _refused(tmp_path / "noise.tflite", noise[:4] + b"TFL3" + noise[8:]) is not None


def test_flipped_bytes_load_or_are_refused(tmp_path: Path, model: bytes) -> None:
    rng = np.random.default_rng(2)
    for _ in range(120):
        broken = bytearray(model)
        for place in rng.integers(0, len(model), size=int(rng.integers(1, 8))):
            broken[place] = int(rng.integers(0, 256))
        _refused(tmp_path / "flipped.tflite", bytes(broken))


def test_empty_missing_directory_and_unknown(tmp_path: Path) -> None:
    _refused(tmp_path / "empty.tflite", b"", "is empty")
    _refused(tmp_path / "text.tflite", b"not a model at all", "not a TFLite model")
    _refused(tmp_path / "model.bin", b"\x89HDF0000", "unknown format; supported: .tflite")
    for name, call in (
        ("net.pth", "torch.onnx.export(model, "),
        ("net.keras", "from_keras_model"),
        ("net.h5", "from_keras"),
    ):
        _refused(tmp_path / name, b"\x89HDF0000", call)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    with pytest.raises(LoadError, match=r"is a SavedModel of TensorFlow, .*TFLiteConverter"):
        load(tmp_path / "saved")
    with pytest.raises(LoadError, match="No such file"):
        load(tmp_path / "missing.tflite")
    with pytest.raises(LoadError, match="is a directory"):
        load(tmp_path)


def test_unknown_suffix_is_recognised_by_content(tmp_path: Path, model: bytes) -> None:
    (tmp_path / "model.bin").write_bytes(model)
    load(tmp_path / "model.bin")


def test_unsupported_operators_are_named(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 4), "float32")
    writer.operator("CUSTOM", [x], [writer.tensor((1, 4), "float32")])
    writer.operator("BIDIRECTIONAL_SEQUENCE_LSTM", [x], [writer.tensor((1, 4), "float32")])
    writer.operator("LSH_PROJECTION", [x], [writer.tensor((1, 4), "float32")])
    path = tmp_path / "odd.tflite"
    path.write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match="unsupported operator") as caught:
        load(path)
    assert any("custom" in name for name in caught.value.operators)
    assert "LSH_PROJECTION" in caught.value.operators
    assert "CONV_2D" in caught.value.supported


def test_requested_shapes_must_agree(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 4), "int8", 0.5, 0, name="image")
    writer.operator("RELU", [x], [writer.tensor((1, 4), "int8", 0.5, 0)])
    path = tmp_path / "relu.tflite"
    path.write_bytes(writer.finish())
    load(path, {"image": (1, 4)})
    with pytest.raises(UsageError, match="no input picture"):
        load(path, {"picture": (1, 4)})
    with pytest.raises(UsageError, match=r"has the shape \[1, 4\] in the file"):
        load(path, {"image": (2, 4)})


def test_onnx_garbage(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    rng = np.random.default_rng(3)
    for size in (1, 10, 1000):
        noise = rng.integers(0, 256, size=size).astype("uint8").tobytes()
        assert _refused(tmp_path / "noise.onnx", noise) is not None
    _refused(tmp_path / "empty.onnx", b"", "is empty")


def test_malformed_onnx_operators_are_named_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "missing"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", kind, [1, 3, 4, 4])],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    assert _refused(tmp_path / "m.onnx", data) is not None
    assert capsys.readouterr().out == ""


def test_onnx_constants_beyond_memory_are_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    shape = onnx.numpy_helper.from_array(np.array([1 << 20, 1 << 20], "int64"), "shape")
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["shape"], ["big"]), helper.make_node("Add", ["x", "big"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [1])],
        [helper.make_tensor_value_info("y", kind, [1 << 20, 1 << 20])],
        [shape],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    assert _refused(tmp_path / "m.onnx", data, "exceeds") is not None


def test_onnx_inputs_beyond_memory_are_refused(tmp_path: Path) -> None:
    """Before anything is computed for them: the steps of a ReverseSequence are an array of all places."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("ReverseSequence", ["x", "lengths"], ["y"], batch_axis=0, time_axis=1)],
        "g",
        [helper.make_tensor_value_info("x", kind, [4, 1 << 31])],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(np.arange(4), "lengths")],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    assert _refused(tmp_path / "m.onnx", data, "input x of shape [4, 2147483648] exceeds") is not None


def test_onnx_axes_beyond_all_tensors_are_refused(tmp_path: Path) -> None:
    """Before ONNX's shape inference sees them, which takes 2^31 for a negative number and crashes."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    scale = onnx.numpy_helper.from_array(np.ones(4, "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("LayerNormalization", ["x", "w"], ["y", "mean"], axis=1 << 31)],
        "g",
        [helper.make_tensor_value_info("x", kind, [3, 4])],
        [helper.make_tensor_value_info(name, kind, None) for name in ("y", "mean")],
        [scale],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    assert _refused(tmp_path / "m.onnx", data, "operator LayerNormalization has the axis 2147483648") is not None


@pytest.mark.parametrize("rows, reason", [(1, "larger than its padded input"), (2, "no element is left")])
def test_a_window_larger_than_its_input_is_refused(tmp_path: Path, rows: int, reason: str) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 2, rows, 4])],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(np.ones((2, 2, 3, 1), "float32"), "w")],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    assert _refused(tmp_path / "m.onnx", data, reason) is not None


def test_inputs_of_no_elements_are_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, kind, [1, 0]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    said = "input x has the shape [1, 0], whose sizes of 0 leave no elements: "
    assert _refused(tmp_path / "m.onnx", data, said + "give larger ones with --input-shape x=") is not None
    writer = ModelWriter()
    ends = writer.activation((1, 0), "int8", 0.1, name="x"), writer.tensor((1, 0), "int8", 0.1)
    writer.operator("RELU", [ends[0]], [ends[1]])
    assert _refused(tmp_path / "m.tflite", writer.finish(), said + "export the model with larger ones") is not None


def test_onnx_inputs_without_a_type_are_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(n, t, [1, 2, 3, 3]) for n, t in (("x", 0), ("y", 1)))
    data = helper.make_model(helper.make_graph([node], "g", [x], [y])).SerializeToString()
    assert _refused(tmp_path / "m.onnx", data, "no element type") is not None


def test_onnx_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "x.onnx").write_bytes(b"anything")
    with pytest.raises(MissingToolError, match="pip install"):
        load(tmp_path / "x.onnx")


def test_malformed_operators_are_named(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 4), "float32")
    writer.operator("TRANSPOSE", [x], [writer.tensor((4, 1), "float32")], "TransposeOptions")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match="operator 0, TRANSPOSE, is not supported in this form"):
        load(tmp_path / "m.tflite")


def test_declared_and_computed_shapes_must_agree(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 4), "float32")
    writer.operator("NEG", [x], [writer.tensor((1, 5), "float32", name="out")])
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(
        LoadError, match=r"output out has the shape \[1, 5\] .*, where operator 0, NEG, computes \[1, 4\]"
    ):
        load(tmp_path / "m.tflite")


def test_choices_between_two_types_are_refused(tmp_path: Path) -> None:
    writer = ModelWriter()
    given = [
        writer.activation((3, 2), "bool"),
        writer.activation((3, 2), "bool"),
        writer.activation((3, 2), "int8", 0.1),
    ]
    writer.operator("SELECT_V2", given, [writer.tensor((3, 2), "int8", 0.1)])
    assert _refused(
        tmp_path / "m.tflite", writer.finish(), "SELECT_V2 (operator 0): its input and output are of unequal"
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_activations_of_scale_zero_are_refused(tmp_path: Path, dtype: str) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 4), dtype, 0.5)
    writer.operator("RELU", [x], [writer.tensor((1, 4), dtype, 0.0)])
    assert _refused(tmp_path / "m.tflite", writer.finish(), "scale of 0") is not None


@pytest.mark.parametrize(("dtype", "zero_point"), [("int8", 128), ("int8", -129), ("uint8", -1), ("int16", 1 << 15)])
def test_zero_points_that_the_type_does_not_hold_are_refused(tmp_path: Path, dtype: str, zero_point: int) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 4), dtype, 0.1, zero_point)
    writer.operator("RELU", [x], [writer.tensor((1, 4), dtype, 0.1)])
    assert _refused(tmp_path / "m.tflite", writer.finish(), f"a zero point that {dtype} does not hold") is not None


_LONG = (1 << 31) - 1
_CONTRADICTIONS: dict[str, tuple[dict[str, Any], tuple[Any, ...], str]] = {
    "UNPACK": ({"num": 65537, "axis": -2}, (), "num 65537 of"),
    "MIRROR_PAD": ({"mode": 1}, ([[0, 0], [0, _LONG], [0, 0]],), "pads .0, 2147483647. of an axis of 1"),
    "SPLIT": ({"numSplits": 65537}, (1,), "num_splits 65537 of"),
    "SPLIT_V": ({"numSplits": 1}, ([_LONG], 1), "size_splits .2147483647. of an axis of 1"),
    "TILE": ({}, ([1, 1 << 30, 1],), "exceeds 268435456 elements"),
    "PAD": ({}, ([[0, 0], [0, _LONG], [0, 0]],), "exceeds 268435456 elements"),
}
_TABLES = {"UNPACK": "Unpack", "MIRROR_PAD": "MirrorPad", "SPLIT": "Split", "SPLIT_V": "SplitV", "TILE": "Tile"}


@pytest.mark.parametrize("name", _CONTRADICTIONS)
def test_sizes_are_checked_before_anything_of_that_size_is_made(tmp_path: Path, name: str) -> None:
    options, operands, said = _CONTRADICTIONS[name]
    w = ModelWriter()
    x = w.activation((13, 1, 5), "int8", 0.1)
    given = [w.constant(np.array(v, "int32")) for v in operands]
    inputs = [*given, x] if name == "SPLIT" else [x, *given]
    out = w.tensor((13, 5) if name == "UNPACK" else (13, 1, 5), "int8", 0.1)
    w.operator(name, inputs, [out], f"{_TABLES.get(name, 'Pad')}Options", **options)
    tracemalloc.start()
    error = _refused(tmp_path / "m.tflite", w.finish(), f"operator 0, {name}, is not supported in this form: ")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert re.search(said, str(error)) and most < 1 << 24


def test_fused_bounds_by_many_scales_are_refused(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 2, 2, 3), "int8", 0.1)
    filters = w.constant(np.ones((2, 1, 1, 3), "int8"), 0.1)
    shape = w.constant(np.array([1, 2, 2, 2], "int32"))
    out = w.tensor((1, 2, 2, 2), "int8", np.array([0.01, 0.1]), axis=3)
    options: dict[str, Any] = {"padding": 1, "strideH": 1, "strideW": 1, "fusedActivationFunction": 3}
    w.operator("TRANSPOSE_CONV", [shape, filters, x], [out], "TransposeConvOptions", version=4, **options)
    error = _refused(tmp_path / "scales.tflite", w.finish(), "a scale for every channel")
    assert isinstance(error, UnsupportedOperatorError) and error.operators[0].startswith("TRANSPOSE_CONV")


def test_quantized_integers_of_32_bits_are_unsupported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Not malformed; and TVM says nothing beside the error."""
    writer = ModelWriter()
    x, y = writer.activation((1, 4), "int32", 0.1), writer.tensor((1, 4), "int32", 0.1)
    writer.operator("ADD", [x, x], [y], "AddOptions")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match="unsupported operator ADD"):
        load(tmp_path / "m.tflite")
    assert capfd.readouterr() == ("", "")


def test_a_tensor_that_is_an_input_and_written(tmp_path: Path) -> None:
    writer = ModelWriter()
    x, y = (writer.activation((1, 8), "int8", 0.1) for _ in range(2))
    writer.operator("RELU", [x], [y])
    _refused(tmp_path / "net.tflite", writer.finish(), "operator 0 writes tensor t1, an input")
