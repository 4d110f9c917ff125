"""Quantization of `.pt2` files by torchao's PT2E: prepared, calibrated, converted, exported again.

The quantizer is torchao's for XNNPACK: int8 activations with a zero point, int8 weights by channel without. Activation
ranges cover all values (`--calibration minmax`), or minimize the squared error by a histogram (`histogram`); torchao
has none by entropy or percentile.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.reference import exported_program
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.messages import last_line
from tvm_cascade.quantization.layer_counts import LayerCounts
from tvm_cascade.quantization.mixed_bits import LayerBits, Network, Weights, choose_bits, scale_of_four_bits
from tvm_cascade.request import QuantizeRequest
from tvm_cascade.samples.sample_set import SampleSet
from tvm_cascade.search_monitor import monitor
from tvm_cascade.tensor_spec import TensorSpec

_LAYERS = ("conv1d", "conv2d", "conv_transpose2d", "linear", "matmul", "mm", "addmm")
_GROUPS = 6  # the place of the argument `groups` of convolutions
_BY_CHANNEL = "quantized_decomposed.dequantize_per_channel"
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
            floats = copy.deepcopy(prepared) if asked.weight_bits == 4 else None
            stored, bits = steps.convert_pt2e(prepared), ()
            if floats is not None:
                weights = _float_weights(steps.convert_pt2e(floats, fold_quantize=False))
                stored, bits = _mix(source.module(), stored, weights, samples, specs, asked.max_drop)
            done = torch.export.export(stored, inputs)
            torch.export.save(done, str(output))
    except OSError:
        raise
    except Exception as error:  # of many types, by version
        raise LoadError(model, f"torchao cannot quantize it: {last_line(error)}") from error
    return _described(done) | {"weight_bits": bits}


def _float_weights(converted: Any) -> dict[str, np.ndarray]:
    """Return the constant float weights that a converted module quantizes, by the layer that reads them."""
    found = {}
    for layer, direct in _stored_weights(converted):
        weights = direct.args[0].args[0]  # of the operator that quantizes
        if weights.op == "get_attr":
            found[layer.name] = _attribute(converted, weights.target).detach().numpy()
    return found


def _stored_weights(converted: Any) -> Iterator[tuple[Any, Any]]:
    """Find the layers whose weights have a scale for each channel, with the node that dequantizes the weights."""
    for node in converted.graph.nodes:
        if node.op == "call_function" and _kind(node) in _LAYERS:
            for read in node.all_input_nodes[1:2]:
                if _BY_CHANNEL in str(read.target):
                    yield node, read


def _mix(
    source: Any,
    stored: Any,
    floats: Mapping[str, np.ndarray],
    samples: SampleSet,
    specs: Sequence[TensorSpec],
    max_drop: float,
) -> tuple[Any, tuple[LayerBits, ...]]:
    """Return the quantized module with weights of four bits where the data allows, and each layer's bits."""
    torch = torch_package()
    readers = Counter(direct.args[0].target for _, direct in _stored_weights(stored))

    def network(module: Any) -> Network:
        def run(feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            made = module(*(torch.from_numpy(np.array(feed[spec.name])) for spec in specs))
            return {"": (made if isinstance(made, torch.Tensor) else next(iter(made))).numpy()}

        return run

    def mixed(names: Collection[str]) -> Any:
        made = copy.deepcopy(stored)
        for layer, direct in _stored_weights(made):
            if layer.name in names:
                _narrow(made, direct, floats[layer.name])
        made.recompile()
        return made

    weights = []
    for layer, direct in _stored_weights(stored):
        if layer.name not in floats:
            continue
        grouped = "conv" in _kind(layer) and len(layer.args) > _GROUPS and layer.args[_GROUPS] > 1
        refused = "a grouped layer has few weights" if grouped else ""
        refused = refused or ("other layers read its weights" if readers[direct.args[0].target] > 1 else "")
        weights.append(Weights(layer.name, _kind(layer), floats[layer.name].size, refused))
    chosen = choose_bits(weights, network(source), lambda names: network(mixed(names)), samples, max_drop)
    return mixed([one.layer for one in chosen if one.bits == 4]), chosen


def _narrow(module: Any, direct: Any, weights: np.ndarray) -> None:
    """Replace a layer's stored weights by four-bit weights, for each channel with the scale of the least squared error."""
    torch = torch_package()
    stored, scale, zero, axis, _, _, dtype = direct.args
    channels = np.moveaxis(weights, axis, 0)
    scales = np.array([scale_of_four_bits(channel) for channel in channels], np.float32)
    steps = np.rint(channels / scales.reshape(-1, *[1] * (channels.ndim - 1)))
    values = np.moveaxis(np.clip(steps, -8, 7), 0, axis).astype(np.int8)
    for node, array in ((stored, values), (scale, scales)):
        old = _attribute(module, node.target)
        owner, _, name = node.target.rpartition(".")
        delattr(module.get_submodule(owner), name)  # a parameter, which takes no integers
        module.get_submodule(owner).register_buffer(name, torch.from_numpy(np.ascontiguousarray(array)).to(old.dtype))
    direct.args = (stored, scale, zero, axis, -8, 7, dtype)


def _attribute(module: Any, target: str) -> Any:
    owner, _, name = target.rpartition(".")
    return getattr(module.get_submodule(owner), name)


def _kind(node: Any) -> str:
    return str(node.target).split(".")[1] if "." in str(node.target) else ""


def _quantizer(observer: str) -> Any:
    shipped = import_module("torchao.testing.pt2e._xnnpack_quantizer")
    observers = import_module(f"{_PACKAGE}.observer")
    config = shipped.get_symmetric_quantization_config(is_per_channel=True)
    ranges = getattr(observers, observer).with_args(eps=2**-12)
    observed = replace(config.input_activation, observer_or_fake_quant_ctr=ranges)
    return shipped.XNNPACKQuantizer().set_global(replace(config, input_activation=observed, output_activation=observed))


def _described(exported: Any) -> dict[str, Any]:
    """Return the fields of `QuantizeResult` about a program's layers."""
    counts = LayerCounts()
    for node in exported.graph.nodes:
        kind = _kind(node) if node.op == "call_function" else ""
        if not kind or "quantize" in kind:
            continue
        before = [str(n.target) for n in node.all_input_nodes]
        stored = bool(before) and all(".dequantize_per_" in name for name in before[:2])
        counts.add(kind, stored, kind in _LAYERS, any("per_channel" in name for name in before))
    return counts.fields()
