"""Layers of `.onnx` files that ONNX Runtime's `quantize_dynamic` makes: activations uint8 as the network runs, weights int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_cascade.checking.unsigned_weights import with_unsigned_weights


def written(folder: Path, nodes: list[Any], constants: dict[str, np.ndarray], shape: tuple[int, ...]) -> Path:
    """Write a model of the input x and the result y."""
    value = helper.make_tensor_value_info
    held = [numpy_helper.from_array(c, name) for name, c in constants.items()]
    x, y = value("x", TensorProto.FLOAT, shape), value("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", [x], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


def layer(folder: Path, rows: int, depth: int, columns: int, zeros: int = 0, scales: int = 1) -> Path:
    """Write a layer with a bias; `zeros` and `scales` by tensor or column."""
    random, make = np.random.default_rng(depth), helper.make_node
    weights = random.integers(-128, 128, (depth, columns)).astype("int8")
    constants = {"w": weights, "b": random.standard_normal(columns).astype("float32")}
    constants["z"] = np.zeros((), "int8") if zeros < 2 else random.integers(-1, 1, zeros).astype("int8")
    if zeros > 1:
        constants["w"] = np.clip(weights, -100, 100)
    constants["f"] = random.uniform(0.01, 0.02, scales).astype("float32")
    if scales == 1:
        constants["f"] = constants["f"].reshape(())
    nodes = [
        make("DynamicQuantizeLinear", ["x"], ["q", "s", "p"]),
        make("MatMulInteger", ["q", "w", "p", "z"], ["i"]),
        make("Cast", ["i"], ["r"], to=TensorProto.FLOAT),
        make("Mul", ["s", "f"], ["g"]),
        make("Mul", ["r", "g"], ["m"]),
        make("Add", ["m", "b"], ["y"]),
    ]
    return written(folder, nodes, constants, (1, rows, depth))


def by_onnx_runtime(path: Path, x: np.ndarray) -> np.ndarray:
    """Return ONNX Runtime's result for the input x, without its rewrites, which add zero points where nodes subtract these."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    precise = with_unsigned_weights(onnx.load(path)).SerializeToString()
    session = onnxruntime.InferenceSession(precise, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])
