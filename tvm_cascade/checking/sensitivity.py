"""Rounding sensitivity of a quantized network: the tolerance for comparing its outputs with those of a float evaluator.

ONNX's evaluator and torch compute `dequantize -> operator -> quantize` in floats and round half to even; kernels rescale
sums by fixed-point multipliers, and round once, half to even. Where a value is within the rounding of floats of a half, or
an operator has an integer arithmetic of its own (softmax), the two may store neighbouring integers. How much that
changes the outputs depends on the network: a shallow one loses
it, a deep one with random weights amplifies it to tens of steps. So it is measured on the float evaluator: `float_reach`
moves a hundredth of all stored elements by one step ("turned roundings") and returns how far the outputs move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.importers.torch.archive import open_program
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.tensor_spec import unique_names

RATE = 0.01  # share of stored elements that are moved; more than fixed-point kernels round differently
_DRAWS = 2
_INT64 = 7  # onnx.TensorProto.INT64
_STANDARD = ("QLinearConv", "QLinearMatMul")  # operators of ONNX itself, which the evaluator implements


def float_reach(path: Path, inputs: Mapping[str, np.ndarray], plain: Mapping[str, np.ndarray]) -> float | None:
    """The largest change of any output when roundings are turned at random; the maximum over `_DRAWS` draws.

    `path` is a `.onnx` or `.pt2` file, `plain` its outputs without turned roundings. None where it quantizes nothing.
    """
    run = _onnx if path.suffix == ".onnx" else _torch
    reach: float | None = None
    for seed in range(_DRAWS):
        rng = np.random.default_rng(seed)
        before = rng.bit_generator.state
        moved = run(path, inputs, rng)
        if rng.bit_generator.state == before:
            return None
        reach = max(reach or 0.0, *(_gap(moved[name], plain[name]) for name in plain))
    return reach


def _gap(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0))


def onnx_evaluator(path: Path, rng: np.random.Generator | None = None) -> Any:
    """ONNX's evaluator for a file; QLinear operators that it lacks are expanded to dequantize, operator, quantize.

    With `rng` it turns roundings at random (see `turned`), and all QLinear operators are expanded.
    """
    from onnx.reference import ReferenceEvaluator

    from tvm_cascade.importers.onnx.halves import as_floats
    from tvm_cascade.importers.onnx.qoperators import spell_out

    model = spell_out(as_floats(read_model(path)), keep=_STANDARD if rng is None else ())
    old = any(o.domain in ("", "ai.onnx") and o.version < 19 for o in model.opset_import)
    operators = [_dequantize_linear()] if old else []
    return ReferenceEvaluator(model, new_ops=operators if rng is None else [*operators, _turned_quantize_linear(rng)])


def in_own_types(model: Any, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Inputs with indices of 64 bits where the ONNX model has them: the compiled network takes 32."""
    wide = {i.name for i in model.graph.input if i.type.tensor_type.elem_type == _INT64}
    return {name: a.astype("int64") if name in wide and a.dtype == np.int32 else a for name, a in inputs.items()}


def _onnx(path: Path, inputs: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    session = onnx_evaluator(path, rng)
    values = session.run(None, dict(in_own_types(read_model(path), inputs)))
    return {n: np.asarray(v) for n, v in zip(unique_names(map(str, session.output_names)), values, strict=True)}


def _dequantize_linear() -> Any:
    """DequantizeLinear for opsets before 19, which the evaluator lacks: that of opset 19 without its new attributes."""
    from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_19

    class DequantizeLinear(DequantizeLinear_19):
        op_domain = ""

        def _run(self, *args: Any, axis: int = 1, **_later: object) -> Any:
            return super()._run(*args, axis=axis)

    return DequantizeLinear


def _turned_quantize_linear(rng: np.random.Generator) -> Any:
    from onnx.reference.ops.op_quantize_linear import QuantizeLinear_19

    class QuantizeLinear(QuantizeLinear_19):
        op_domain = ""

        def _run(self, *args: Any, axis: int = 1, saturate: int = 1, **_later: object) -> Any:
            (stored,) = super()._run(*args, axis=axis, saturate=bool(saturate))
            return (turned(stored, rng),)

    return QuantizeLinear


def read_program(path: Path) -> Any:
    """The program of a `.pt2` file, to look at or to run: read once as long as the file stays the same, its buffers as in the
    file, whatever a run has written to them."""
    seen = path.stat()
    program, buffers = _read_program(str(path), seen.st_mtime_ns, seen.st_size)
    for name, value in program.named_buffers():
        value.copy_(buffers[name])
    return program


@lru_cache(maxsize=1)
def _read_program(path: str, _changed: int, _size: int) -> tuple[Any, dict[str, Any]]:
    program = open_program(Path(path).read_bytes())
    return program, {name: value.clone() for name, value in program.named_buffers()}


def _torch(path: Path, inputs: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    torch = torch_package()

    class Turning(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            made = super().call_function(target, args, kwargs)
            if "dequantize" in str(target) or ".quantize_per_tensor" not in str(target):
                return made
            return torch.from_numpy(turned(made.numpy(), rng))

    return run_exported(
        read_program(path), inputs, flat=lambda module, values: Turning(module).run(*values, enable_io_processing=False)
    )


def run_exported(
    exported: Any,
    inputs: Mapping[str, np.ndarray],
    module: Any = None,
    flat: Callable[[Any, list[Any]], Any] | None = None,
) -> dict[str, np.ndarray]:
    """Return the outputs by name of a torch.export program, without those that are None.

    `module` is its own, made anew if None; `flat` executes it instead, given its inputs without the tuples, lists, dicts and
    keywords that they are in.
    """
    torch, signature = torch_package(), exported.graph_signature
    tree, made = torch.utils._pytree, torch.export.graph_signature
    module = exported.module() if module is None else module
    given = [spec.arg for spec in signature.input_specs if spec.kind is made.InputKind.USER_INPUT]
    values = [
        arg.value if isinstance(arg, made.ConstantArgument) else torch.from_numpy(np.array(inputs[str(arg.name)]))
        for arg in given
    ]
    with torch.no_grad():
        if flat is not None:
            outputs = flat(module, values)
        else:
            args, kwargs = tree.tree_unflatten(values, exported.call_spec.in_spec)
            outputs = module(*args, **kwargs)
    leaves = zip(signature.user_outputs, tree.tree_leaves(outputs), strict=True)
    kept = [(str(name), value) for name, value in leaves if value is not None]
    names = unique_names(name for name, _ in kept)
    return {n: value.detach().numpy() for n, (_, value) in zip(names, kept, strict=True)}


def turned(stored: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A copy of stored integers with `RATE` of them moved one step up or down, within the range of their type."""
    info = np.iinfo(stored.dtype)
    moves = (rng.random(stored.shape) < RATE) * rng.choice((-1, 1), stored.shape)
    return np.clip(stored.astype("int64") + moves, info.min, info.max).astype(stored.dtype)
