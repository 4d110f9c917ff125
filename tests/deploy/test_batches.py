"""Folders for several batches: any number of rows, from every door, in Python and C++; what mixes rows is refused."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from tvm_cascade import api
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import UsageError
from tvm_cascade.request import StagesRequest
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.tflite import ModelWriter

RNG = np.random.default_rng(3)
KERNEL = RNG.standard_normal((16, 8, 3, 3)).astype("float32")
DENSE = RNG.standard_normal((16, 5)).astype("float32")


def saved(path, nodes, size=("n", 8, 10, 10), result=("n", 5)):
    """An .onnx file of one input x and one output y."""
    constants = [numpy_helper.from_array(KERNEL, "kernel"), numpy_helper.from_array(DENSE, "dense")]
    ends = [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in (("x", size), ("y", result))]
    graph = helper.make_graph([helper.make_node(*a, **k) for a, k in nodes], "g", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def classifier(path):
    return saved(
        path,
        [
            (("Conv", ["x", "kernel"], ["a"]), {"pads": [1, 1, 1, 1]}),
            (("Relu", ["a"], ["b"]), {}),
            (("GlobalAveragePool", ["b"], ["c"]), {}),
            (("Flatten", ["c"], ["d"]), {}),
            (("MatMul", ["d", "dense"], ["e"]), {}),
            (("Softmax", ["e"], ["y"]), {}),
        ],
    )


def example_of(folder):
    spec = importlib.util.spec_from_file_location("batched_example", folder / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("batches")
    args = ["stages", str(classifier(place / "net.onnx")), "--target", "llvm", "--batches", "1..6", "--json"]
    done = CliRunner().invoke(main, [*args, "--emit", str(place / "made")])
    assert done.exit_code == 0, done.output
    return (place / "made").rename(place / "moved")


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    """Rows and their results, each row by a folder of its own batch."""
    place = tmp_path_factory.mktemp("alone")
    api.stages(classifier(place / "net.onnx"), target="llvm", emit=place / "made")
    x = RNG.standard_normal((6, 8, 10, 10)).astype("float32")
    network = example_of(place / "made").load()
    return x, np.concatenate([network.run({"x": row[None]})["y"] for row in x])


def test_one_file_of_weights_and_a_library_for_each_batch(folder):
    told = json.loads((folder / "metadata.json").read_text())
    assert [one["batch"] for one in told["batches"]] == [1, 2, 4, 6] and told["rows"] == ["x"]
    assert told["inputs"][0]["shape"] == [6, 8, 10, 10] and told["library"] == "network.so"
    assert all((folder / one["library"]).is_file() for one in told["batches"])
    used = {k for one in told["batches"] for k in one["weights"]}
    assert used == set(range(len(told["weights"]["tensors"])))
    data = (folder / "weights.bin").read_bytes()
    starts = [data[tensor["offset"] :][:64] for tensor in told["weights"]["tensors"]]
    assert len(set(starts)) == len(starts)  # equal weights stand once
    assert "any batch from 1 to 6" in (folder / "README.md").read_text()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6])
def test_every_row_is_what_it_is_alone(folder, alone, rows):
    x, wanted = alone
    network = example_of(folder).load(threads=2)
    got = network.run({"x": x[:rows]})["y"]
    assert got.shape == (rows, 5)
    np.testing.assert_allclose(got, wanted[:rows], rtol=1e-5, atol=1e-7)
    program = next(k for k, batch in enumerate((1, 2, 4, 6)) if batch >= rows)
    assert [k for k, free in enumerate(network._free) if free] == sorted(
        {program, 3}
    )  # the largest is ready from the start


def test_the_padding_changes_no_bit(folder, alone):
    """Rows behind the given ones may hold anything: here what zeros replace is infinite."""
    x, _ = alone
    network = example_of(folder).load()
    given = network.run({"x": x[:3]})["y"]
    for other in (np.zeros_like(x[:1]), x[5:], np.full_like(x[:1], np.inf)):
        np.testing.assert_array_equal(network.run({"x": np.concatenate([x[:3], other])})["y"][:3], given)


def test_wrong_rows_are_refused(folder, alone):
    network = example_of(folder).load()
    with pytest.raises(ValueError, match=r"rows of the inputs: \[7\]; give x as many each, from 1 to 6"):
        network.run({"x": np.zeros((7, 8, 10, 10), "float32")})
    with pytest.raises(ValueError, match=r"rows of the inputs: \[0\]"):
        network.run({"x": np.zeros((0, 8, 10, 10), "float32")})
    with pytest.raises(ValueError, match=r"x is float32\[2, 8, 10, 9\], the network takes float32\[2, 8, 10, 10\]"):
        network.run({"x": np.zeros((2, 8, 10, 9), "float32")})
    with pytest.raises(ValueError, match=r"rows of the inputs: \[\]"):
        network.run({"z": np.zeros(1)})


@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed: apt-get install cmake")
def test_cpp_takes_any_rows(folder, alone, tmp_path):
    x, wanted = alone
    make = ["cmake", "-S", str(folder), "-B", str(tmp_path / "b"), f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (make, ["cmake", "--build", str(tmp_path / "b")]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    run = [str(tmp_path / "b" / "example"), "--input", f"x={tmp_path}/in.bin", "--output", f"y={tmp_path}/out.bin"]
    for rows in (1, 3, 6):
        x[:rows].tofile(tmp_path / "in.bin")
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        got = np.fromfile(tmp_path / "out.bin", "float32").reshape(rows, 5)
        np.testing.assert_allclose(got, wanted[:rows], rtol=1e-5, atol=1e-7)
    (tmp_path / "in.bin").write_bytes(bytes(5))
    refused = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "has 5 bytes: give 1 to 6 rows of 3200" in refused.stderr
    timed = subprocess.run(run[:1], cwd=folder, capture_output=True, text=True, timeout=60)
    assert timed.returncode == 0 and " ms, median of 20 runs " in timed.stdout, timed.stderr


@pytest.mark.parametrize(
    "nodes, result, reason",
    [
        ([(("Softmax", ["x"], ["y"]), {"axis": 0})], ("n", 8, 10, 10), "not proven that no row would change: "),
        ([(("ReduceMean", ["x"], ["y"]), {"axes": [0], "keepdims": 1})], (1, 8, 10, 10), "not proven that no row"),
        ([(("Transpose", ["x"], ["y"]), {"perm": [1, 0, 2, 3]})], (8, "n", 10, 10), "not proven that no row"),
    ],
)
def test_what_mixes_rows_is_refused(tmp_path, nodes, result, reason):
    path = saved(tmp_path / "net.onnx", nodes, result=result)
    with pytest.raises(UsageError, match=reason):
        api.stages(path, target="llvm", batches=(1, 4), emit=tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_file_of_one_batch_is_refused(tmp_path):
    path = saved(tmp_path / "net.onnx", [(("Relu", ["x"], ["y"]), {})], (1, 8), (1, 8))
    with pytest.raises(UsageError, match=r"--batches: the file cannot be loaded with a batch of 4: .*not \[4, 8\]"):
        api.stages(path, target="llvm", batches=(1, 4), emit=tmp_path / "made")


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"emit": None}, "--batches is of --emit DIR: give that too"),
        ({"target": "cuda", "arch": "sm_90"}, "--batches is of --target llvm"),
        ({"cost": "measured"}, "--cost measured measures one batch"),
        ({"batches": "1..0"}, "give batches such as 1,4,16"),
        ({"batches": "4..2"}, "give the smaller number first"),
        ({"batches": "a"}, "give batches such as 1,4,16"),
        ({"batches": (0, 2)}, "give batches such as 1,4,16"),
        ({"batches": "1..2..3"}, "give batches such as 1,4,16"),
        ({"batches": ()}, "give batches such as 1,4,16"),
        ({"batches": (1.5,)}, "give batches such as 1,4,16"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, reason, monkeypatch):
    monkeypatch.setattr("tvm_cascade.deploy.folder.require_cuda_compiler", lambda *_: None)
    path = classifier(tmp_path / "net.onnx")
    with pytest.raises(UsageError, match=reason):
        api.stages(path, **{"target": "llvm", "batches": (1, 2), "emit": tmp_path / "made", **options})


def test_several_networks_and_modules_are_refused(tmp_path):
    path = classifier(tmp_path / "net.onnx")
    net = Net("float32", "NCHW", seed=1)
    for model in ([path, path], net.finish(net.conv(net.input((1, 8, 10, 10), "x"), 4, 1))):
        with pytest.raises(UsageError, match="--batches loads a file for each batch: give one model file"):
            api.stages(model, target="llvm", batches=(1, 2), emit=tmp_path / "made")


def test_batches_are_read():
    read = [StagesRequest.of_all({"batches": b}).batches for b in ("1..16", "3..10", "4..4", "16,1,4", [2, 2, 8], None)]
    assert read == [(1, 2, 4, 8, 16), (3, 6, 10), (4,), (1, 4, 16), (2, 8), None]


def test_a_tflite_file_of_open_batch(tmp_path):
    w = ModelWriter()
    x = w.activation((1, 6), "float32", name="x", signature=(-1, 6))
    weights, bias = (RNG.standard_normal(s).astype("float32") for s in ((5, 6), (5,)))
    y = w.tensor((1, 5), "float32", name="y", signature=(-1, 5))
    w.operator("FULLY_CONNECTED", [x, w.constant(weights), w.constant(bias)], [y], "FullyConnectedOptions")
    path = tmp_path / "net.tflite"
    path.write_bytes(w.finish())
    api.stages(path, target="llvm", batches=(2, 4), emit=tmp_path / "made")
    x = RNG.standard_normal((3, 6)).astype("float32")
    (got,) = example_of(tmp_path / "made").load().run({"x": x}).values()
    np.testing.assert_allclose(got, x @ weights.T + bias, rtol=1e-4, atol=1e-5)


def test_a_pt2_file_of_dynamic_batch(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5)
    ).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (torch.zeros(2, 3, 6, 6),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, tmp_path / "net.pt2")
    api.stages(tmp_path / "net.pt2", target="llvm", batches="1..4", emit=tmp_path / "made")
    x = torch.randn(3, 3, 6, 6)
    network = example_of(tmp_path / "made").load()
    (got,) = network.run({network.metadata["inputs"][0]["name"]: x.numpy()}).values()
    np.testing.assert_allclose(got, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
