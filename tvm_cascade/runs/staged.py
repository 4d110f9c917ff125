"""Run a folder of `stages --emit` by its own example.py, time it, and compare its outputs with the model's reference."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.onnx_reference import runtime_function
from tvm_cascade.checking.reference import open_reference
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.plain_files import readable
from tvm_cascade.runs.arrays import load_arrays, save_arrays
from tvm_cascade.runs.layer_times import LayerTime

_FORMAT = "tvm-cascade-network-"
_RUNS = 10  # that kernels are timed in
_KERNELS = ("kernel_", "stage_")  # begin the names of kernels in the library
_IDLE = "vm.builtin.null_value"
_ALLOWED = 1e-2  # of the largest value of an output: kernels may sum in another order, and in fp16


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged program's times and outputs."""

    where: str  # TVM's target
    outputs: Mapping[str, np.ndarray]
    milliseconds: tuple[float, ...]
    match: bool | None
    verdict: str
    layers: tuple[LayerTime, ...] = ()  # of every kernel call, in order


def is_staged(folder: Path) -> bool:
    """Return True if a folder was written by `stages --emit` or `optimize --emit`."""
    try:
        data = json.loads(readable(folder / "metadata.json").read_text(encoding="utf-8"))
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
    by_layer: bool = False,
) -> Staged:
    """Run the program on inputs by name, random ones by default, and time `repeat` runs, with `by_layer` each kernel too.

    Raises `LoadError` for a damaged folder, and `UsageError` for inputs that the program refuses.
    """
    example = _example(folder)
    threads = json.loads(readable(folder / "metadata.json").read_text(encoding="utf-8")).get("threads") or 1
    try:
        network = example.load(threads)
        arrays = example.random_inputs(network.metadata) if given is None else _arrays(given)
        results = network.run(arrays)
        progress(f"{network.metadata['name']}: timing {repeat} runs")
        times = tuple(example.milliseconds(network, arrays, repeat))
        layers = _kernel_times(folder, example, network, arrays, min(repeat, _RUNS)) if by_layer else ()
        match, verdict = (None, "") if check is None else _checked(example, check, network, arrays, results)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None
    if outputs is not None:
        save_arrays(outputs, results)
    return Staged(network.metadata["target"], results, times, match, verdict, layers)


def _kernel_times(
    folder: Path, example: Any, network: Any, arrays: Mapping[str, np.ndarray], repeat: int
) -> tuple[LayerTime, ...]:
    """Time every kernel call of TVM's virtual machine; return medians of `repeat` runs, in order.

    The machine calls a function before and behind every call. Its time shows in calls of null_value, which do nothing:
    their median is taken off. Raises `UsageError` for programs of GPUs and folders of older versions.
    """
    described = network.metadata.get("calls")
    if network.metadata["target"] == "cuda":
        raise UsageError(
            "--by-layer is for processors: a GPU's program is a single graph: use `nsys profile python example.py`"
        )
    if not described:
        raise UsageError(f"{folder} is from an older version: emit it again")
    kernels: list[float] = []
    idle: list[float] = []
    begun = 0.0

    def watch(_function: Any, symbol: str, before: bool, _result: Any, *_arguments: Any) -> int:
        nonlocal begun
        if before:
            begun = time.perf_counter()
        elif symbol.startswith(_KERNELS):
            kernels.append(time.perf_counter() - begun)
        elif symbol == _IDLE:
            idle.append(time.perf_counter() - begun)
        return 0

    with network.session() as session:
        session._machine["set_instrument"](example._runtime().convert(watch))
    for _ in range(1 + repeat):
        network.run(arrays)
    if len(kernels) != len(described) * (1 + repeat):
        raise UsageError(f"{folder} was changed since it was emitted: emit it again")
    taken = np.median(np.reshape(kernels, (1 + repeat, -1))[1:], axis=0) - (np.median(idle) if idle else 0.0)
    values = [1e3 * max(0.0, float(value)) for value in taken]
    whole = sum(values) or 1.0
    return tuple(
        LayerTime(call["name"], call["kind"], value, value / whole)
        for call, value in zip(described, values, strict=True)
    )


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
    example: Any, check: Path, network: Any, arrays: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]
) -> tuple[bool, str]:
    """Compare the first run with the model's reference: ONNX Runtime for `.onnx`, LiteRT or torch otherwise."""
    if not check.is_file():
        raise LoadError(check, "no such file to check against")
    arrays, returned = dict(arrays), list[str]()
    for state in network.metadata.get("states") or ():
        if state["returned"] is not None:  # else the model's file keeps the state itself
            arrays[state["name"]] = example._first(state)
            returned.append(state["returned"])
    wanted = runtime_function(check)(arrays) if check.suffix == ".onnx" else open_reference(check, arrays).run(arrays)
    gap = example.difference(results, [array for name, array in wanted.items() if name not in returned])
    match = bool(gap <= _ALLOWED)
    if gap == 0:
        return True, "equal in every element"
    return match, f"{'equal' if match else 'different'}: at most {gap:.2g} of the largest value of an output"
