"""Quantize a model's file: requirements are checked first, the file is written last and whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvm_cascade import extras
from tvm_cascade.checking.float_operators import float_operators
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.importers.onnx.file import external_files
from tvm_cascade.publish import whole_file
from tvm_cascade.quantization.accuracy import accuracies
from tvm_cascade.quantization.result import QuantizeResult
from tvm_cascade.request import QuantizeRequest
from tvm_cascade.samples.sample_set import Data, open_samples, require_data

_ENDS = ("quantize", "dequantize")  # of floats that go in and come out: `--stored-io` leaves them to the caller
_NEEDS = {
    ".onnx": ("onnxruntime", "onnx"),
    ".pt2": ("torchao", "torch"),
    ".tflite": ("ai-edge-quantizer", "ai-edge-litert"),
}


def quantize_model(
    model: Path,
    data: Data,
    asked: QuantizeRequest,
    shapes: Mapping[str, tuple[int, ...]],
    progress: Callable[[str], None],
) -> QuantizeResult:
    """Quantize a model; see `tvm_cascade.quantize`."""
    started = time.perf_counter()
    _require(model, asked, data)
    progress(f"{model.stem}: reading the graph")
    interface = io_spec(load(model, shapes))
    if not any(spec.dtype == "float32" for spec in interface.inputs):
        raise UsageError(f"{model} has no float input: is it quantized already? quantize takes the float model")
    samples = open_samples(data, interface.inputs, asked.range_)
    progress(f"{model.stem}: calibrating on {samples.count} samples")
    write = _writer(model.suffix)
    with whole_file(asked.output) as partial:
        made: dict[str, Any] = write(model, partial, samples, interface.inputs, asked)
        progress(f"{model.stem}: reading the quantized network")
        left = float_operators(load(partial))  # what cannot be planned is not written
        progress(f"{model.stem}: running both on the samples")
        made |= accuracies(model, partial, samples)
        after = partial.stat().st_size
    return QuantizeResult(
        model=str(model),
        output=str(asked.output),
        samples=samples.count,
        calibration=asked.calibration,
        bytes_before=_bytes(model),
        floats=tuple((one.name, one.operator, one.reason) for one in left if one.operator not in _ENDS),
        bytes_after=after,
        seconds=time.perf_counter() - started,
        **made,
    )


def _writer(suffix: str) -> Callable[..., dict[str, Any]]:
    """Return the function that quantizes files of a suffix; only its own library is imported."""
    if suffix == ".onnx":
        from tvm_cascade.quantization.quantize_onnx import quantize_onnx

        return quantize_onnx
    if suffix == ".tflite":
        from tvm_cascade.quantization.quantize_tflite import quantize_tflite

        return quantize_tflite
    from tvm_cascade.quantization.quantize_torch import quantize_torch

    return quantize_torch


def _bytes(model: Path) -> int:
    """Return the bytes in a model's file, and in the files beside it that hold weights."""
    own = model.stat().st_size
    if model.suffix != ".onnx":
        return own
    return own + sum(path.stat().st_size for path in external_files(model))


def _require(model: Path, asked: QuantizeRequest, data: Data) -> None:
    """Raise if a file, a package or the data is missing, before anything is read."""
    output = asked.output
    if asked.weight_bits not in (4, 8):
        raise UsageError(f"--weight-bits {asked.weight_bits}: give 4 or 8")
    if model.suffix not in _NEEDS:
        raise UsageError(f"quantize takes float .tflite, .onnx and .pt2 files, not {model.name}")
    for package in _NEEDS[model.suffix]:
        extras.need(package)
    if not model.is_file():
        raise LoadError(model, "is a folder; give the model's file" if model.is_dir() else "no such file")
    if output.suffix != model.suffix:
        raise UsageError(f"--output {output}: the quantized file is {model.suffix}, as the model")
    if output.resolve() == model.resolve():
        raise UsageError(f"--output {output} is the model itself; give another file")
    require_data(data)
