"""The reference of a model as a function of many inferences, opened once.

LiteRT's reference kernels for `.tflite`, ONNX Runtime without optimizations for `.onnx` (ONNX's evaluator where that
refuses the model), torch for `.pt2`: the programs of `run --check`, but where that asks ONNX's evaluator first, which takes
minutes for what ONNX Runtime does in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_cascade import extras
from tvm_cascade.checking.onnx_reference import read_onnx, runtime_function
from tvm_cascade.checking.reference import LiteRtReference, Scales, exported_program, float_inputs, real
from tvm_cascade.checking.sensitivity import in_own_types, onnx_evaluator, run_exported
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.messages import last_line
from tvm_cascade.tensor_spec import unique_names

Feed = Mapping[str, np.ndarray]
_NEEDS = {".tflite": ("ai-edge-litert",), ".onnx": ("onnx", "onnxruntime"), ".pt2": ("torch",)}


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference that computes the outputs of one inference at a call, in the order of the model."""

    run: Callable[[Feed], dict[str, np.ndarray]]
    name: str  # what computes, and what is special about it


def require_reference(path: Path) -> None:
    """Raise `MissingToolError` where the reference of a file is not installed, `UsageError` for an unknown suffix."""
    if path.suffix not in _NEEDS:
        raise UsageError(f"validate takes .tflite, .onnx and .pt2 files, not {path.name}")
    for package in _NEEDS[path.suffix]:
        extras.need(package)


def open_reference(path: Path, scales: Scales, first: Feed) -> Reference:
    """The reference of a model's file.

    Inputs are those of the compiled network; where the model has floats, they are dequantized by their `scales`. `first`,
    the first of them, gives the shapes that the file leaves open.

    Raises `LoadError` where the reference refuses the model.
    """
    if path.suffix == ".tflite":
        litert = LiteRtReference(path, first, scales)
        return Reference(litert.anew, litert.note or "LiteRT's reference kernels")
    run, name = _torch(path) if path.suffix == ".pt2" else _onnx(path, first, scales)
    floats = float_inputs(path)
    return Reference(lambda feed: run(_as_floats(feed, floats, scales)), name)


def _as_floats(feed: Feed, floats: set[str], scales: Scales) -> dict[str, np.ndarray]:
    return {n: real(a, *scales[n]) if n in floats and n in scales else a for n, a in feed.items()}


def _torch(path: Path) -> tuple[Callable[[Feed], dict[str, np.ndarray]], str]:
    exported = exported_program(path)
    return lambda feed: run_exported(exported, feed), "torch"


def _onnx(path: Path, first: Feed, scales: Scales) -> tuple[Callable[[Feed], dict[str, np.ndarray]], str]:
    """ONNX Runtime, or ONNX's evaluator where it refuses the model or its first inputs."""
    try:
        run = runtime_function(path)
        run(_as_floats(first, float_inputs(path), scales))
    except Exception as error:  # of types of its own
        refusal = last_line(error)
    else:
        return run, "ONNX Runtime"
    try:
        session, model = onnx_evaluator(path), read_onnx(path)
        names = unique_names(map(str, session.output_names))
    except Exception as error:  # whatever an operator breaks at first
        raise LoadError(
            path, f"ONNX Runtime refuses it: {refusal}; so does ONNX's evaluator: {last_line(error)}"
        ) from error

    def evaluate(feed: Feed) -> dict[str, np.ndarray]:
        values = session.run(None, dict(in_own_types(model, feed)))
        return {n: np.asarray(v) for n, v in zip(names, values, strict=True)}

    return evaluate, f"ONNX's evaluator, since ONNX Runtime refuses: {refusal}"
