"""External data of `.onnx` files: beside the model, wherever a command runs, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.checking.reference import reference_outputs
from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.importers.onnx.file import read_model

onnx = pytest.importorskip("onnx")

X = np.array([[1, 10, 100]], "float32")


def write(folder: Path, weights: np.ndarray, location: str = "net.onnx.data", **info: int) -> Path:
    """Write a Gemm whose weights lie in the file `net.onnx.data` of its folder, by the given location."""
    folder.mkdir(exist_ok=True)
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    stored = onnx.numpy_helper.from_array(weights, "w")
    onnx.external_data_helper.set_external_data(stored, location, **info)
    stored.ClearField("raw_data")
    given, made = (helper.make_tensor_value_info(n, kind, [1, k]) for n, k in (("x", 3), ("y", len(weights))))
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    graph = helper.make_graph([node], "network", [given], [made], [stored])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    (folder / "net.onnx.data").write_bytes(weights.tobytes())
    return path


def weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(4, 3)).astype("float32")


def stored(path: Path) -> np.ndarray:
    return onnx.numpy_helper.to_array(read_model(path).graph.initializer[0])


@pytest.mark.parametrize("relative", [False, True])
def test_lies_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool) -> None:
    """A file of the same name in the current directory counts nothing."""
    path, w = write(tmp_path / "a", weights(0)), weights(0)
    write(tmp_path / "b", weights(1))
    monkeypatch.chdir(tmp_path / "b")
    path = Path("../a/net.onnx") if relative else path
    assert np.array_equal(stored(path), w)
    assert load(path)["main"].params[0].name == "x"
    assert load(path, until="y")["main"].params[0].name == "x"
    made = reference_outputs(path, {"x": X}, {})
    np.testing.assert_allclose(made.outputs["y"], X @ w.T, rtol=1e-5)


def test_beside_the_file_that_a_link_names(tmp_path: Path) -> None:
    path, w = write(tmp_path / "a", weights(0)), weights(0)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "net.onnx").symlink_to(path)
    assert np.array_equal(stored(tmp_path / "b" / "net.onnx"), w)


@pytest.mark.parametrize(
    "location", ["../b/net.onnx.data", "/etc/hostname", "x/../net.onnx.data", "link", "deep/link", ""]
)
def test_nothing_outside_of_its_folder_is_read(tmp_path: Path, location: str) -> None:
    write(tmp_path / "b", weights(1))
    path = write(tmp_path / "a", weights(0), location)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b" / "net.onnx.data")
    (tmp_path / "a" / "deep").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "link").write_bytes(weights(1).tobytes())
    with pytest.raises(LoadError, match="outside of the model's folder"):
        load(path)
    with pytest.raises(LoadError, match="outside of the model's folder"):
        reference_outputs(path, {"x": X}, {})


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a", weights(0), "missing")
    with pytest.raises(LoadError, match="external data of w is missing: missing: copy it beside the model"):
        load(path)
    os.mkfifo(tmp_path / "a" / "missing")
    with pytest.raises(LoadError, match="no plain file"):
        load(path)
    with pytest.raises(LoadError, match="too short for the external data of w"):
        load(write(tmp_path / "a", weights(0), offset=16, length=48))
    with pytest.raises(LoadError, match="external data of w is malformed"):
        load(write(tmp_path / "a", weights(0), offset=-1))
    with pytest.raises(LoadError, match="the importer cannot read it"):
        load(write(tmp_path / "a", weights(0), offset=16))


def test_part_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a", weights(0), offset=16, length=48)
    (tmp_path / "a" / "net.onnx.data").write_bytes(bytes(16) + weights(0).tobytes() + bytes(8))
    assert np.array_equal(stored(path), weights(0))
