"""Folders of networks with states: a decoder with caches runs token by token, in Python and C++, as ONNX Runtime does."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from tvm_cascade import api
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import UsageError
from tvm_cascade.testing.reference import Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

WIDE, HEADS, GROUPS, DEPTH, HIDDEN, MOST = 32, 4, 2, 8, 48, 12  # the caches hold MOST tokens
CACHE = (1, GROUPS, MOST, DEPTH)
STATES = {"past_keys": "keys", "past_values": "values"}


class Writer:
    """Appends nodes and constants to a graph."""

    def __init__(self) -> None:
        self.nodes, self.held, self.random = list[Any](), list[Any](), np.random.default_rng(4)

    def constant(self, value: Any) -> str:
        self.held.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.held)}"))
        return self.held[-1].name

    def __call__(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def product(self, x: str, rows: int, columns: int) -> str:
        return self(
            "MatMul", x, self.constant((self.random.standard_normal((rows, columns)) / rows**0.5).astype("float32"))
        )

    def shaped(self, x: str, shape: Sequence[int]) -> str:
        return self("Reshape", x, self.constant(np.array(shape)))


def rms_norm(g: Writer, x: str) -> str:
    mean = g("ReduceMean", g("Mul", x, x), axes=[-1], keepdims=1)
    root = g("Sqrt", g("Add", mean, g.constant(np.float32(1e-6))))
    return g("Mul", g("Div", x, root), g.constant(np.full(WIDE, 1.1, "float32")))


def heads(g: Writer, x: str, count: int) -> str:
    return g("Transpose", g.shaped(g.product(x, WIDE, count * DEPTH), (1, 1, count, DEPTH)), perm=[0, 2, 1, 3])


def rotated(g: Writer, x: str) -> str:
    """Rotary embedding of both halves of a head, by the inputs cos and sin."""
    ends = [g.constant(np.array([n])) for n in (0, DEPTH // 2, DEPTH)]
    low, high = (g("Slice", x, ends[k], ends[k + 1], g.constant(np.array([3]))) for k in (0, 1))
    return g("Add", g("Mul", x, "cos"), g("Mul", g("Concat", g("Neg", high), low, axis=3), "sin"))


def decoder(folder: Path) -> Path:
    """Write a block of Llama's form for one token: grouped queries, and caches whose row at the token's place is replaced."""
    g = Writer()
    x = rms_norm(g, "x")
    here = g("Equal", g.constant(np.arange(MOST, dtype="int32").reshape(1, 1, MOST, 1)), "place")
    keys = g("Where", here, rotated(g, heads(g, x, GROUPS)), "past_keys", name="keys")
    values = g("Where", here, heads(g, x, GROUPS), "past_values", name="values")
    q = rotated(g, heads(g, x, HEADS))

    def repeated(t: str) -> str:
        wide = g(
            "Expand",
            g.shaped(t, (1, GROUPS, 1, MOST, DEPTH)),
            g.constant(np.array([1, GROUPS, HEADS // GROUPS, MOST, DEPTH])),
        )
        return g.shaped(wide, (1, HEADS, MOST, DEPTH))

    scores = g("MatMul", q, g("Transpose", repeated(keys), perm=[0, 1, 3, 2]))
    scores = g("Mul", scores, g.constant(np.float32(DEPTH**-0.5)))
    later = g("Greater", g.constant(np.arange(MOST, dtype="int32")), "place")
    seen = g("Where", later, g.constant(np.float32(-1e9)), scores)
    mixed = g("Transpose", g("MatMul", g("Softmax", seen, axis=-1), repeated(values)), perm=[0, 2, 1, 3])
    y = g("Add", "x", g.product(g.shaped(mixed, (1, 1, WIDE)), WIDE, WIDE))
    z = rms_norm(g, y)
    gate = g.product(z, WIDE, HIDDEN)
    gated = g("Mul", g("Mul", gate, g("Sigmoid", gate)), g.product(z, WIDE, HIDDEN))
    g("Add", y, g.product(gated, HIDDEN, WIDE), name="y")
    value = helper.make_tensor_value_info
    shapes = {
        "x": (1, 1, WIDE),
        "cos": (1, 1, 1, DEPTH),
        "sin": (1, 1, 1, DEPTH),
        "past_keys": CACHE,
        "past_values": CACHE,
    }
    inputs = [value(n, TensorProto.FLOAT, s) for n, s in shapes.items()] + [value("place", TensorProto.INT32, (1,))]
    outputs = [
        value("y", TensorProto.FLOAT, (1, 1, WIDE)),
        *(value(n, TensorProto.FLOAT, CACHE) for n in ("keys", "values")),
    ]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "decoder.onnx")
    return folder / "decoder.onnx"


def tokens(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Draw a sequence: the inputs of a call for each token."""
    random, steps = np.random.default_rng(seed), []
    for place in range(count):
        angles = np.tile(place / 100 ** (np.arange(DEPTH // 2) / DEPTH), 2).reshape(1, 1, 1, DEPTH)
        x = random.standard_normal((1, 1, WIDE)).astype("float32")
        turned = {name: f(angles).astype("float32") for name, f in (("cos", np.cos), ("sin", np.sin))}
        steps.append({"x": x, **turned, "place": np.array([place], "int32")})
    return steps


def by_onnx_runtime(path: Path, steps: Sequence[dict[str, np.ndarray]]) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    kept, made = {name: np.zeros(CACHE, "float32") for name in STATES}, []
    for step in steps:
        y, *after = session.run(["y", *STATES.values()], step | kept)
        kept = dict(zip(kept, after, strict=True))
        made.append(y)
    return made


def example_of(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("example_with_states", folder / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("states")
    pairs = [word for pair in STATES.items() for word in ("--state", "=".join(pair))]
    args = ["stages", str(decoder(place)), "--target", "llvm", *pairs, "--emit", str(place / "made"), "--json"]
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0, done.output
    return place


def close(made: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5 * float(np.abs(wanted).max()))


def test_the_folder_describes_its_states(folder):
    told = json.loads((folder / "made" / "metadata.json").read_text())
    assert [spec["name"] for spec in told["inputs"]] == ["x", "cos", "sin", "place"]
    assert [spec["name"] for spec in told["outputs"]] == ["y"]
    assert [(s["name"], s["returned"], s["shape"], s["initial"]) for s in told["states"]] == [
        ("past_keys", "keys", list(CACHE), None),
        ("past_values", "values", list(CACHE), None),
    ]
    assert "keeps past_keys, past_values between runs, zeros at first" in (folder / "made" / "README.md").read_text()


def test_every_token_sees_those_before(folder):
    network, steps = example_of(folder / "made").load(), tokens(MOST)
    for step, wanted in zip(steps, by_onnx_runtime(folder / "decoder.onnx", steps), strict=True):
        close(network.run(step)["y"], wanted)


def test_sequences_have_states_of_their_own(folder):
    network = example_of(folder / "made").load()
    both = [(network.sequence(), tokens(5, seed)) for seed in (1, 2)]
    wanted = [by_onnx_runtime(folder / "decoder.onnx", steps) for _, steps in both]
    for k in range(5):
        for (sequence, steps), results in zip(both, wanted, strict=True):
            close(sequence.run(steps[k])["y"], results[k])
    sequence, steps = both[0]
    sequence.reset()
    close(sequence.run(steps[0])["y"], wanted[0][0])


def test_a_state_may_be_an_input_of_the_run_before(tmp_path):
    """It is kept where the input was copied to: the next input comes elsewhere."""
    value = helper.make_tensor_value_info
    x, before, y, after = (value(n, TensorProto.FLOAT, (1, 64)) for n in ("x", "before", "y", "after"))
    nodes = [helper.make_node("Sub", ["x", "before"], ["y"]), helper.make_node("Identity", ["x"], ["after"])]
    model = helper.make_model(helper.make_graph(nodes, "difference", [x, before], [y, after]), ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    api.stages(tmp_path / "m.onnx", target="llvm", state={"before": "after"}, emit=tmp_path / "made")
    network, last = example_of(tmp_path / "made").load(), np.zeros((1, 64), "float32")
    for k in range(4):
        x = np.random.default_rng(k).standard_normal((1, 64)).astype("float32")
        np.testing.assert_array_equal(network.run({"x": x})["y"], x - last)
        last = x


@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed: apt-get install cmake")
def test_cpp_runs_the_calls_of_a_file_in_turn(folder, tmp_path):
    steps = tokens(MOST)
    make = ["cmake", "-S", str(folder / "made"), "-B", str(tmp_path / "b"), f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (make, ["cmake", "--build", str(tmp_path / "b")]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    run = [str(tmp_path / "b" / "example"), "--output", f"y={tmp_path}/y.bin"]
    for name in steps[0]:
        np.concatenate([step[name].reshape(1, -1) for step in steps]).tofile(tmp_path / f"{name}.bin")
        run += ["--input", f"{name}={tmp_path}/{name}.bin"]
    done = subprocess.run(run, cwd=folder / "made", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made = np.fromfile(tmp_path / "y.bin", "float32").reshape(MOST, 1, 1, WIDE)
    close(made, np.stack(by_onnx_runtime(folder / "decoder.onnx", steps)))
    (tmp_path / "place.bin").write_bytes(bytes(8))
    done = subprocess.run(run, cwd=folder / "made", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "as many runs for each input" in done.stderr
    timed = subprocess.run(run[:1], cwd=folder / "made", capture_output=True, text=True, timeout=60)
    assert timed.returncode == 0 and " ms, median of 20 runs " in timed.stdout, timed.stderr


def test_the_first_run_is_compared_with_the_file(folder):
    done = CliRunner().invoke(main, ["run", str(folder / "made"), "--check", str(folder / "decoder.onnx"), "--json"])
    assert done.exit_code == 0, done.output


def test_states_do_not_fit_batches_and_other_networks(folder, tmp_path):
    path = folder / "decoder.onnx"
    with pytest.raises(UsageError, match="--batches pads a batch, and states are of one"):
        api.stages(path, target="llvm", state=STATES, batches=(1, 2), emit=tmp_path / "d")
    with pytest.raises(UsageError, match="keeps states between calls: it cannot be scheduled with others"):
        api.stages([path, path], target="llvm", state=STATES)
    with pytest.raises(UsageError, match="--state: the model has no input nothing"):
        api.stages(path, target="llvm", state={"nothing": "keys"})


def test_a_recurrent_layer_goes_on_where_the_last_run_ended(tmp_path):
    """A simple layer of a .tflite file keeps its state as LiteRT does; with `stateless` every run begins anew."""
    writer, random = ModelWriter(), np.random.default_rng(1)
    shapes = (6, 4), (6, 6), (6,)
    held = [writer.constant((random.standard_normal(shape) / 3).astype("float32")) for shape in shapes]
    given = [writer.activation((2, 4), "float32"), *held, writer.tensor((2, 6), "float32", variable=True)]
    writer.operator("RNN", given, [writer.tensor((2, 6), "float32")], "RNNOptions", fusedActivationFunction=4)
    path = tmp_path / "m.tflite"
    path.write_bytes(writer.finish())
    networks = []
    for stateless in (False, True):
        api.stages(path, target="llvm", stateless=stateless, emit=tmp_path / str(stateless))
        networks.append(example_of(tmp_path / str(stateless)).load())
    kept, anew = networks
    assert kept.metadata["states"][0]["returned"] is None and anew.metadata["states"] is None
    reference, (name,) = Reference(path.read_bytes()), (spec["name"] for spec in kept.metadata["inputs"])
    for k in range(4):
        arrays = random_inputs(reference.inputs, k)
        close(next(iter(kept.run({name: arrays[0]}).values())), reference.run(arrays, again=k > 0)[0])
        close(next(iter(anew.run({name: arrays[0]}).values())), Reference(path.read_bytes()).run(arrays)[0])
