"""`--state in=out`: an input and an output of an ONNX file as a state, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import tvm_cascade
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import UsageError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.tensor_spec import State

pytestmark = pytest.mark.usefixtures("quick_host")
WEIGHTS = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")


@pytest.fixture
def rnn(tmp_path: Path) -> Path:
    """`s_out = tanh(s w + x)`, `y = s_out x`, `z = -s`: state and input in another order than they become."""
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("s", "x", "s_out", "y", "z")
    }
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("Tanh", ["b"], ["s_out"]),
        helper.make_node("Mul", ["s_out", "x"], ["y"]),
        helper.make_node("Neg", ["s"], ["z"]),
    ]
    sides = [values[n] for n in ("s", "x")], [values[n] for n in ("s_out", "y", "z")]
    graph = helper.make_graph(nodes, "rnn", *sides, [onnx.numpy_helper.from_array(WEIGHTS, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "rnn.onnx"))
    return tmp_path / "rnn.onnx"


def test_a_pair_is_the_last_input_and_output(rnn: Path) -> None:
    io = io_spec(load(rnn, state={"s": "s_out"}))
    assert [s.name for s in io.inputs] == ["x", "s"] and [s.name for s in io.outputs] == ["y", "z", "s_out"]
    assert io.states == (State("s", b"", "s_out"),)


def test_a_sequence_of_calls_equals_the_reference(rnn: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((12, 4)).astype("float32")
    np.savez(tmp_path / "f.npz", x=rows)
    words = ["compile", str(rnn), "--target", "host", "--state", "s=s_out", "-o", str(tmp_path / "p"), "--json"]
    made = json.loads(CliRunner().invoke(main, words).stdout)
    assert [(s["name"], s["bytes"]) for s in made["states"]] == [("s", 16)]
    done = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz", check=rnn)
    assert done.ok and done.match and done.frames == 12
    state = np.zeros((1, 4), "float32")
    for row, y, z in zip(rows, done.outputs["y"], done.outputs["z"], strict=True):
        np.testing.assert_allclose(z, -state, atol=1e-5)
        state = np.tanh(state @ WEIGHTS + row)
        np.testing.assert_allclose(y, state * row, atol=1e-5)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"q": "s_out"}, "no input q; its inputs: s, x"),
        ({"s": "q"}, "no output q; its outputs: s_out, y, z"),
        ({"s": "y", "x": "y"}, "an output is paired twice"),
        (["s"], "--state 's': give IN=OUT"),
        (["s=y", "s=z"], "give IN=OUT, once for every input"),
    ],
)
def test_what_is_no_pair_is_refused(rnn: Path, state: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(rnn, state=state)


def test_samples_of_a_data_set_are_no_sequence(rnn: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 1, 4), "float32"), labels=np.array([0, 1]))
    with pytest.raises(UsageError, match=r"keeps s from one call to the next.*run --frames and --check"):
        tvm_cascade.validate(rnn, data=tmp_path / "d.npz", state={"s": "s_out"})


def test_an_output_has_to_be_left(rnn: Path) -> None:
    with pytest.raises(UsageError, match="no output of the network is left"):
        load(rnn, until=("s_out",), state={"s": "s_out"})


def test_a_state_has_one_shape(rnn: Path) -> None:
    model = onnx.load(str(rnn))
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 3
    for k in (0, 1):
        model.graph.output[k].type.tensor_type.shape.dim[0].dim_value = 3
    onnx.save(model, str(rnn))
    with pytest.raises(
        UsageError, match=r"input s is float32\[1, 4\], output s_out float32\[3, 4\]: a state has one form"
    ):
        load(rnn, state={"s": "s_out"})


@pytest.mark.parametrize(("kind", "gates", "states"), [("GRU", 3, ("h",)), ("LSTM", 4, ("h", "c"))])
def test_recurrent_layers_go_on_where_the_last_call_ended(
    kind: str, gates: int, states: tuple[str, ...], tmp_path: Path
) -> None:
    """Two steps a call. What comes out at the end of a call is the state, and an output too."""
    units, depth, rng = 5, 3, np.random.default_rng(2)
    shapes = {"x": [2, 1, depth], "y": [2, 1, 1, units], "last": [1, 1, units]}
    shapes |= {n: [1, 1, units] for n in (*states, *(f"{s}_next" for s in states))}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items()}
    after = [f"{s}_next" for s in states]
    nodes = [
        helper.make_node(kind, ["x", "w", "r", "b", "", *states], ["y", *after], hidden_size=units),
        helper.make_node("Identity", ["h_next"], ["last"]),
    ]
    sizes = {"w": (1, gates * units, depth), "r": (1, gates * units, units), "b": (1, 2 * gates * units)}
    weights = [onnx.numpy_helper.from_array(rng.standard_normal(s).astype("float32"), n) for n, s in sizes.items()]
    graph = helper.make_graph(
        nodes, kind, [values[n] for n in ("x", *states)], [values[n] for n in ("y", "last", *after)], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "m.onnx"))
    pairs = dict(zip(states, after, strict=True))
    tvm_cascade.compile(tmp_path / "m.onnx", target="host", state=pairs, output=tmp_path / "p")
    np.savez(tmp_path / "f.npz", x=rng.standard_normal((20, 2, 1, depth)).astype("float32"))
    done = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz", check=tmp_path / "m.onnx")
    assert done.ok and done.match and done.frames == 20
    np.testing.assert_allclose(done.outputs["y"][:, 1], done.outputs["last"], atol=1e-6)
    assert len(np.unique(done.outputs["last"], axis=0)) == 20


def test_a_state_and_what_it_becomes_may_be_read_along_other_axes(tmp_path: Path) -> None:
    """A state that is pooled, so read by rows of pixels, takes a product of matrices, which is made matrix by matrix."""
    shape = [1, 3, 3, 7]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "s", "s_out")]
    pooled = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 1, 3])
    nodes = [
        helper.make_node("AveragePool", ["s"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Transpose", ["s"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "t"], ["p"]),
        helper.make_node("Add", ["p", "one"], ["q"]),
        helper.make_node("MatMul", ["q", "x"], ["s_out"]),
    ]
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    model = helper.make_model(helper.make_graph(nodes, "g", values[:2], [pooled, values[2]], [one]))
    model.ir_version, model.opset_import[0].version = 8, 17
    onnx.save(model, str(tmp_path / "m.onnx"))
    frames = np.random.default_rng(4).standard_normal((4, *shape[1:])).astype("float32")
    np.savez(tmp_path / "f.npz", x=frames)
    tvm_cascade.compile(tmp_path / "m.onnx", target="host", state={"s": "s_out"}, output=tmp_path / "p")
    done = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz")
    state, made = np.zeros(shape[1:], "float32"), np.asarray(done.outputs["y"]).reshape(4, 3, 3)
    for frame, y in zip(frames, made, strict=True):
        want = state[:, :2, :6].reshape(3, 2, 3, 2).mean((1, 3))
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(want).max()))
        state = (frame @ state.transpose(0, 2, 1) + 1) @ frame
