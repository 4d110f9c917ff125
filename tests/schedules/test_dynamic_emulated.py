"""Dynamically quantized layers of `.onnx` as firmware, against ONNX Runtime: random windows, types and ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_cascade import api

LAYERS = 8  # of a file


@dataclass
class Drawn:
    """Layers side by side, each with an input and an output of its own."""

    rng: np.random.Generator
    nodes: list[Any] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    def choice(self, *values: int) -> int:
        return int(self.rng.choice(values))

    def constant(self, name: str, data: Any) -> str:
        self.held.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def product(self, k: int) -> None:
        """A product of a matrix, or of rows of a tensor of three axes."""
        rows, depth, units = self.choice(1, 1, 3, 5), self.choice(1, 7, 16, 33, 64), self.choice(1, 3, 4, 17, 32)
        shape = [rows, depth] if self.choice(0, 1) else [1, rows, depth]
        self._layer(k, "MatMulInteger", {}, (shape, [*shape[:-1], units]), (depth, units), (units,), (units,))

    def convolution(self, k: int) -> None:
        """A convolution: of one group, of several, or depthwise; batches of one or two."""
        inputs, group = self.choice(1, 2, 3, 4, 8, 12, 16), 1
        outputs = self.choice(1, 2, 4, 7, 8, 12)
        if self.choice(0, 1, 2) == 0:
            group = self.choice(1, inputs)
            outputs = group * self.choice(1, 2)
        size, strides = [self.choice(1, 2, 3, 4) for _ in "hw"], [self.choice(1, 1, 2, 3) for _ in "hw"]
        dilations = [1, 1] if self.choice(0, 1, 2) else [self.choice(1, 2), self.choice(1, 2)]
        reach = [(n - 1) * d + 1 for n, d in zip(size, dilations, strict=True)]
        pads = [min(self.choice(0, 1, 2), r - 1) for r in (*reach, *reach)]
        extents = [max(int(self.rng.integers(1, 11)), r) for r in reach]
        made = [
            (n + pads[i] + pads[i + 2] - r) // s + 1
            for i, (n, r, s) in enumerate(zip(extents, reach, strides, strict=True))
        ]
        batch = self.choice(1, 1, 1, 2)
        window = {"strides": strides, "pads": pads, "dilations": dilations, "group": group, "kernel_shape": size}
        shapes = [batch, inputs, *extents], [batch, outputs, *made]
        weights = (outputs, inputs // group, *size)
        self._layer(k, "ConvInteger", window, shapes, weights, (outputs, 1, 1), (1, outputs, 1, 1))

    def _layer(
        self,
        k: int,
        kind: str,
        attributes: dict[str, Any],
        shapes: tuple[list[int], list[int]],
        weights: tuple[int, ...],
        scales: tuple[int, ...],
        bias: tuple[int, ...],
    ) -> None:
        dtype = "uint8" if self.choice(0, 1) else "int8"
        info, rng = np.iinfo(dtype), self.rng
        w = self.constant(f"w{k}", rng.integers(info.min, info.max, weights, endpoint=True).astype(dtype))
        wz = self.constant(f"wz{k}", np.array(self.choice(0, int(rng.integers(info.min, info.max))), dtype))
        of_weights = self.constant(f"ws{k}", np.float32(rng.random(scales if self.choice(0, 1) else ()) * 0.02 + 0.001))
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [f"x{k}"], [f"q{k}", f"s{k}", f"z{k}"]))
        total = self.node("Cast", [self.node(kind, [f"q{k}", w, f"z{k}", wz], f"p{k}", **attributes)], f"c{k}", to=1)
        y = self.node("Mul", [total, self.node("Mul", [f"s{k}", of_weights], f"m{k}")], f"y{k}")
        if self.choice(0, 1, 1):
            y = self.node("Add", [y, self.constant(f"b{k}", rng.standard_normal(bias).astype("float32"))], f"a{k}")
        end = self.choice(0, 1, 2)
        if end:
            ends = (
                [self.constant(f"{name}{k}", np.float32(v)) for name, v in (("lo", -1), ("hi", 6))] if end > 1 else []
            )
            y = self.node("Clip" if end > 1 else "Relu", [y, *ends], f"r{k}")
        for name, shape, to in ((f"x{k}", shapes[0], self.inputs), (y, shapes[1], self.outputs)):
            to.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def model(self) -> Any:
        graph = helper.make_graph(self.nodes, "layers", self.inputs, self.outputs, self.held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def checked(model: Path, target: str, folder: Path) -> dict[str, Any]:
    made = api.compile(model, target=target, output=folder)
    report: Any = api.run(folder, board=made.board, check=model).to_dict()
    assert report["match"] is True
    return report


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("TVM_CASCADE_SWEEP", "1"))))
def test_random_layers(target: str, seed: int, emulator: None, tmp_path: Path) -> None:
    """Bit for bit."""
    drawn = Drawn(np.random.default_rng(seed))
    for k in range(LAYERS):
        (drawn.product if k % 3 == 0 else drawn.convolution)(k)
    onnx.save(drawn.model(), tmp_path / "n.onnx")
    report = checked(tmp_path / "n.onnx", target, tmp_path / "p")
    assert report["max_abs_diff"] == 0


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
def test_networks_take_fewer_instructions_than_floats(emulator: None, tmp_path: Path) -> None:
    """Products of a network of `quantize_dynamic`, against the network that it was made from."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    rng, nodes, held, x = np.random.default_rng(0), list[Any](), list[Any](), "x"
    for k, (depth, units) in enumerate(((64, 96), (96, 64), (64, 10))):
        arrays = {f"w{k}": rng.standard_normal((depth, units)) / 8, f"b{k}": rng.standard_normal(units)}
        held += [numpy_helper.from_array(a.astype("float32"), name) for name, a in arrays.items()]
        nodes.append(helper.make_node("MatMul", [x, f"w{k}"], [f"m{k}"]))
        nodes.append(helper.make_node("Add", [f"m{k}", f"b{k}"], [f"a{k}"]))
        nodes.append(helper.make_node("Relu", [f"a{k}"], [f"r{k}"]))
        x = f"r{k}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", 64), (x, 10))]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "float.onnx")
    quantization.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    reports = {n: checked(tmp_path / f"{n}.onnx", "cortex-m4", tmp_path / n) for n in ("float", "dynamic")}
    assert reports["dynamic"]["max_abs_diff"] == 0
    assert reports["dynamic"]["instructions"] < reports["float"]["instructions"]
    assert reports["dynamic"]["arena_bytes"] <= reports["float"]["arena_bytes"]
