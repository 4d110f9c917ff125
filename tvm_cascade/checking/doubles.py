"""Quantized ONNX and torch networks in double precision, in which nearly every rounding is exact.

Kernels round the exact sum of integers once, half to even. ONNX Runtime and torch round sums of float32: where a sum lies
next to a tie they may store the neighbour, and a deep network makes more of that. In double precision the same operators
give what kernels compute, in nearly all networks every element. The rest has operators with fixed points of their own, or
biases that are stored in whole steps of the sum: there `turn` stores the other neighbour of all elements next to a tie, or
of some, and shows how far these can move the outputs. An exact tie is not turned: everybody rounds it half to even.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.reference import Arrays, Scales, as_floats, float_inputs
from tvm_cascade.checking.sensitivity import in_own_types, max_pool, read_program, run_exported
from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.tensor_spec import unique_names

NEAR = 2.0**-19  # of the tensor's largest number of steps: 16 units in the last place of float32
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PASSING = ("Relu", "Clip", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "MaxPool", "LeakyRelu")


@dataclass(frozen=True, slots=True)
class Turn:
    """Elements next to a tie that are stored as the other neighbour."""

    rng: np.random.Generator
    share: float = 1.0

    def of(self, stored: np.ndarray, steps: np.ndarray, slack: float = 0.0) -> np.ndarray:
        """Copy stored integers, of which `steps` are the unrounded numbers without zero point.

        `slack` is added to the distance from a tie, in steps.
        """
        from ml_dtypes import iinfo  # onnx and torch's exporter bring it, and int4 has no other limits

        finite = np.where(np.isfinite(steps), steps, 0.0)
        distance = np.abs(finite - np.floor(finite) - 0.5)
        near = (distance > 0) & (distance <= NEAR * np.abs(finite).max(initial=1.0) + slack)
        near &= self.rng.random(steps.shape) < self.share
        info = iinfo(stored.dtype)
        moved = stored.astype("int64") + np.where(near, np.where(np.rint(finite) > finite, -1, 1), 0)
        return np.clip(moved, int(info.min), int(info.max)).astype(stored.dtype)


class DoubleReference:
    """A quantized ONNX or torch network in double precision; a `Reference`."""

    by, note = "double precision", ""

    def __init__(self, path: Path, scales: Scales, turn: Turn | None = None) -> None:
        """Open the network. Raises the evaluator's errors for a refused model."""
        self._path, self._scales, self._turn = path, scales, turn
        self._floats = float_inputs(path)
        if path.suffix == ".onnx":
            self._model = read_model(path)
            self._session = _onnx_evaluator(self._model, turn)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run an inference and return outputs by name, float32 for doubles; raises whatever an operator fails with."""
        inputs = as_floats(inputs, self._floats, self._scales)
        if self._path.suffix == ".pt2":
            return _run_torch(self._path, inputs, self._turn)
        wide = {n: a.astype("float64") if a.dtype.kind == "f" else a for n, a in inputs.items()}
        values = self._session.run(None, dict(in_own_types(self._model, wide)))
        names = unique_names(map(str, self._session.output_names))
        return {n: _narrow(np.asarray(v)) for n, v in zip(names, values, strict=True)}

    anew = run


def _narrow(array: np.ndarray) -> np.ndarray:
    return array.astype("float32") if array.dtype == np.float64 else array


def _onnx_evaluator(model: Any, turn: Turn | None) -> Any:
    from onnx.reference import ReferenceEvaluator

    from tvm_cascade.importers.onnx.halves import as_doubles
    from tvm_cascade.importers.onnx.qoperators import spell_out

    spelled = as_doubles(spell_out(model))
    _spell_old_resizes(spelled)
    quantizers = _dequantize_linear(), _quantize_linear(turn, _slacks(spelled.graph))
    return ReferenceEvaluator(spelled, new_ops=[max_pool(), *quantizers])


def _spell_old_resizes(model: Any) -> None:
    """Give the Resizes of opset 10 the form of opset 11, which alone ONNX's evaluator computes; in place."""
    from onnx import helper, numpy_helper

    if all(o.version != 10 for o in model.opset_import if o.domain in ("", "ai.onnx")):
        return
    held = {w.name: w for w in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Resize" and len(node.input) == 2:
            x, scales = node.input
            smaller = scales in held and bool((numpy_helper.to_array(held[scales]) < 1).any())
            del node.input[:]
            node.input.extend([x, "", scales])
            how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil" if smaller else "floor"}
            node.attribute.extend(helper.make_attribute(name, value) for name, value in how.items())


def _dequantize_linear() -> Any:
    from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_19

    class DequantizeLinear(DequantizeLinear_19):
        op_domain = ""

        def _run(self, *args: Any, axis: int = 1, block_size: int = 0, **_types: object) -> Any:
            stored, scale, *zero = (_spread(a, args[0].shape, axis, block_size) for a in args if a is not None)
            real = np.asarray(stored, "float64")
            return ((real - np.asarray(zero[0], "float64") if zero else real) * np.asarray(scale, "float64"),)

    return DequantizeLinear


def _quantize_linear(turn: Turn | None, slacks: Mapping[str, float]) -> Any:
    from onnx.reference.ops.op_quantize_linear import QuantizeLinear_21

    class QuantizeLinear(QuantizeLinear_21):
        op_domain = ""

        def _run(
            self,
            *args: Any,
            axis: int = 1,
            saturate: int = 1,
            block_size: int = 0,
            output_dtype: Any = None,
            **_: object,
        ) -> Any:
            how: dict[str, Any] = {"axis": axis, "block_size": block_size, "output_dtype": output_dtype}
            (stored,) = super()._run(*args, saturate=bool(saturate), **how)
            if turn is None or "float" in str(stored.dtype):
                return (stored,)
            steps = np.asarray(args[0], "float64") / _spread(args[1], args[0].shape, axis, block_size)
            return (turn.of(stored, steps, slacks.get(self.onnx_node.output[0], 0.0)),)

    return QuantizeLinear


def _spread(numbers: Any, shape: tuple[int, ...], axis: int, block: int) -> Any:
    """Return scales or zero points in a shape that broadcasts to `shape`: single, along `axis`, or by blocks of it."""
    if np.ndim(numbers) == 0 or np.shape(numbers) == shape:
        return numbers
    if block:
        return np.repeat(numbers, block, axis).take(range(shape[axis]), axis)
    return np.reshape(numbers, [-1 if d == axis % len(shape) else 1 for d in range(len(shape))])


def _slacks(graph: Any) -> dict[str, float]:
    """Return by output of a QuantizeLinear half a step of the sum in front, in its own steps, if the bias is float.

    Such a bias is stored in whole steps of the sum (`importers.biases`).
    """
    from onnx import numpy_helper

    held = {w.name: w for w in graph.initializer}
    made = {o: n for n in graph.node for o in n.output}

    def scale(name: str) -> float:
        return float(np.abs(numpy_helper.to_array(held[name])).max(initial=0.0)) if name in held else 0.0

    def maker(name: str) -> Any:
        node = made.get(name)
        while node is not None and node.op_type in _PASSING:
            node = made.get(node.input[0])
        return node

    def operand(name: str) -> float:
        node = maker(name)
        return scale(node.input[1]) if node is not None and node.op_type == "DequantizeLinear" else 0.0

    def half_a_step(name: str) -> float:
        node = maker(name)
        if node is not None and node.op_type == "Add" and any(i in held for i in node.input):
            layer = next((made.get(i) for i in node.input if i not in held), None)
        else:
            layer = node if node is not None and len(node.input) > 2 and node.input[2] in held else None
        if layer is None or layer.op_type not in _LAYERS:
            return 0.0
        return 0.5 * operand(layer.input[0]) * operand(layer.input[1])

    ends = [n for n in graph.node if n.op_type == "QuantizeLinear" and scale(n.input[1])]
    least = {n.output[0]: float(np.abs(numpy_helper.to_array(held[n.input[1]])).min()) for n in ends}
    return {n.output[0]: half_a_step(n.input[0]) / least[n.output[0]] for n in ends if least[n.output[0]]}


def _run_torch(path: Path, inputs: Arrays, turn: Turn | None) -> dict[str, np.ndarray]:
    """Run a torch program whose float32 numbers are doubles throughout."""
    torch = torch_package()
    tree = torch.utils._pytree

    def wide(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.double() if is_float else value

    class Doubling(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            slack = _torch_slack(n) if turn is not None and ".quantize_per_tensor" in str(n.target) else 0.0
            self.slack = slack
            return tree.tree_map(wide, super().run_node(n))

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            name = str(target)
            if ".dequantize_per_" in name:
                return _real(torch, name, args)
            if ".quantize_per_tensor" not in name:
                return super().call_function(target, args, kwargs)
            steps = args[0].double() * float(np.float32(1.0 / float(args[1])))
            whole = (torch.round(steps) + int(args[2])).clamp(int(args[3]), int(args[4])).to(args[5])
            if turn is None:
                return whole
            return torch.from_numpy(turn.of(whole.numpy(), steps.numpy(), self.slack))

    made = run_exported(
        read_program(path),
        inputs,
        flat=lambda module, values: Doubling(module).run(*values, enable_io_processing=False),
    )
    return {name: _narrow(array) for name, array in made.items()}


def _real(torch: Any, name: str, args: Any) -> Any:
    """Dequantize in double precision, by tensor or by channel."""
    stored, scale, zero = args[0].double(), args[1], args[2]
    if "per_channel" not in name:
        return (stored - int(zero)) * float(np.float32(float(scale)))
    shape = [-1 if d == int(args[3]) % stored.dim() else 1 for d in range(stored.dim())]
    zeros = 0.0 if zero is None else zero.double().reshape(shape)
    return (stored - zeros) * scale.float().double().reshape(shape)


_TORCH_LAYERS = ("aten.conv", "aten.linear", "aten.addmm", "aten.matmul", "aten.mm")
_TORCH_PASSING = ("relu", "hardtanh", "clamp", "view", "reshape", "flatten", "dropout", "max_pool", "permute")


def _torch_slack(node: Any) -> float:
    """Return half a step for the sum in front of a quantize node, in the node's steps; the largest among several channels."""
    step, layer = float(node.args[1]), node.args[0]
    while getattr(layer, "op", "") == "call_function" and any(p in str(layer.target) for p in _TORCH_PASSING):
        layer = layer.args[0]
    if not str(getattr(layer, "target", "")).startswith(_TORCH_LAYERS):
        return 0.0
    scales = [_torch_scale(operand) for operand in layer.all_input_nodes]
    known = [s for s in scales if s is not None]
    return 0.5 * known[0] * known[1] / step if len(known) == 2 else 0.0


def _torch_scale(node: Any) -> float | None:
    while "dequantize_per_" not in str(node.target):
        if node.op != "call_function" or not node.all_input_nodes:
            return None
        node = node.all_input_nodes[0]
    if not hasattr(node.args[1], "op"):
        return float(node.args[1])
    held = _held(node.args[1])
    return None if held is None else float(held.abs().max())


def _held(node: Any) -> Any:
    """Return the tensor of a `get_attr` node."""
    if node.op != "get_attr":
        return None
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value
