"""ONNX's Loop and Scan: written out where the number of steps is known, refused with the reason where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.importers.onnx.loops import unrolled
from tvm_cascade.testing.reference import Compiled

STEPS, UNITS = 4, 3
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((UNITS, UNITS)).astype("float32")
_VALUE = helper.make_tensor_value_info


def _model(nodes: list[Any], outputs: list[str], opset: int = 18, **held: Any) -> Any:
    """A model of the input x, [STEPS, 1, UNITS], and numbers `n` and `on` as inputs or constants."""
    given = [_VALUE("x", TensorProto.FLOAT, (STEPS, 1, UNITS))]
    held = {"n": np.array(STEPS), "on": np.array(True), "h": np.zeros((1, UNITS), "float32")} | held
    if held["n"] is None:
        given.append(_VALUE("n", TensorProto.INT64, ()))
    weights = [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items() if a is not None]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    graph = helper.make_graph(nodes, "g", given, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _check(path: Path, model: Any, back: bool, make: Callable[..., np.ndarray], steps: int = STEPS) -> None:
    """What is loaded computes the last state, and the states of all steps along a new axis; `make` makes one from a part of
    x and the state before."""
    onnx.save(model, path)
    x, states = RNG.standard_normal((STEPS, 1, UNITS)).astype("float32"), [np.zeros((1, UNITS), "float32")]
    for part in (x[::-1] if back else x)[:steps]:
        states.append(make(part, states[-1]))
    last, every = Compiled(load(path))(x)
    np.testing.assert_allclose(last, states[-1], rtol=1e-5, atol=1e-5)
    found = np.stack(states[:0:-1] if back else states[1:])
    assert every.size == found.size and every.ndim in (2, 3)
    np.testing.assert_allclose(every, found if every.ndim == 3 else found[:, 0], rtol=1e-5, atol=1e-5)


def _new(part: np.ndarray, state: np.ndarray) -> np.ndarray:
    return np.tanh(part + state @ WEIGHTS)


def _chosen(part: np.ndarray, state: np.ndarray) -> np.ndarray:
    return -_new(part, state) if part.sum() < 0 else np.abs(_new(part, state))


def _cell(x: str, h: str) -> list[Any]:
    """`new = tanh(x + h W)`, with the weights of the body."""
    nodes = [("MatMul", [h, "w"], "p"), ("Add", [x, "p"], "s"), ("Tanh", ["s"], "new")]
    return [helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes]


def _loop(condition: str = "none", named: bool = True) -> Any:
    """A Loop over the rows of x. Its condition is `none`, `counted` (a counter of its own below 3) or `computed`."""
    constant = helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.array(1)))
    nodes = [constant, helper.make_node("Gather", ["x", "i"], ["row"], axis=0), *_cell("row", "hidden")]
    nodes.append(helper.make_node("Add", ["counter", "one"], ["later"]))
    ends = {
        "none": [helper.make_node("Identity", ["going"], ["goes"])],
        "counted": [helper.make_node("Less", ["later", "limit"], ["goes"])],
        "computed": [
            helper.make_node("ReduceMax", ["new"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "top"], ["goes"]),
        ],
    }
    held = {"w": WEIGHTS, "limit": np.array(3), "top": np.float32(9)}
    inputs = [("i", 7, ()), ("going", 9, ()), ("hidden", 1, (1, UNITS)), ("counter", 7, ())]
    outputs = [("goes", 9, ()), ("new", 1, (1, UNITS)), ("later", 7, ()), ("new", 1, (1, UNITS))]
    body = helper.make_graph(
        [*nodes, *ends[condition]],
        "body",
        [_VALUE(*v) for v in inputs],
        [_VALUE(*v) for v in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()],
    )
    first = ["n", "on"] if named else ["", ""]
    return helper.make_node("Loop", [*first, "h", "zero"], ["last", "count", "all"], body=body)


@pytest.mark.parametrize(("condition", "named"), [("none", True), ("counted", True), ("counted", False)])
def test_loops_of_known_steps(tmp_path: Path, condition: str, named: bool) -> None:
    model = _model([_loop(condition, named)], ["last", "all"], zero=np.array(0))
    _check(tmp_path / "n.onnx", model, False, _new, STEPS if condition == "none" else 3)


def test_weights_of_a_body_are_there_once() -> None:
    made = unrolled(_model([_loop()], ["last"], zero=np.array(0)), {}, 0)
    assert sum(tuple(w.dims) == WEIGHTS.shape for w in made.graph.initializer) == 1
    assert sum(n.op_type == "MatMul" for n in made.graph.node) == STEPS


def _scan(**attrs: Any) -> Any:
    """A Scan over parts of x, in which every step chooses between two cells by its part's sign."""
    chosen = [
        helper.make_graph([helper.make_node(kind, ["new"], [kind])], kind, [], [_VALUE(kind, 1, (1, UNITS))])
        for kind in ("Neg", "Abs")
    ]
    nodes = [
        *_cell("part", "hidden"),
        helper.make_node("ReduceMean", ["part"], ["mean"], keepdims=0),
        helper.make_node("Less", ["mean", "none"], ["below"]),
        helper.make_node("If", ["below"], ["state"], then_branch=chosen[0], else_branch=chosen[1]),
        helper.make_node("Squeeze", ["state"], ["flat"]),
    ]
    held = {"w": WEIGHTS, "none": np.float32(0)}
    body = helper.make_graph(
        nodes,
        "body",
        [_VALUE("hidden", 1, (1, UNITS)), _VALUE("part", 1, (1, UNITS))],
        [_VALUE("state", 1, (1, UNITS)), _VALUE("flat", 1, (UNITS,))],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()],
    )
    return helper.make_node("Scan", ["h", "x"], ["last", "all"], body=body, num_scan_inputs=1, **attrs)


