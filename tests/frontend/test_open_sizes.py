"""Sizes that a file leaves open are refused all at once, with an example that fixes them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.testing.tflite import ModelWriter


def _onnx(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    forms: dict[str, list[Any]] = {"ids": ["b", "s"], "mask": ["b", "s"], "im age": [1, 3, None, "w"], "bias": ["b", 4]}
    inputs = [helper.make_tensor_value_info(name, kind, form) for name, form in forms.items()]
    nodes = [helper.make_node("Relu", [name], [f"y{k}"]) for k, name in enumerate(forms)]
    outputs = [onnx.helper.make_value_info(f"y{k}", onnx.TypeProto()) for k in range(len(forms))]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def _tflite(path: Path) -> None:
    w = ModelWriter()
    for shape, signature in (((1, 8, 4), (-1, -1, 4)), ((1, 1), (1, -1)), ((1, 5), (-1, 5))):
        x = w.activation(shape, "float32", signature=signature)
        w.operator("ABS", [x], [w.tensor(shape, "float32", signature=signature)])
    path.write_bytes(w.finish())


def _options(message: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the example in a message."""
    words = shlex.split(message[message.index("--input-shape") :])
    assert words[::2] == ["--input-shape"] * (len(words) // 2)
    pairs = (word.rsplit("=", 1) for word in words[1::2])
    return {name: tuple(int(d) for d in sizes.split(",")) for name, sizes in pairs}


def test_onnx(tmp_path: Path) -> None:
    _onnx(tmp_path / "m.onnx")
    with pytest.raises(LoadError) as refused:
        load(tmp_path / "m.onnx")
    text = str(refused.value)
    assert "inputs ids [b, s], mask [b, s], im age [1, 3, ?, w] have sizes that the file leaves open" in text
    shapes = _options(text)
    assert shapes == {"ids": (1, 16), "mask": (1, 16), "im age": (1, 3, 64, 64)}
    assert [s.shape for s in io_spec(load(tmp_path / "m.onnx", shapes)).inputs] == [*shapes.values(), (1, 4)]
    with pytest.raises(LoadError, match=r"input im age \[1, 3, \?, w\] has sizes"):
        load(tmp_path / "m.onnx", {"ids": (1, 7), "mask": (1, 7)})


def test_tflite(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    _tflite(tmp_path / "m.tflite")
    with pytest.raises(LoadError) as refused:
        load(tmp_path / "m.tflite")
    assert "inputs t0 [-1, -1, 4], t2 [1, -1] have sizes that the file leaves open" in str(refused.value)
    shapes = _options(str(refused.value))
    assert shapes == {"t0": (1, 16, 4), "t2": (1, 16)}
    assert [s.shape for s in io_spec(load(tmp_path / "m.tflite", shapes)).inputs] == [*shapes.values(), (1, 5)]


@pytest.mark.torch
def test_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def forward(self, ids: Any, mask: Any, other: Any) -> Any:
            return ids + mask, other * 2

    batch, length, more = (torch.export.Dim(name, max=512) for name in ("batch", "length", "more"))
    free = {"ids": {0: batch, 1: length}, "mask": {0: batch, 1: length}, "other": {1: more}}
    given = (torch.ones(2, 6), torch.ones(2, 6), torch.ones(3, 7))
    torch.export.save(torch.export.export(Net(), given, dynamic_shapes=free), tmp_path / "m.pt2")
    with pytest.raises(LoadError) as refused:
        load(tmp_path / "m.pt2")
    shapes = _options(str(refused.value))
    assert shapes == {"ids": (1, 16), "mask": (1, 16), "other": (3, 16)}
    assert [s.shape for s in io_spec(load(tmp_path / "m.pt2", shapes)).inputs] == list(shapes.values())
