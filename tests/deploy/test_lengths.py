"""Folders for several lengths: a program for each runs the inputs of its shapes, in Python and C++, by one file of weights."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
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

WIDE = 48


def encoder(folder: Path, tokens: int | str = "tokens") -> Path:
    """Write attention of all tokens that a mask has, and a dense layer."""
    random, make = np.random.default_rng(0), helper.make_node
    constants = {
        "w": random.standard_normal((WIDE, WIDE)).astype("float32") / 7,
        "one": np.float32(1),
        "many": np.float32(1e9),
        "axis": np.array([1]),
    }
    nodes = [
        make("Transpose", ["x"], ["keys"], perm=[0, 2, 1]),
        make("MatMul", ["x", "keys"], ["scores"]),
        make("Sub", ["mask", "one"], ["less"]),
        make("Mul", ["less", "many"], ["least"]),
        make("Unsqueeze", ["least", "axis"], ["bias"]),
        make("Add", ["scores", "bias"], ["seen"]),
        make("Softmax", ["seen"], ["shares"], axis=-1),
        make("MatMul", ["shares", "x"], ["mixed"]),
        make("MatMul", ["mixed", "w"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["n", tokens, WIDE]), value("mask", TensorProto.FLOAT, ["n", tokens])]
    held = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", TensorProto.FLOAT, ["n", tokens, WIDE])], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    return folder / "net.onnx"


def drawn(length: int, filled: int | None = None) -> dict[str, np.ndarray]:
    x = np.random.default_rng(length).standard_normal((1, length, WIDE)).astype("float32")
    return {"x": x, "mask": (np.arange(length) < (filled or length)).astype("float32")[None]}


def wanted(path: Path, arrays: dict[str, np.ndarray]) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, arrays)[0])


def example_of(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("example_of_lengths", folder / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def close(made: np.ndarray, expected: np.ndarray) -> None:
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("lengths")
    args = ["stages", str(encoder(place)), "--target", "llvm", "--lengths", "4..20", "--emit", str(place / "made")]
    done = CliRunner().invoke(main, [*args, "--json"])
    assert done.exit_code == 0, done.output
    return place


def test_one_file_of_weights_and_a_program_for_each_length(folder):
    told = json.loads((folder / "made" / "metadata.json").read_text())
    assert [one["length"] for one in told["lengths"]] == [4, 8, 16, 20] and told["batches"] is None
    assert [one["inputs"][1]["shape"] for one in told["lengths"]] == [[1, 4], [1, 8], [1, 16], [1, 20]]
    assert {k for one in told["lengths"] for k in one["weights"]} == set(range(len(told["weights"]["tensors"])))
    assert "inputs of the lengths 4, 8, 16, 20" in (folder / "made" / "README.md").read_text()


@pytest.mark.parametrize("length", [4, 8, 16, 20])
def test_every_length_is_that_of_the_file(folder, length):
    network = example_of(folder / "made").load(threads=2)
    arrays = drawn(length, length - 1)
    close(network.run(arrays)["y"], wanted(folder / "net.onnx", arrays))


def test_a_mask_makes_shorter_sequences(folder):
    network, short = example_of(folder / "made").load(), drawn(5)
    padded = {"x": np.zeros((1, 8, WIDE), "float32"), "mask": np.zeros((1, 8), "float32")}
    for name, array in short.items():
        padded[name][:, :5] = array
    close(network.run(padded)["y"][:, :5], wanted(folder / "net.onnx", short))


def test_other_lengths_are_refused(folder):
    network = example_of(folder / "made").load()
    with pytest.raises(ValueError, match="this network has programs for the lengths 4, 8, 16, 20 alone"):
        network.run(drawn(5))
    with pytest.raises(ValueError, match="programs for the lengths"):
        network.run(drawn(4) | {"mask": drawn(8)["mask"]})
    with pytest.raises(ValueError, match="the inputs are named"):
        network.run({"x": drawn(4)["x"]})


@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed: apt-get install cmake")
def test_cpp_takes_every_length(folder, tmp_path):
    make = ["cmake", "-S", str(folder / "made"), "-B", str(tmp_path / "b"), f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (make, ["cmake", "--build", str(tmp_path / "b")]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    run = [str(tmp_path / "b" / "example"), "--output", f"y={tmp_path}/y.bin"]
    run += [word for name in ("x", "mask") for word in ("--input", f"{name}={tmp_path}/{name}.bin")]
    for length in (4, 16, 20):
        arrays = drawn(length)
        for name, array in arrays.items():
            array.tofile(tmp_path / f"{name}.bin")
        done = subprocess.run(run, cwd=folder / "made", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        close(np.fromfile(tmp_path / "y.bin", "float32").reshape(1, length, WIDE), wanted(folder / "net.onnx", arrays))
    (tmp_path / "x.bin").write_bytes(bytes(5 * WIDE * 4))
    done = subprocess.run(run, cwd=folder / "made", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "x takes" in done.stderr


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"emit": None}, "--lengths is of --emit DIR"),
        ({"cost": "measured"}, "--cost measured measures one length"),
        ({"batches": (1, 2)}, "--batches and --lengths are for different folders"),
        ({"input_shapes": {"x": (1, 4, WIDE), "mask": (1, 4)}}, "the file leaves no size open behind the batch"),
        ({"lengths": "8..4"}, "give the smaller number first"),
    ],
)
def test_options_that_do_not_fit(folder, tmp_path, options, reason):
    with pytest.raises(UsageError, match=reason):
        api.stages(folder / "net.onnx", **{"target": "llvm", "lengths": (4, 8), "emit": tmp_path / "d", **options})
    assert not (tmp_path / "d").exists()
