"""Small quantized ONNX networks, layer by layer, for tests. The `onnx` extra is imported with this module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled


class Layers:
    """A graph of input `x`; int8 activations of scale 0.02 around zero."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def constant(self, data: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(data), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, kind: str, *inputs: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [f"v{len(self.nodes)}"], **attrs))
        return self.nodes[-1].output[0]

    def stored(self, x: str, scale: float = 0.02, zero_point: int = 3) -> str:
        pair = (self.constant(np.float32(scale)), self.constant(np.int8(zero_point)))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *pair), *pair)

    def weight(self, shape: tuple[int, ...], axis: int | None = None) -> str:
        scale = self.rng.uniform(0.002, 0.006, () if axis is None else shape[axis]).astype("float32")
        data = self.rng.integers(-127, 128, shape).astype("int8")
        zero = self.constant(np.zeros(scale.shape, "int8"))
        return self.node("DequantizeLinear", self.constant(data), self.constant(scale), zero, axis=axis or 0)

    def check(self, path: Path, result: str, shape: tuple[int, ...], rank: int, steps: float = 1) -> list[str]:
        """Saves and compares with ONNX's evaluator in steps of 0.02; the operators that stay float."""
        from onnx.reference import ReferenceEvaluator

        lower: Any = LowerQuantized()
        self.save(path, result, shape, rank)
        lowered = lower(load(path))
        evaluator, run = ReferenceEvaluator(str(path)), Compiled(lowered)
        for seed in range(3):
            x = np.random.default_rng(seed).uniform(-2, 2, shape).astype("float32")
            ours, theirs = run(x)[0], np.asarray(evaluator.run(None, {"x": x})[0])  # pyright: ignore[reportArgumentType, reportCallIssue]
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).max() <= steps * 0.02 + 1e-4
        return [r.operator.removeprefix("relax.") for r in float_remains(lowered) if r.operator != "dequantize"]

    def save(self, path: Path, result: str, shape: tuple[int, ...], rank: int, others: tuple[str, ...] = ()) -> None:
        make, kind = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
        outputs = [make(result, kind, [None] * rank), *(onnx.ValueInfoProto(name=name) for name in others)]
        graph = helper.make_graph(self.nodes, "g", [make("x", kind, shape)], outputs, self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
