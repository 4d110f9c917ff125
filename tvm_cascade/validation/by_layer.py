"""Error of every quantized tensor against a float network: the file's float original, or the network's float twin.

In a QDQ `.onnx` file a tensor is found in the float file by the name that QuantizeLinear reads, which quantizers keep;
an output by its own name. `.tflite` files are paired by the tensors' names, `.pt2` files operator by operator. Without an
original, both are compared with `checking.own_floats`. Errors add up along the network: a layer loses accuracy if its
error is much larger than the errors of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, log10, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.onnx_reference import read_onnx
from tvm_cascade.checking.own_floats import Twins, exported_twins, original_twins, twins_of
from tvm_cascade.checking.sensitivity import in_own_types
from tvm_cascade.checking.unsigned_weights import with_unsigned_weights
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.importers.onnx.halves import as_floats
from tvm_cascade.messages import last_line, printable, short_name
from tvm_cascade.samples.sample_set import SampleSet
from tvm_cascade.search_monitor import monitor

OWN = "own"  # in place of a float file: the quantized network's own weights, in floats
_MOST = 100  # samples


@dataclass(frozen=True, slots=True)
class LayerError:
    """Error of a single quantized tensor, over all samples."""

    tensor: str  # its name in both files
    operator: str  # kind of the operator that writes it
    rmse: float  # root of the mean square error, in real values
    max_abs_diff: float
    snr_db: float  # squares of the float values over squares of errors, in decibels; infinite without an error


def require_float_original(quantized: Path, original: Path) -> None:
    """Raise `UsageError` unless the float side is `OWN`, or a file of the same format; `LoadError` for a missing file."""
    if str(original) == OWN:
        if quantized.suffix == ".onnx":
            raise UsageError("--by-layer FLOAT.onnx: give the float file that the quantized one was made from")
        return
    if original.suffix != quantized.suffix:
        raise UsageError(
            f"--by-layer compares a quantized {quantized.suffix} file with the float {quantized.suffix}, "
            f"not with {printable(original.name)}"
        )
    if not original.is_file():
        raise LoadError(original, "no such file")


def layer_errors(quantized: Path, original: Path, samples: SampleSet) -> tuple[LayerError, ...]:
    """Run both networks on at most `_MOST` samples; return the errors, worst first (lowest ratio of signal to noise).

    Raises `UsageError` if no quantized tensor is in the float network, `LoadError` if ONNX Runtime refuses a file.
    """
    if str(original) == OWN:
        twins = twins_of(quantized)
    else:
        pairings = {".onnx": _onnx_twins, ".pt2": exported_twins, ".tflite": original_twins}
        twins = pairings[quantized.suffix](quantized, original)
    names = tuple(twins.makers)
    squares, signals = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    largest, elements = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    count = min(samples.count, _MOST)
    for k in range(count):
        (feed,) = samples.batch(k, k + 1)
        want, have = twins.run_float(feed), twins.run_stored(feed)
        for name in names:
            gap = np.abs(have[name].astype("float64") - want[name].astype("float64"))
            squares[name] += float(np.sum(gap**2))
            signals[name] += float(np.sum(want[name].astype("float64") ** 2))
            largest[name] = max(largest[name], float(gap.max(initial=0.0)))
            elements[name] += gap.size
        monitor().report("layers", k + 1, count, unit="")
    found = [
        LayerError(
            name,
            twins.makers[name],
            sqrt(squares[name] / max(elements[name], 1)),
            largest[name],
            _decibels(signals[name], squares[name]),
        )
        for name in names
    ]
    return tuple(sorted(found, key=lambda one: one.snr_db))


def _onnx_twins(quantized: Path, original: Path) -> Twins:
    """Pair a QDQ file's quantized tensors with the float file's, by name."""
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
    run_float = _with_outputs(original, float_model, pairs)
    run_stored = _with_outputs(quantized, stored_model, pairs.values())

    def renamed(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        have = run_stored(feed)
        return {name: have[stored] for name, stored in pairs.items()}

    return Twins(run_float, renamed, {name: makers[name] for name in pairs})


def layer_table(errors: tuple[LayerError, ...], most: int) -> list[str]:
    """Format the worst tensors as lines."""
    names = [short_name(one.tensor) for one in errors[:most]]
    wide = max(len("tensor"), *map(len, names))
    kinds = max(len("operator"), *(len(one.operator) for one in errors[:most]))
    head = f"{'tensor':<{wide}}  {'operator':<{kinds}}  signal/noise        rmse     largest"
    rows = [
        f"{name:<{wide}}  {one.operator:<{kinds}}  {one.snr_db:>9.1f} dB  {one.rmse:>10.4g}  {one.max_abs_diff:>10.4g}"
        for name, one in zip(names, errors, strict=False)
    ]
    more = [f"and {len(errors) - most} more (--json has all)"] if len(errors) > most else []
    return ["error by layer, against the float network, worst first:", head, *rows, *more]


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
        file = with_unsigned_weights(model).SerializeToString()
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of types of its own
        raise LoadError(path, f"ONNX Runtime refuses it: {last_line(error)}") from error
    return lambda feed: {
        name: np.asarray(value)
        for name, value in zip(wanted, session.run(wanted, dict(in_own_types(model, feed))), strict=True)
    }
