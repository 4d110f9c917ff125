"""Run a folder of `stages --emit` by its own example.py, time it, and compare its outputs with the model's reference."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.onnx_reference import runtime_function
from tvm_cascade.checking.reference import open_reference
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.runs.arrays import load_arrays, save_arrays

_FORMAT = "tvm-cascade-network-"
_ALLOWED = 1e-2  # of the largest value of an output: kernels may sum in another order, and in fp16


@dataclass(frozen=True, slots=True)
class Staged:
    """Times and outputs of a program of stages."""

    where: str  # TVM's target
    outputs: Mapping[str, np.ndarray]
    milliseconds: tuple[float, ...]
    match: bool | None
    verdict: str


def is_staged(folder: Path) -> bool:
    """Return True if a folder was written by `stages --emit` or `optimize --emit`."""
    try:
        data = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and str(data.get("format", "")).startswith(_FORMAT)


def run_staged(
    folder: Path,
    given: str | Path | Mapping[str, np.ndarray] | None,
    check: Path | None,
    outputs: Path | None,
    repeat: int,
    progress: Callable[[str], None],
) -> Staged:
    """Run the program on inputs by name, random ones by default, and time `repeat` runs.

    Raises `LoadError` for a damaged folder, and `UsageError` for inputs that the program refuses.
    """
    example = _example(folder)
    threads = json.loads((folder / "metadata.json").read_text(encoding="utf-8")).get("threads") or 1
    try:
        network = example.load(threads)
        arrays = example.random_inputs(network.metadata) if given is None else _arrays(given)
        results = network.run(arrays)
        progress(f"{network.metadata['name']}: timing {repeat} runs")
        times = tuple(example.milliseconds(network, arrays, repeat))
        match, verdict = (None, "") if check is None else _checked(example, check, arrays, results)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None
    if outputs is not None:
        save_arrays(outputs, results)
    return Staged(network.metadata["target"], results, times, match, verdict)


def _arrays(given: str | Path | Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    return given if isinstance(given, Mapping) else load_arrays(given)


def _example(folder: Path) -> Any:
    """Import the folder's example.py."""
    path = folder / "example.py"
    spec = importlib.util.spec_from_file_location("tvm_cascade_emitted_example", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise LoadError(path, "no such file: emit the folder again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "milliseconds"):
        raise LoadError(path, "is of an older version: emit the folder again")
    return module


def _checked(
    example: Any, check: Path, arrays: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]
) -> tuple[bool, str]:
    """Compare with the model's reference: ONNX Runtime for `.onnx`, LiteRT or torch otherwise."""
    if not check.is_file():
        raise LoadError(check, "no such file to check against")
    wanted = runtime_function(check)(arrays) if check.suffix == ".onnx" else open_reference(check, arrays).run(arrays)
    gap = example.difference(results, list(wanted.values()))
    match = bool(gap <= _ALLOWED)
    return match, f"{'equal' if match else 'different'}: at most {gap:.2g} of the largest value of an output"
