"""ConvInteger against ONNX Runtime: zero points of either operand, pads, strides and groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
from onnx import helper, numpy_helper

import tvm_cascade
from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.testing.reference import Compiled

_FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {  # types of input and weights, attributes
    "unsigned": ("uint8", "uint8", {"pads": [1, 0, 1, 2]}),
    "mixed": ("uint8", "int8", {"strides": [2, 1]}),
    "in groups": ("uint8", "int8", {"group": 2, "dilations": [1, 2]}),
    "as large as its input": ("uint8", "int8", {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    "an odd pad before": ("uint8", "uint8", {"auto_pad": "SAME_LOWER", "strides": [1, 3]}),
    "without padding": ("uint8", "int8", {"auto_pad": "VALID"}),
    "signals": ("uint8", "int8", {"pads": [2, 1], "strides": [2], "dilations": [3]}),
    "signals as long as their input": ("uint8", "int8", {"auto_pad": "SAME_UPPER", "strides": [3]}),
}


def _saved(path: Path, kinds: tuple[str, str], attributes: dict[str, Any]) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)

    def drawn(kind: str, *shape: int) -> np.ndarray:
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(kind)

    axes = len(attributes.get("strides", (1, 1)))
    x = drawn(kinds[0], 1, 4, *(6, 17, 5)[:axes])
    weights = drawn(kinds[1], 6, 4 // attributes.get("group", 1), *(3, 2, 2)[:axes])
    held = {"w": weights, "xz": np.array(7, kinds[0]), "wz": np.array(3, kinds[1])}
    node = helper.make_node("ConvInteger", ["x", *held], ["y"], **attributes)
    given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    made = helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)
    graph = helper.make_graph([node], "g", [given], [made], [numpy_helper.from_array(a, n) for n, a in held.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return model, x


@pytest.mark.parametrize("name", _FORMS)
def test_every_form(tmp_path: Path, name: str) -> None:
    *kinds, attributes = _FORMS[name]
    model, x = _saved(tmp_path / "n.onnx", (kinds[0], kinds[1]), attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (ours,), (theirs,) = Compiled(load(tmp_path / "n.onnx"))(x), session.run(None, {"x": x})
    np.testing.assert_array_equal(ours, np.asarray(theirs))


@pytest.mark.usefixtures("quick_host")
def test_a_compiled_program(tmp_path: Path) -> None:
    _saved(tmp_path / "n.onnx", ("uint8", "int8"), {"pads": [1, 1, 1, 1]})
    tvm_cascade.compile(tmp_path / "n.onnx", target="host", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "n.onnx").match is True


def test_volumes_are_refused(tmp_path: Path) -> None:
    _saved(tmp_path / "n.onnx", ("uint8", "uint8"), {"strides": [1, 1, 1]})
    with pytest.raises(LoadError, match="ConvInteger over 3 axes: it takes one or two"):
        load(tmp_path / "n.onnx")
