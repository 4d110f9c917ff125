"""What `load` keeps that Relax's importers lose: names, interfaces, beta, unequal scales, shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

pytest.importorskip("ai_edge_litert")

from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.frontend import TensorSpec, io_spec, load
from tvm_cascade.testing.reference import Compiled, Reference
from tvm_cascade.testing.tflite import ModelWriter


def _load(tmp_path: Path, writer: ModelWriter) -> tvm.IRModule:
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    return load(tmp_path / "m.tflite")


def test_interface_survives_passes(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 3, 4), "int8", 0.5, -7, name="serving/image:0")
    writer.operator("RELU6", [x], [writer.tensor((1, 3, 4), "int8", 0.25, 3, name="out.put;0")])
    mod = _load(tmp_path, writer)
    spec = io_spec(mod)
    assert spec.inputs == (TensorSpec("serving/image:0", (1, 3, 4), "int8", 0.5, -7),)
    assert spec.outputs == (TensorSpec("out.put;0", (1, 3, 4), "int8", 0.25, 3),)
    assert io_spec(tvm.relax.transform.LegalizeOps()(mod)) == spec


def test_a_module_without_interface_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="does not carry its interface"):
        io_spec(tvm.IRModule())


def test_equal_tensor_names_do_not_alias(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 4), "float32", name="same")
    y = writer.tensor((1, 4), "float32", name="same")
    z = writer.tensor((1, 4), "float32", name="same")
    writer.operator("NEG", [x], [y])
    writer.operator("ABS", [x], [z])
    data = np.array([[-2, -1, 1, 2]], "float32")
    first, second = Compiled(_load(tmp_path, writer))(data)
    np.testing.assert_array_equal(first, -data)
    np.testing.assert_array_equal(second, np.abs(data))


def test_operator_code_in_the_new_field_alone(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 2), "float32")
    widths = writer.constant(np.array([[0, 0], [1, 1]], "int32"))
    writer.operator("PAD", [x, widths], [writer.tensor((1, 4), "float32")], "PadOptions")
    writer._codes[0].deprecatedBuiltinCode = 0  # reads as ADD in the tflite package
    np.testing.assert_array_equal(Compiled(_load(tmp_path, writer))(np.ones((1, 2), "float32"))[0], [[0, 1, 1, 0]])


def test_softmax_keeps_beta_in_float(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 5), "float32")
    writer.operator("SOFTMAX", [x], [writer.tensor((1, 5), "float32")], "SoftmaxOptions", beta=0.25)
    data = np.linspace(-3, 3, 5, dtype="float32")[None]
    expected = Reference(writer.finish()).run([data])[0]
    np.testing.assert_allclose(Compiled(_load(tmp_path, writer))(data)[0], expected, rtol=1e-5)


def test_fully_connected_flattens_and_keeps_dims(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kept, shape in ((False, (6, 3)), (True, (2, 3, 1, 3))):
        writer = ModelWriter()
        x = writer.activation((2, 3, 1, 4), "float32")
        w = writer.constant(rng.normal(size=(3, 4)).astype("float32"))
        writer.operator(
            "FULLY_CONNECTED", [x, w, -1], [writer.tensor(shape, "float32")], "FullyConnectedOptions", keepNumDims=kept
        )
        data = rng.normal(size=(2, 3, 1, 4)).astype("float32")
        expected = Reference(writer.finish()).run([data])[0]
        ours = Compiled(_load(tmp_path, writer))(data)[0]
        assert ours.shape == shape
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_onnx_symbols_are_fixed(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, ["batch", 3, "height", 4])],
        [helper.make_tensor_value_info("y", kind, ["batch", 3, "height", 4])],
    )
    path = tmp_path / "r.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    with pytest.raises(LoadError, match=r"input x \[batch, 3, height, 4\] has sizes .* --input-shape x=1,3,64,4$"):
        load(path)
    spec = io_spec(load(path, {"x": (1, 3, 5, 4)}))
    assert spec.inputs == (TensorSpec("x", (1, 3, 5, 4), "float32"),)
    assert spec.outputs == (TensorSpec("y", (1, 3, 5, 4), "float32"),)
    with pytest.raises(UsageError, match="no input z"):
        load(path, {"z": (1,)})
    with pytest.raises(UsageError, match="has the shape"):
        load(path, {"x": (1, 2, 5, 4)})


@pytest.mark.parametrize("name", ["light_squeezenet", "light_inception_v1", "mobilenetv2_050_128"])
def test_public_onnx_models_load(models: Path, name: str) -> None:
    spec = io_spec(load(models / f"{name}.onnx"))
    assert all(d > 0 for s in (*spec.inputs, *spec.outputs) for d in s.shape)


def test_public_float_tflite_equals_the_reference(models: Path) -> None:
    path = models / "vww_96_float.tflite"
    data = np.random.default_rng(0).random((1, 96, 96, 3), "float32")
    expected = Reference(path.read_bytes()).run([data])[0]
    np.testing.assert_allclose(Compiled(load(path), optimisation=2)(data)[0], expected, rtol=1e-4, atol=1e-6)


def test_onnx_pads_become_the_convolutions_own(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    rng, kind = np.random.default_rng(0), onnx.TensorProto.FLOAT
    weights = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype("float32"),
        "widths": np.array([0, 0, 0, 2, 0, 0, 1, 1], "int64"),
        "zero": np.float32(0),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Pad", ["x", "widths", "zero"], ["p"]),
            helper.make_node("Conv", ["p", "w"], ["y"], pads=[1, 0, 0, 0], strides=[2, 1]),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 3, 8, 7])],
        [helper.make_tensor_value_info("y", kind, [1, 4, 4, 8])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    path = tmp_path / "p.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    mod = load(path)
    assert [gv.name_hint for gv in mod.get_global_vars()] == ["main"]
    data = rng.normal(size=(1, 3, 8, 7)).astype("float32")
    expected = np.asarray(ReferenceEvaluator(str(path)).run(None, {"x": data})[0])
    np.testing.assert_allclose(Compiled(mod)(data)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_slice_whose_ends_count_from_its_begins(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((7, 6), "int8", 0.5, 3)
    bounds = [writer.constant(np.array(v, "int32")) for v in ([-6, 1], [5, 4], [2, 3])]
    writer.operator(
        "STRIDED_SLICE", [x, *bounds], [writer.tensor((3, 2), "int8", 0.5, 3)], "StridedSliceOptions", offset=True
    )
    data = np.arange(42, dtype="int8").reshape(7, 6)
    (found,) = Compiled(_load(tmp_path, writer))(data)
    np.testing.assert_array_equal(found, data[1:6:2, 1:5:3])
