"""Quantization of `.pt2` files by torchao's PT2E: prepared, calibrated, converted, exported again.

The quantizer is torchao's for XNNPACK: int8 activations with a zero point, int8 weights by channel without. Activation
ranges cover all values (`--calibration minmax`), or minimize the squared error by a histogram (`histogram`); torchao
has none by entropy or percentile.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.reference import exported_program
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.messages import last_line
from tvm_cascade.request import QuantizeRequest
from tvm_cascade.samples.sample_set import SampleSet
from tvm_cascade.search_monitor import monitor
from tvm_cascade.tensor_spec import TensorSpec

_LAYERS = ("conv1d", "conv2d", "conv_transpose2d", "linear", "matmul", "mm", "addmm")
_OBSERVERS = {"minmax": "MinMaxObserver", "histogram": "HistogramObserver"}  # by `--calibration`
_PACKAGE = "torchao.quantization.pt2e"


def quantize_torch(
    model: Path, output: Path, samples: SampleSet, specs: Sequence[TensorSpec], asked: QuantizeRequest
) -> dict[str, Any]:
    """Write the quantized `model` to `output`; return the fields of `QuantizeResult` about layers.

    Raises `UsageError` for options not supported by torchao, `LoadError` if torchao refuses the model.
    """
    if asked.calibration not in _OBSERVERS or asked.float_first or asked.float_last:
        raise UsageError("--calibration entropy or percentile, --float-first and --float-last are of .onnx files only")
    if asked.weight_bits != 8:
        raise UsageError("--weight-bits 4 is of .onnx files only: export the network by torch.onnx.export")
    torch, source = torch_package(), exported_program(model)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            steps = import_module(f"{_PACKAGE}.quantize_pt2e")
            prepared = steps.prepare_pt2e(source.module(), _quantizer(_OBSERVERS[asked.calibration]))
            for k in range(samples.count):
                monitor().report("calibration", k, samples.count, unit="")
                (feed,) = samples.batch(k, k + 1)
                prepared(*(torch.from_numpy(np.array(feed[spec.name])) for spec in specs))
            inputs = tuple(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)
            done = torch.export.export(steps.convert_pt2e(prepared), inputs)
            torch.export.save(done, str(output))
    except OSError:
        raise
    except Exception as error:  # of many types, by version
        raise LoadError(model, f"torchao cannot quantize it: {last_line(error)}") from error
    return _described(done)


def _quantizer(observer: str) -> Any:
    shipped = import_module("torchao.testing.pt2e._xnnpack_quantizer")
    observers = import_module(f"{_PACKAGE}.observer")
    config = shipped.get_symmetric_quantization_config(is_per_channel=True)
    ranges = getattr(observers, observer).with_args(eps=2**-12)
    observed = replace(config.input_activation, observer_or_fake_quant_ctr=ranges)
    return shipped.XNNPACKQuantizer().set_global(replace(config, input_activation=observed, output_activation=observed))


def _described(exported: Any) -> dict[str, Any]:
    """Return the fields of `QuantizeResult` about a program's layers."""
    layers = quantized = by_channel = 0
    floats: Counter[str] = Counter()
    for node in exported.graph.nodes:
        kind = str(node.target).split(".")[1] if node.op == "call_function" and "." in str(node.target) else ""
        if not kind or "quantize" in kind:
            continue
        before = [str(n.target) for n in node.all_input_nodes]
        stored = bool(before) and all(".dequantize_per_" in name for name in before[:2])
        floats[kind] += not stored
        if kind in _LAYERS:
            layers += 1
            quantized += stored
            by_channel += stored and any("per_channel" in name for name in before)
    left = {kind: count for kind, count in sorted(floats.items()) if count}
    return {"layers": layers, "quantized_layers": quantized, "per_channel_layers": by_channel, "left_float": left}
