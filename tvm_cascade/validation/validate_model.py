"""Compile a model into a separate folder for the time of a validation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm_cascade import pipeline
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.frontend import io_spec
from tvm_cascade.request import LoadRequest, ValidateRequest
from tvm_cascade.samples.sample_set import Data, open_samples, require_data
from tvm_cascade.validation.by_layer import OWN, layer_errors, require_float_original
from tvm_cascade.validation.programs import HOST, require_board, target_for
from tvm_cascade.validation.references import require_reference
from tvm_cascade.validation.report import ValidationReport
from tvm_cascade.validation.validate_folder import require_classes, validate_folder


def validate_model(
    model: Path,
    data: Data,
    asked: ValidateRequest,
    options: Mapping[str, Any],
    compile: Callable[..., object],
    progress: Callable[[str], None],
) -> ValidationReport:
    """Compile and validate a model; see `tvm_cascade.validate`.

    `compile` is the API's. Missing tools are reported before anything is planned.
    """
    if model.is_dir() or not model.exists():
        raise LoadError(model, "is a folder; give the model's file" if model.is_dir() else "no such file")
    require_reference(model)
    board = asked.board or HOST
    port = require_board(board, asked.port)
    require_data(data)
    if asked.by_layer is not None:
        require_float_original(model, asked.by_layer)
    options = {**options, "stateless": True}  # samples are apart: the reference begins every one of them anew
    loading = LoadRequest.of(options)
    if loading.hop is not None:
        raise UsageError("validate gives the network whole windows: leave --hop out")
    interface = io_spec(pipeline.load(model, loading).mod)
    if interface.states:
        raise UsageError(
            f"{model.name} keeps {interface.states[0].name} from one call to the next, and samples are apart: "
            "compile it, and compare a sequence by run --frames and --check"
        )
    samples = open_samples(data, interface.inputs, asked.range_)
    require_classes(samples, interface.outputs)
    target = asked.target or target_for(board)
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-") as place:
        folder = Path(place) / "project"
        built_for = {} if asked.board is None else {"board": board}
        compile(model, target=target, output=folder, progress=progress, **built_for, **options)
        report = validate_folder(folder, model, samples, board, asked.timeout, progress, port)
    if asked.by_layer is None:
        return report
    if str(asked.by_layer) == OWN:
        progress(f"{model.stem}: comparing layers with its own weights in floats")
        return replace(report, layers=layer_errors(model, asked.by_layer, samples))
    progress(f"{model.stem}: comparing layers with {asked.by_layer.name}")
    if model.suffix == ".tflite":  # its samples are stored as its inputs are
        return replace(report, layers=layer_errors(model, asked.by_layer, samples))
    floats = io_spec(pipeline.load(asked.by_layer, LoadRequest(input_shapes=loading.input_shapes)).mod)
    return replace(report, layers=layer_errors(model, asked.by_layer, open_samples(data, floats.inputs, asked.range_)))
