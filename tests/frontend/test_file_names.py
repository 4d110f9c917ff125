"""Reports name operators as the user's file does, and `--until` takes what they print."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_cascade import plan
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.importers.cut_file import file_graph
from tvm_cascade.messages import operator_of, short_name
from tvm_cascade.testing.tflite import ModelWriter
from tvm_cascade.testing.ways_in import write_torch

LONG = "model/" + "deeply/" * 12 + "nested"


def write_tflite(path: Path) -> Path:
    """Two int8 convolutions and what reads both; names as TensorFlow's converter writes them."""
    rng, w = np.random.default_rng(3), ModelWriter()
    x = w.activation((1, 8, 8, 4), "int8", 0.1, 3, name="image")
    first = w.convolution(x, 4, 3, 1, rng, name="net/relu/Relu;net/bn/Fused;net/conv.1/Conv2D1")
    second = w.convolution(first, 4, 3, 1, rng, name=LONG)
    w.outputs = [w.convolution(second, 2, 3, 2, rng, name="Identity")]
    path.write_bytes(w.finish())
    return path


def write_onnx(path: Path) -> Path:
    """A float convolution with bias, its activation and a mean."""
    onnx = pytest.importorskip("onnx")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype("f4")
    nodes = [
        make.make_node("Conv", ["x", "w", "b"], ["/0/Conv_output.0"], pads=[1, 1, 1, 1]),
        make.make_node("Relu", ["/0/Conv_output.0"], ["/1/Relu"]),
        make.make_node("GlobalAveragePool", ["/1/Relu"], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(a, n) for a, n in ((weights, "w"), (np.ones(4, "f4"), "b"))]
    ends = [make.make_tensor_value_info("x", kind, [1, 2, 8, 8]), make.make_tensor_value_info("y", kind, [1, 4, 1, 1])]
    graph = make.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)]), path)
    return path


def layers(path: Path, **options: object) -> list[str]:
    return [layer["name"] for layer in plan(path, **options).to_dict()["layers"]]  # type: ignore[arg-type]


def test_layers_of_a_tflite_file_have_its_names(tmp_path: Path) -> None:
    path = write_tflite(tmp_path / "n.tflite")
    names = layers(path)
    assert names == ["net/relu/Relu;net/bn/Fused;net/conv.1/Conv2D1", LONG, "Identity"]
    assert layers(path, until=names[0]) == names[:1] and layers(path, until=names[1]) == names[:2]


def test_text_shows_short_names_which_until_takes(tmp_path: Path) -> None:
    path = write_tflite(tmp_path / "n.tflite")
    text = plan(path).to_text(details=True)
    short = short_name(LONG)
    assert len(short) == 48 and short in text and LONG not in text and "net/relu/Relu" in text and "net/bn" not in text
    assert len(layers(path, until=short)) == 2 and len(layers(path, until="net/relu/Relu")) == 1
    with pytest.raises(UsageError, match="no operator computes a tensor of that name"):
        layers(path, until="net/bn/Fused")


def test_refusals_name_tensors_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match=f"peak at {short_name(LONG)}, Identity;") as caught:
        plan(write_tflite(tmp_path / "n.tflite"), sram=100)
    assert caught.value.culprits == (LONG, "Identity")


def test_layers_of_an_onnx_file_have_its_names_and_say_what_they_hold(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "n.onnx")
    found = plan(path).to_dict()["layers"]
    told = {name for layer in found for name in layer["origin"]}
    assert told == {"/0/Conv_output.0", "/1/Relu", "y"}
    names = [layer["name"] for layer in found]
    assert {name for name in names if operator_of(name) == name} == {"/1/Relu", "y"}
    assert all(layers(path, until=name) == layers(path, until=operator_of(name)) for name in names)


@pytest.mark.torch
def test_layers_of_a_torch_program_have_the_names_of_its_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_torch(tmp_path / "n.pt2", 16, 4)
    computed = file_graph(tmp_path / "n.pt2", (tmp_path / "n.pt2").read_bytes()).computed
    names = [operator_of(name) for name in layers(tmp_path / "n.pt2")]
    assert len(names) > 3 and {*names} <= {*computed}
    cut = names[len(names) // 2]
    assert cut in layers(tmp_path / "n.pt2", until=cut)
