"""What ONNX has one operator for is exported as one, whatever the graph makes of it, and computes the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_cascade import api
from tvm_cascade.substitution.onnx_fusing import fuse

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper


def _model(
    nodes: list[Any], constants: dict[str, np.ndarray], x: tuple[int, ...], results: list[str], path: Path
) -> Path:
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    outs = [helper.make_tensor_value_info(name, 1, None) for name in results]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, x)], outs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _run(path: Path, x: np.ndarray) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})


def test_an_optimized_network_keeps_its_biases_and_hard_activations(tmp_path: Path) -> None:
    """Convolutions in one dimension and transposed ones with biases, HardSwish and HardSigmoid."""
    rng = np.random.default_rng(0)
    weights = {"w": (8, 4, 3), "v": (8, 3, 2), "b": (8,), "c": (6,)}
    constants = {name: rng.standard_normal(shape).astype("float32") for name, shape in weights.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1]),
        helper.make_node("HardSwish", ["y"], ["s"]),
        helper.make_node("ConvTranspose", ["s", "v", "c"], ["z"], strides=[2], group=2),
        helper.make_node("HardSigmoid", ["z"], ["out"], alpha=1 / 6, beta=0.5),
    ]
    path = _model(nodes, constants, (1, 4, 9), ["out"], tmp_path / "given.onnx")
    api.optimize(path, target="llvm", output=tmp_path / "made.onnx")
    made = Counter(node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node)
    assert made == {"Conv": 1, "HardSwish": 1, "ConvTranspose": 1, "HardSigmoid": 1}
    x = rng.standard_normal((1, 4, 9)).astype("float32")
    for one, other in zip(_run(path, x), _run(tmp_path / "made.onnx", x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


CHAINS = {  # of x: what is computed, and the operators that are left of it
    "swish": ([("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Div", "b six", "c"), ("Mul", "x c", "y")], ["HardSwish"]),
    "swish, divided last": (
        [("Add", "three x", "a"), ("Clip", "a zero six", "b"), ("Mul", "b x", "c"), ("Mul", "c sixth", "y")], ["HardSwish"],
    ),
    "sigmoid": ([("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Mul", "sixth b", "y")], ["HardSigmoid"]),
    "sigmoid as it is defined": ([("Mul", "x sixth", "a"), ("Add", "a one", "b"), ("Clip", "b zero one", "y")], ["HardSigmoid"]),
    "sigmoid of a convolution": (
        [("Conv", "x w", "n"), ("Add", "n three", "a"), ("Clip", "a zero six", "b"), ("Div", "b six", "y")],
        ["Conv", "HardSigmoid"],
    ),
    "of another tensor": (
        [("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Div", "b six", "c"), ("Neg", "x", "n"), ("Mul", "n c", "y")],
        ["HardSigmoid", "Neg", "Mul"],
    ),
    "other numbers": ([("Add", "x one", "a"), ("Clip", "a zero six", "b"), ("Div", "b six", "y")], ["Add", "Clip", "Div"]),
    "other bounds": ([("Add", "x three", "a"), ("Clip", "a zero three", "b"), ("Div", "b six", "y")], ["Add", "Clip", "Div"]),
    "six divided": ([("Add", "x three", "a"), ("Clip", "a one six", "b"), ("Div", "six b", "y")], ["Add", "Clip", "Div"]),
    "read again": (
        [("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Div", "b six", "c"), ("Mul", "a c", "y")],
        ["Add", "Clip", "Div", "Mul"],
    ),
    "length": ([("Mul", "x x", "a"), ("ReduceSum", "a axes", "b"), ("Sqrt", "b", "y")], ["ReduceL2"]),
    "of products": ([("Mul", "x row", "a"), ("ReduceSum", "a axes", "b"), ("Abs", "b", "c"), ("Sqrt", "c", "y")], None),
    "bias": ([("Conv", "x w", "a"), ("Add", "bias a", "y")], ["Conv"]),
    "bias of one number": ([("Conv", "x w", "a"), ("Add", "a three", "y")], ["Conv"]),
    "a bias already": ([("Conv", "x w flat", "a"), ("Add", "a bias", "y")], ["Conv", "Add"]),
    "not of channels": ([("Conv", "x w", "a"), ("Add", "a row", "y")], ["Conv", "Add"]),
    "a result": ([("Conv", "x w", "a"), ("Add", "a bias", "y")], ["Conv", "Add"]),
    "added twice": ([("Conv", "x w", "a"), ("Add", "a bias", "b"), ("Mul", "a b", "y")], ["Conv", "Add", "Mul"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_operators(name: str, tmp_path: Path) -> None:
    chain, left = CHAINS[name]
    rng = np.random.default_rng(1)
    numbers = {"zero": 0, "one": 1, "three": 3, "six": 6, "sixth": 1 / 6}
    constants = {n: np.array(v, "float32") for n, v in numbers.items()} | {"axes": np.array([1, 3])}
    shapes = {"w": (4, 4, 1, 1), "bias": (1, 4, 1, 1), "flat": (4,), "row": (5,)}
    constants |= {n: rng.standard_normal(s).astype("float32") for n, s in shapes.items()}
    results = ["y", "a"] if name == "a result" else ["y"]
    nodes = [helper.make_node(kind, read.split(), [made]) for kind, read, made in chain]
    shape = (1, 4, 5, 5)
    before = _model(nodes, constants, shape, results, tmp_path / "before.onnx")
    x = rng.standard_normal(shape).astype("float32") * 4
    expected = _run(before, x)

    def add(value: np.ndarray) -> str:
        constants[f"added{len(constants)}"] = value
        return f"added{len(constants) - 1}"

    fused = fuse(nodes, constants.get, add, helper.make_node, results)
    assert [node.op_type for node in fused] == (left or [kind for kind, _, _ in chain])
    after = _model(fused, constants, shape, results, tmp_path / "after.onnx")
    for one, other in zip(expected, _run(after, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _normalization(x: str, axes: list[int], tail: list[tuple[str, str, str]]) -> list[Any]:
    """As a variance is written: its mean and the centred values twice."""
    mean = {"axes": axes, "keepdims": 1}
    made = [helper.make_node("ReduceMean", [x], [name], **mean) for name in ("m", "n")]
    chain = [("Sub", f"{x} m", "d"), ("Mul", "d d", "q")]
    made += [helper.make_node(kind, read.split(), [name]) for kind, read, name in chain]
    made.append(helper.make_node("ReduceMean", ["q"], ["v"], **mean))
    chain = [("Add", "v small", "e"), ("Sqrt", "e", "r"), ("Sub", f"{x} n", "c"), ("Div", "c r", "z"), *tail]
    return made + [helper.make_node(kind, read.split(), [name]) for kind, read, name in chain]


NORMS = {  # axes, what follows, operators that are left
    "scaled and moved": ([2, 3], [("Mul", "scale z", "s"), ("Add", "s bias", "y")], ["InstanceNormalization"]),
    "scaled": ([2, 3], [("Mul", "z scale", "y")], ["InstanceNormalization"]),
    "moved": ([2, 3], [("Add", "z bias", "y")], ["InstanceNormalization"]),
    "alone": ([2, 3], [("Neg", "z", "y")], ["InstanceNormalization", "Neg"]),
    "scaled by pixel": ([2, 3], [("Mul", "z row", "y")], ["InstanceNormalization", "Mul"]),
    "over one axis": ([3], [("Mul", "z scale", "y")], None),
    "of a volume": ([2, 3], [("Neg", "z", "y")], None),  # the mean is not over its last axis
    "read within": ([2, 3], [("Mul", "z scale", "s"), ("Add", "s d", "y")], None),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalized_images(name: str, tmp_path: Path) -> None:
    axes, tail, left = NORMS[name]
    rng = np.random.default_rng(2)
    shapes = {"scale": (4, 1, 1), "bias": (1, 4, 1, 1), "row": (5,)}
    constants = {n: rng.standard_normal(s).astype("float32") for n, s in shapes.items()}
    constants["small"] = np.array(1e-5, "float32")
    nodes = _normalization("x", axes, tail)
    shape = (2, 4, 5, 5) if name != "of a volume" else (2, 4, 5, 1, 5)
    before = _model(nodes, constants, shape, ["y"], tmp_path / "before.onnx")
    x = rng.standard_normal(shape).astype("float32") * 2 + 1

    def add(value: np.ndarray) -> str:
        constants[f"added{len(constants)}"] = value
        return f"added{len(constants) - 1}"

    expected = _run(before, x)
    fused = fuse(nodes, constants.get, add, helper.make_node, ["y"], {"x": shape}.get)
    kinds = [node.op_type for node in fused]
    assert kinds == left if left else "InstanceNormalization" not in kinds and kinds.count("ReduceMean") == 2
    for one, other in zip(
        expected, _run(_model(fused, constants, shape, ["y"], tmp_path / "after.onnx"), x), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("added", "left"), [(6, ["Gather"]), (5, ["Less", "Add", "Where", "Gather"])])
def test_indices_that_count_from_the_end(added: int, left: list[str]) -> None:
    constants = {"table": np.zeros((6, 3), "float32"), "none": np.array(0), "extent": np.array(added)}
    chain = [("Less", "i none", "l"), ("Add", "i extent", "a"), ("Where", "l a i", "w"), ("Gather", "table w", "y")]
    nodes = [helper.make_node(kind, read.split(), [made]) for kind, read, made in chain]
    fused = fuse(nodes, constants.get, lambda _value: "", helper.make_node, ["y"])
    assert [node.op_type for node in fused] == left and fused[-1].input[1] == ("i" if added == 6 else "w")
    kept = [helper.make_node("Cast", ["one"], ["c"], to=1), helper.make_node("Add", ["x", "c"], ["y"])]
    (only,) = fuse(kept, {"one": np.ones(1, "float32")}.get, lambda _value: "", helper.make_node, ["y"])
    assert list(only.input) == ["x", "one"]


def test_of_other_types_than_float32_nothing_is_fused() -> None:
    """ONNX Runtime has these operators for float32 alone."""
    constants = {n: np.array(v, "float64") for n, v in {"zero": 0, "three": 3, "six": 6, "small": 1e-5}.items()}
    chain = [("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Div", "b six", "y")]
    nodes = [helper.make_node(kind, read.split(), [made]) for kind, read, made in chain]
    assert len(fuse(nodes, constants.get, lambda _value: "", helper.make_node, ["y"])) == 3
    nodes = _normalization("x", [2, 3], [("Neg", "z", "y")])
    kinds = [
        n.op_type
        for n in fuse(nodes, constants.get, lambda _value: "", helper.make_node, ["y"], {"x": (1, 2, 3, 3)}.get)
    ]
    assert "InstanceNormalization" not in kinds
