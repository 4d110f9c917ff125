"""Shapes that ONNX's inference counts otherwise than what runs, and shapes that files declare and do not compute."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import helper, numpy_helper

from tvm_cascade.frontend import io_spec, load
from tvm_cascade.importers.onnx.inference import inferred
from tvm_cascade.testing.onnx_nodes import check_network, compiled_outputs, runtime_outputs, save_network

RNG = np.random.default_rng(11)
node = helper.make_node


def _x(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def _sized(name: str) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Write a tensor `sized` with as many rows as `name` has columns in the last axis."""
    nodes = [node("Shape", [name], ["s"]), node("Gather", ["s", "last"], ["size"], axis=0)]
    nodes += [node("Concat", ["size", "two"], ["sizes"], axis=0), node("Expand", ["one", "sizes"], ["sized"])]
    return nodes, {"last": np.array([-1]), "two": np.array([2]), "one": np.ones((1, 1), "float32")}


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((1, 2, 5), {"kernel_shape": [2], "strides": [2], "pads": [1, 1]}),
        ((1, 2, 6, 5), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 2, 7, 5), {"kernel_shape": [1, 1], "strides": [2, 4], "pads": [0, 0, 0, 0]}),
        ((1, 1, 5, 3, 5), {"kernel_shape": [2, 3, 2], "strides": [2, 1, 3], "pads": [1, 1, 0, 1, 1, 1]}),
    ],
    ids=["one axis", "two axes", "gaps", "three axes"],
)
def test_sizes_behind_pools_that_are_rounded_up(
    tmp_path: Path, shape: tuple[int, ...], how: dict[str, Any], kind: str, opset: int
) -> None:
    """Windows that begin in the padding do not count, also where a size is computed from the shape."""
    nodes, constants = _sized("y")
    pool = node(kind, ["x"], ["y"], ceil_mode=1, **how)
    check_network(tmp_path, [pool, *nodes], {"x": _x(*shape)}, ["y", "sized"], constants, opset)


_SCALES = np.array([1, 1, 1, 2.3], "float32")  # 10 columns become 23 in float32, 22 in float64
_RESIZED: dict[str, tuple[Any, tuple[int, ...], dict[str, np.ndarray], int]] = {
    "Upsample": (node("Upsample", ["x", "k"], ["y"]), (1, 1, 3, 10), {"k": _SCALES}, 9),
    "Resize of opset 10": (node("Resize", ["x", "k"], ["y"]), (1, 1, 3, 10), {"k": _SCALES}, 10),
    "Resize": (node("Resize", ["x", "", "k"], ["y"]), (1, 1, 3, 10), {"k": _SCALES}, 18),
    "ConvTranspose": (
        node("ConvTranspose", ["x", "w"], ["y"], strides=[3], auto_pad="SAME_LOWER", output_padding=[2]),
        (1, 3, 4),
        {"w": np.ones((3, 2, 2), "float32")},
        17,
    ),
    "MaxPool": (
        node("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[4], auto_pad="VALID", ceil_mode=1),
        (1, 2, 7),
        {},
        17,
    ),
}


@pytest.mark.parametrize("name", _RESIZED)
def test_sizes_behind_operators_that_inference_counts_otherwise(tmp_path: Path, name: str) -> None:
    """Sizes follow from what the operator computes."""
    first, shape, held, opset = _RESIZED[name]
    nodes, constants = _sized("y")
    nodes = [first, *nodes, node("Neg", ["y"], ["z"])]
    check_network(tmp_path, nodes, {"x": _x(*shape)}, ["z", "sized"], {**held, **constants}, opset)


def test_sizes_of_sizes(tmp_path: Path) -> None:
    """A size that another one follows from: each is that of the tensor computed by the size in front."""
    nodes, constants = _sized("y")
    front = [node("Resize", ["x", "", "k"], ["a"]), node("Shape", ["a"], ["all"], start=3)]
    front += [node("Concat", ["less", "all"], ["flat"], axis=0), node("Reshape", ["a", "flat"], ["r"])]
    front += [node("Resize", ["r", "", "twice"], ["y"])]
    held = {"k": _SCALES, "less": np.array([-1]), "twice": np.array([1, 1.7], "float32")}
    nodes = [*front, *nodes, node("Neg", ["y"], ["z"])]
    check_network(tmp_path, nodes, {"x": _x(1, 1, 3, 10)}, ["z", "sized"], {**held, **constants}, 18)


def test_sizes_behind_pools_in_a_row(tmp_path: Path) -> None:
    nodes, constants = _sized("c")
    how: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    names = ["x", "a", "b", "c"]
    pools = [node("MaxPool", [i], [o], **how) for i, o in itertools.pairwise(names)]
    check_network(tmp_path, [*pools, *nodes], {"x": _x(1, 2, 17, 13)}, ["sized", "c"], constants, 17)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "Relu"])
@pytest.mark.parametrize("declared", [(1, 2, 4, 4), (1, 2, 9), ("a", "b", "c", 9), (4, 2, 3, 3)])
def test_shapes_that_a_file_declares_wrongly(
    tmp_path: Path, declared: tuple[Any, ...], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names what is declared and computed; sizes follow from what is computed, as in ONNX Runtime."""
    nodes, constants = _sized("y")
    how: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    first = node(kind, ["x"], ["y"], **({} if kind == "Relu" else how))
    x = _x(1, 2, 5, 5)
    path = save_network(tmp_path / "n.onnx", [first, *nodes], {"x": x}, ["y", "sized"], constants, 17)
    model = onnx.load(path)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, declared))
    model.graph.value_info.append(helper.make_tensor_value_info("size", onnx.TensorProto.INT64, [3]))
    onnx.save(model, path)
    want = runtime_outputs(path, {"x": x})
    with caplog.at_level(logging.WARNING, "tvm_cascade"):
        for ours, theirs in zip(compiled_outputs(path, {"x": x}, tmp_path / "p"), want, strict=True):
            np.testing.assert_array_equal(ours.shape, theirs.shape)
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
    text = ", ".join(str(d) if isinstance(d, int) else "?" for d in declared)
    assert f"output y has the shape [{text}] in the file, {list(want[0].shape)} computed, which is taken" in caplog.text


def test_a_network_that_begins_behind_a_wrong_shape(tmp_path: Path) -> None:
    """Its input has the shape that is computed in front of it, not the shape in the file."""
    how: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    nodes = [node("MaxPool", ["x"], ["m"], **how), node("Relu", ["m"], ["y"])]
    path = save_network(tmp_path / "n.onnx", nodes, {"x": _x(1, 2, 5, 5)}, ["y"], {}, 17)
    model = onnx.load(path)
    model.graph.value_info.append(helper.make_tensor_value_info("m", 1, (1, 2, 4, 4)))
    onnx.save(model, path)
    assert io_spec(load(path, from_=["m"])).inputs[0].type_text == "float32[1, 2, 3, 3]"


def test_a_declared_shape_counts_where_none_is_inferred() -> None:
    """Behind an operator of another domain, for a size that is computed from the shape."""
    graph = helper.make_graph(
        [node("Own", ["x"], ["a"], domain="own"), node("Shape", ["a"], ["s"]), node("Reshape", ["v", "s"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, (2, 3))],
        [helper.make_tensor_value_info("a", 1, (3, 5)), helper.make_tensor_value_info("y", 1, (7, 7))],
        [numpy_helper.from_array(np.zeros(15, "float32"), "v")],
    )
    made = inferred(
        helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in (("", 17), ("own", 1))])
    )
    shapes = {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in made.output}
    assert shapes == {"a": [3, 5], "y": [3, 5]}