@pytest.mark.parametrize(("opset", "axis"), [(18, 0), (18, -2), (11, 0)])
@pytest.mark.parametrize("back", [False, True])
def test_scans(tmp_path: Path, opset: int, axis: int, back: bool) -> None:
    turned = {"scan_input_directions": [1], "scan_output_directions": [1]} if back else {}
    node = _scan(scan_output_axes=[axis], **turned)
    _check(tmp_path / "n.onnx", _model([node], ["last", "all"], opset), back, _chosen)


def _scan_of_batch(path: Path, back: bool, *lengths: str) -> None:
    """Opset 8: two sequences, each with a state of its own."""
    nodes = [*_cell("part", "hidden"), helper.make_node("Neg", ["new"], ["less"])]
    parts = [_VALUE("hidden", 1, (1, UNITS)), _VALUE("part", 1, (1, UNITS))]
    made = [_VALUE(name, 1, (1, UNITS)) for name in ("new", "less")]
    body = helper.make_graph(nodes, "body", parts, made, [numpy_helper.from_array(WEIGHTS, "w")])
    given = [*(lengths or [""]), "h", "x"]
    node = helper.make_node("Scan", given, ["last", "all"], body=body, num_scan_inputs=1, directions=[int(back)])
    inputs = [_VALUE("h", 1, (2, 1, UNITS)), _VALUE("x", 1, (2, STEPS, 1, UNITS))]
    held = [numpy_helper.from_array(np.array([STEPS, STEPS]), name) for name in lengths]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in ("last", "all")]
    graph = helper.make_graph([node], "g", inputs, results, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4), path)


@pytest.mark.parametrize("back", [False, True])
def test_scans_of_a_batch(tmp_path: Path, back: bool) -> None:
    _scan_of_batch(tmp_path / "n.onnx", back)
    h, x = (RNG.standard_normal(shape).astype("float32") for shape in ((2, 1, UNITS), (2, STEPS, 1, UNITS)))
    last, every = Compiled(load(tmp_path / "n.onnx"))(h, x)
    state, parts = h, []
    for at in range(STEPS)[:: -1 if back else 1]:
        state = _new(x[:, at], state)
        parts.append(-state)
    np.testing.assert_allclose(last, state, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(every, np.stack(parts, 1), rtol=1e-5, atol=1e-5)


def test_scans_of_more_inputs_than_they_have_are_refused(tmp_path: Path) -> None:
    node = _scan()
    next(a for a in node.attribute if a.name == "num_scan_inputs").i = 1 << 31
    onnx.save(_model([node], ["last", "all"]), tmp_path / "n.onnx")
    with pytest.raises(
        LoadError, match="operator Scan whose num_scan_inputs is 2147483648 of 2 inputs is not supported"
    ):
        load(tmp_path / "n.onnx")


def test_sequences_of_unequal_lengths_are_refused(tmp_path: Path) -> None:
    _scan_of_batch(tmp_path / "n.onnx", False, "lengths")
    with pytest.raises(LoadError, match="operator Scan with sequence_lens is not supported"):
        load(tmp_path / "n.onnx")


@pytest.mark.parametrize(
    ("nodes", "held", "said"),
    [
        ([_loop()], {"n": None}, r"operator Loop with a trip count \(M\) that the network computes is not supported"),
        ([_loop("computed")], {}, "operator Loop whose body computes its condition from what the network computes"),
        ([_loop()], {"n": np.array(1 << 40)}, "operator Loop of more than 8192 operators in all of its steps is not"),
        ([_loop()], {"n": np.array(0)}, "operator Loop of no step that has outputs of all steps is not supported"),
        (
            [helper.make_node("HannWindow", ["n"], ["all"])],
            {"n": None},
            "operator HannWindow with size that the network",
        ),
    ],
)
def test_steps_that_are_not_known_are_refused(
    tmp_path: Path, nodes: list[Any], held: dict[str, Any], said: str
) -> None:
    onnx.save(_model(nodes, ["all"], zero=np.array(0), **held), tmp_path / "n.onnx")
    with pytest.raises(LoadError, match=said):
        load(tmp_path / "n.onnx")
