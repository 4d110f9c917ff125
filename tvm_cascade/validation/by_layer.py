"""Error of every quantized tensor of a QDQ `.onnx` file against the float file that it was made from, by ONNX Runtime.

A tensor is found in the float file by the name that QuantizeLinear reads, which quantizers keep; an output by its own
name. Errors add up along the network: a layer loses accuracy if its error is much larger than the errors of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, log10, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.onnx_reference import read_onnx
from tvm_cascade.checking.sensitivity import in_own_types
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.importers.onnx.halves import as_floats
from tvm_cascade.messages import last_line
from tvm_cascade.samples.sample_set import SampleSet
from tvm_cascade.search_monitor import monitor

_MOST = 100  # samples


@dataclass(frozen=True, slots=True)
class LayerError:
    """Error of one quantized tensor, over all samples."""

    tensor: str  # its name in both files
    operator: str  # kind of the operator that writes it
    rmse: float  # root of the mean square error, in real values
    max_abs_diff: float
    snr_db: float  # squares of the float values over squares of errors, in decibels; infinite without an error


def require_float_original(quantized: Path, original: Path) -> None:
    """Raise `UsageError` unless both are `.onnx` files, `LoadError` for an original that is not there."""
    if quantized.suffix != ".onnx" or original.suffix != ".onnx":
        raise UsageError("--by-layer compares a quantized .onnx file with the float .onnx file that it was made from")
    if not original.is_file():
        raise LoadError(original, "no such file")


def layer_errors(quantized: Path, original: Path, samples: SampleSet) -> tuple[LayerError, ...]:
    """Run both files on at most `_MOST` samples; return the errors, worst first (lowest ratio of signal to noise).

    Raises `UsageError` if no quantized tensor is in the float file, `LoadError` if ONNX Runtime refuses a file.
    """
    float_model, stored_model = (as_floats(read_onnx(path)) for path in (original, quantized))
    makers = {name: node.op_type for node in float_model.graph.node for name in node.output}
    stored_by = {node.output[0]: node.input[0] for node in stored_model.graph.node if node.op_type == "QuantizeLinear"}
    pairs: dict[str, str] = {}  # name in the float file: name of the dequantized tensor
    for node in stored_model.graph.node:
        if node.op_type == "DequantizeLinear":
            names = (stored_by.get(node.input[0], ""), node.output[0])  # an output keeps its name behind both
            pairs |= {name: node.output[0] for name in names if name in makers}
    if not pairs:
        raise UsageError(f"{quantized} has no quantized tensor that {original} names: was it made from this file?")
    run_float, run_stored = (
        _with_outputs(original, float_model, pairs),
        _with_outputs(quantized, stored_model, pairs.values()),
    )
    squares, signals = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0.0)
    largest, elements = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0)
    count = min(samples.count, _MOST)
    for k in range(count):
        (feed,) = samples.batch(k, k + 1)
        want, have = run_float(feed), run_stored(feed)
        for name, stored in pairs.items():
            gap = np.abs(have[stored].astype("float64") - want[name].astype("float64"))
            squares[name] += float(np.sum(gap**2))
            signals[name] += float(np.sum(want[name].astype("float64") ** 2))
            largest[name] = max(largest[name], float(gap.max(initial=0.0)))
            elements[name] += gap.size
        monitor().report("layers", k + 1, count, unit="")
    found = [
        LayerError(
            name,
            makers[name],
            sqrt(squares[name] / max(elements[name], 1)),
            largest[name],
            _decibels(signals[name], squares[name]),
        )
        for name in pairs
    ]
    return tuple(sorted(found, key=lambda one: one.snr_db))


def layer_table(errors: tuple[LayerError, ...], most: int) -> list[str]:
    """Format the worst tensors as lines."""
    wide = max(len("tensor"), *(len(one.tensor) for one in errors[:most]))
    kinds = max(len("operator"), *(len(one.operator) for one in errors[:most]))
    head = f"{'tensor':<{wide}}  {'operator':<{kinds}}  signal/noise        rmse     largest"
    rows = [
        f"{one.tensor:<{wide}}  {one.operator:<{kinds}}  {one.snr_db:>9.1f} dB  {one.rmse:>10.4g}  {one.max_abs_diff:>10.4g}"
        for one in errors[:most]
    ]
    more = [f"and {len(errors) - most} more (--json has all)"] if len(errors) > most else []
    return ["error by layer, against the float file, worst first:", head, *rows, *more]


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return inf
    return 10 * log10(signal / noise) if signal > 0 else -inf


def _with_outputs(path: Path, model: Any, names: Any) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return a function from inputs to the tensors `names`, computed by ONNX Runtime without optimizations."""
    import onnx
    import onnxruntime  # pyright: ignore[reportMissingImports]

    wanted = list(names)
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in wanted)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of types of its own
        raise LoadError(path, f"ONNX Runtime refuses it: {last_line(error)}") from error
    return lambda feed: {
        name: np.asarray(value)
        for name, value in zip(wanted, session.run(wanted, dict(in_own_types(model, feed))), strict=True)
    }
