"""How far a quantized network carries one rounding: what a comparison with an evaluator that computes in floats can ask.

ONNX's evaluator and torch compute `dequantize -> operator -> quantize` in floats and round half to even; kernels rescale
sums by fixed-point multipliers and round them twice. Where a value lies next to a half the two store neighbouring steps,
for a few elements in a thousand of every operator. What becomes of that is the network's own: a shallow one loses it, a
deep one with random weights amplifies it to tens of steps. So the float evaluator is asked itself: `float_reach` moves a
hundredth of all stored elements by one step and measures how far the outputs move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.importers.torch_package import torch_package

RATE = 0.01  # of the stored elements, more than fixed-point kernels store differently
_DRAWS = 2
_STANDARD = ("QLinearConv", "QLinearMatMul")  # in ONNX itself, with kernels of the evaluator's own


def float_reach(path: Path, inputs: Mapping[str, np.ndarray], plain: Mapping[str, np.ndarray]) -> float | None:
    """The largest difference of any output from `plain`, the float evaluator's, over some draws of turned roundings.

    `path` is a `.onnx` or `.pt2` file. None where it quantizes nothing.
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
    """ONNX's evaluator on a file, QLinear operators that it does not know spelled out as dequantize, operator, quantize.

    With `rng` it turns roundings, and all of them are spelled out.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    from tvm_cascade.importers.onnx_qoperators import spell_out

    model = spell_out(onnx.load(str(path)), keep=_STANDARD if rng is None else ())
    old = any(o.domain in ("", "ai.onnx") and o.version < 19 for o in model.opset_import)
    operators = [_dequantize_linear()] if old else []
    return ReferenceEvaluator(model, new_ops=operators if rng is None else [*operators, _turned_quantize_linear(rng)])


def _onnx(path: Path, inputs: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    session = onnx_evaluator(path, rng)
    values = session.run(None, dict(inputs))
    return {str(name): np.asarray(value) for name, value in zip(session.output_names, values, strict=True)}


def _dequantize_linear() -> Any:
    """For files older than opset 19, for which the evaluator has none: it does the same there, without new attributes."""
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


def _torch(path: Path, inputs: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    torch = torch_package()

    class Turning(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            made = super().call_function(target, args, kwargs)
            if "dequantize" in str(target) or ".quantize_per_tensor" not in str(target):
                return made
            return torch.from_numpy(turned(made.numpy(), rng))

    return run_exported(torch.export.load(str(path)), inputs, lambda module: Turning(module).run)


def run_exported(
    exported: Any, inputs: Mapping[str, np.ndarray], runner: Callable[[Any], Callable[..., Any]] = lambda module: module
) -> dict[str, np.ndarray]:
    """Outputs by name of a program of torch.export, whose module `runner` makes something to call of."""
    torch, signature = torch_package(), exported.graph_signature
    with torch.no_grad():
        made = runner(exported.module())(*(torch.from_numpy(np.array(inputs[str(n)])) for n in signature.user_inputs))
    values = list(made) if isinstance(made, (list, tuple)) else [made]
    return {str(n): v.detach().numpy() for n, v in zip(signature.user_outputs, values, strict=True)}


def turned(stored: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A copy with `RATE` of its elements one step up or down, within the range of its type."""
    info = np.iinfo(stored.dtype)
    moves = (rng.random(stored.shape) < RATE) * rng.choice((-1, 1), stored.shape)
    return np.clip(stored.astype("int64") + moves, info.min, info.max).astype(stored.dtype)
