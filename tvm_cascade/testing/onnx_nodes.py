"""Small ONNX networks of any operators and types, compiled and compared with ONNX Runtime without its optimizations.

The `onnx` and `onnxruntime` extras are imported with this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import tvm_cascade
from tvm_cascade.checking.unsigned_weights import with_unsigned_weights

Arrays = Mapping[str, np.ndarray]


def save_network(
    path: Path, nodes: Sequence[Any], inputs: Arrays, outputs: Sequence[str], constants: Arrays, opset: int = 20
) -> Path:
    """Write a network whose inputs have the types and shapes of arrays; the types of its outputs are inferred."""
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name=o) for o in outputs], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types = {v.name: v for v in (*inferred.value_info, *inferred.output)}
    for output in model.graph.output:
        output.CopyFrom(types.get(output.name, output))
    onnx.save(model, path)
    return path


def runtime_outputs(path: Path, inputs: Arrays) -> list[np.ndarray]:
    """The outputs of ONNX Runtime."""
    options: Any = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    precise = with_unsigned_weights(onnx.load(path)).SerializeToString()
    session: Any = onnxruntime.InferenceSession(precise, options, providers=["CPUExecutionProvider"])
    return [np.asarray(made) for made in session.run(None, dict(inputs))]


def compiled_outputs(path: Path, inputs: Arrays, folder: Path, target: str = "host") -> list[np.ndarray]:
    """The outputs of the program for `target` that is written to `folder`; of a core in the emulator."""
    tvm_cascade.compile(path, target=target, output=folder)
    interface = json.loads((folder / "metadata.json").read_text())["project"]["interface"]
    given = {port["name"]: inputs[port["name"]].astype(port["dtype"]) for port in interface["inputs"]}
    tvm_cascade.run(folder, inputs=given, outputs=folder / "outputs.npz")
    with np.load(folder / "outputs.npz") as held:
        return [held[port["name"]] for port in interface["outputs"]]


def check_network(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Arrays,
    outputs: Sequence[str],
    constants: Arrays | None = None,
    opset: int = 20,
    target: str = "host",
    wanted: Sequence[np.ndarray] | None = None,
) -> None:
    """Assert that a network compiled for `target` computes what ONNX Runtime does, or `wanted` where that is given: integers
    and booleans to the bit, floats nearly."""
    path = save_network(folder / "network.onnx", nodes, inputs, outputs, constants or {}, opset)
    expected = runtime_outputs(path, inputs) if wanted is None else wanted
    for ours, theirs in zip(compiled_outputs(path, inputs, folder / "project", target), expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        near = 1e-5 if theirs.dtype.kind == "f" else 0
        np.testing.assert_allclose(ours, theirs, rtol=near, atol=near)
