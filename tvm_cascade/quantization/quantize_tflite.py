"""Quantization of `.tflite` files by ai-edge-quantizer: int8 activations with a zero point, int8 weights by channel without.

Activation ranges cover all values (`--calibration minmax`); the library's own ranges are moving averages. Inputs and
outputs stay float, as with the other quantizers.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tflite

from tvm_cascade.checking.litert_defects import object_tree, packed
from tvm_cascade.checking.reference import open_reference
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.importers.tflite.model import Model, kind_of, open_model
from tvm_cascade.messages import last_line
from tvm_cascade.quantization.layer_counts import LayerCounts, silent
from tvm_cascade.quantization.mixed_bits import LayerBits, Network, Weights, choose_bits
from tvm_cascade.request import QuantizeRequest
from tvm_cascade.samples.sample_set import SampleSet
from tvm_cascade.search_monitor import monitor
from tvm_cascade.tensor_spec import TensorSpec

_PACKAGE = "ai_edge_quantizer"
_SIGNATURE = "serving_default"
_WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
_FOUR_BITS = ("CONV_2D", "FULLY_CONNECTED")  # with weights of four bits and stored activations
_DIRECT = ("DEQUANTIZE", "QUANTIZE")
_CALLED = {"TRANSPOSE_CONV": "CONV_2D_TRANSPOSE"}  # the library's names of operators, where they differ


@dataclass(frozen=True, slots=True)
class _Layer:
    """An operator with constant weights."""

    name: str  # of its output
    operator: str
    weights: int  # elements
    shared: bool  # other operators read its weights


def quantize_tflite(
    model: Path, output: Path, samples: SampleSet, specs: Sequence[TensorSpec], asked: QuantizeRequest
) -> dict[str, Any]:
    """Write the quantized `model` to `output`; return the fields of `QuantizeResult` about layers.

    Raises `UsageError` for options not supported by the library, `LoadError` if it refuses the model.
    """
    if asked.calibration != "minmax":
        raise UsageError(f"--calibration {asked.calibration} is not of .tflite files: leave it out, for minmax")
    given = open_model(model.read_bytes())
    if any(
        kind_of(given, given.Subgraphs(0).Operators(j)) in _DIRECT for j in range(given.Subgraphs(0).OperatorsLength())
    ):
        raise UsageError(f"{model} is quantized already; give the float model that it was made from")
    layers = _layers(given)
    kept = [*layers[: asked.float_first], *layers[len(layers) - asked.float_last :]]
    bits: tuple[LayerBits, ...] = ()
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-") as folder:
        ready = Path(folder) / "ready.tflite"
        ready.write_bytes(_signed(model.read_bytes()))
        try:
            with silent():
                ranges = _calibrated(ready, samples, specs)
                write = _writer(ready, ranges, [one.name for one in kept])
                output.write_bytes(write(()))
                if asked.weight_bits == 4:
                    bits = _mix(model, output, layers, kept, write, samples, asked)
        except (LoadError, UsageError, OSError):
            raise
        except Exception as error:  # of many types, by version
            raise LoadError(model, f"ai-edge-quantizer cannot quantize it: {last_line(error)}") from error
    return _described(open_model(output.read_bytes())) | {"weight_bits": bits}


def _layers(model: Model) -> list[_Layer]:
    """Find the operators with weights, in the order of the file."""
    graph = model.Subgraphs(0)
    operators = [graph.Operators(j) for j in range(graph.OperatorsLength())]
    readers = Counter(int(i) for op in operators for i in op.InputsAsNumpy())
    found = []
    for op in operators:
        operator = kind_of(model, op)
        if operator not in _WEIGHTED:
            continue
        weights = int(op.InputsAsNumpy()[1])
        tensor = graph.Tensors(weights)
        if model.Buffers(tensor.Buffer()).DataLength() > 0:
            count = prod(int(extent) for extent in tensor.ShapeAsNumpy())
            found.append(_Layer(_output(graph, op), operator, count, readers[weights] > 1))
    return found


def _output(graph: Any, op: Any) -> str:
    return graph.Tensors(int(op.OutputsAsNumpy()[0])).Name().decode("utf-8", "replace")


def _signed(data: bytes) -> bytes:
    """Return a model with a signature, by which the library runs it: the model's own, or one that names its tensors."""
    tree = object_tree(data)
    if tree.signatureDefs:
        return data
    schema, graph = import_module("ai_edge_litert.schema_py_generated"), tree.subgraphs[0]

    def named(tensor: int) -> Any:
        entry = schema.TensorMapT()
        entry.name, entry.tensorIndex = f"tensor_{int(tensor)}", int(tensor)
        return entry

    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = _SIGNATURE, 0
    signature.inputs, signature.outputs = ([named(i) for i in tensors] for tensors in (graph.inputs, graph.outputs))
    tree.signatureDefs = [signature]
    return packed(tree)


def _calibrated(ready: Path, samples: SampleSet, specs: Sequence[TensorSpec]) -> Any:
    """Run the samples and return the least and the greatest value of every tensor."""
    calibrators, ranges = import_module(f"{_PACKAGE}.calibrator"), import_module(f"{_PACKAGE}.utils.qsv_utils")
    manager = import_module(f"{_PACKAGE}.recipe_manager").RecipeManager()
    manager.load_quantization_recipe(import_module(f"{_PACKAGE}.recipe").static_wi8_ai8())
    calibrator = calibrators.Calibrator(str(ready), num_threads=1, qsv_update_func=ranges.min_max_update)
    key, arguments = _arguments(ready, specs)
    for k in range(samples.count):
        monitor().report("calibration", k, samples.count, unit="")
        (feed,) = samples.batch(k, k + 1)
        calibrator.calibrate({key: [{arguments[name]: array for name, array in feed.items()}]}, manager)
    return calibrator.get_model_qsvs()


def _arguments(ready: Path, specs: Sequence[TensorSpec]) -> tuple[str, dict[str, str]]:
    """Return the first signature's key, and its argument for each input."""
    interpreter = import_module("ai_edge_litert.interpreter").Interpreter(str(ready))
    key = next(iter(interpreter.get_signature_list()))
    of_tensor = {
        detail["index"]: argument
        for argument, detail in interpreter.get_signature_runner(key).get_input_details().items()
    }
    inputs = [detail["index"] for detail in interpreter.get_input_details()]
    return key, {spec.name: of_tensor[tensor] for spec, tensor in zip(specs, inputs, strict=True)}


def _writer(ready: Path, ranges: Any, kept: Sequence[str]) -> Callable[[Collection[str]], bytes]:
    """Return the function that quantizes with weights of four bits in the layers that it is given by name."""
    quantizers, names = import_module(f"{_PACKAGE}.quantizer"), import_module(f"{_PACKAGE}.qtyping").TFLOperationName
    algorithms = import_module(f"{_PACKAGE}.algorithm_manager").AlgorithmName

    def write(four: Collection[str]) -> bytes:
        quantizer = quantizers.Quantizer(str(ready))
        quantizer.add_static_config(".*", names.ALL_SUPPORTED, 8, 8)
        for end in (names.INPUT, names.OUTPUT):
            quantizer.update_quantization_recipe(".*", end, algorithm_key=algorithms.NO_QUANTIZE)
        for layer in four:
            quantizer.add_static_config(_only(layer), names.ALL_SUPPORTED, 8, 4, algorithm_key=algorithms.MSE)
        for layer in kept:
            quantizer.update_quantization_recipe(
                _only(layer), names.ALL_SUPPORTED, algorithm_key=algorithms.NO_QUANTIZE
            )
        return bytes(quantizer.quantize(ranges, enable_progress_report=False).quantized_model)

    return write


def _only(layer: str) -> str:
    """Return the expression for a layer: the library matches the names of an operator's outputs, each with a semicolon."""
    return f"^{re.escape(layer)};$"


def _mix(
    model: Path,
    output: Path,
    layers: Sequence[_Layer],
    kept: Sequence[_Layer],
    write: Callable[[Collection[str]], bytes],
    samples: SampleSet,
    asked: QuantizeRequest,
) -> tuple[LayerBits, ...]:
    """Write weights of four bits to the quantized file `output`, where the data allows."""
    (feed,) = samples.batch(0, 1)

    def quantized(four: Collection[str]) -> Network:
        output.write_bytes(write(four))
        return open_reference(output, feed).anew

    weights = [Weights(one.name, one.operator, one.weights, _refused(one, kept)) for one in layers]
    chosen = choose_bits(weights, open_reference(model, feed).anew, quantized, samples, asked.max_drop)
    output.write_bytes(write([one.layer for one in chosen if one.bits == 4]))
    return chosen


def _refused(layer: _Layer, kept: Sequence[_Layer]) -> str:
    if layer in kept:
        return "it stays float"
    if layer.operator == "DEPTHWISE_CONV_2D":
        return "a grouped layer has few weights"
    if layer.operator not in _FOUR_BITS:
        return "the quantizer has no four bits for this operator"
    return "other layers read its weights" if layer.shared else ""


def _described(model: Model) -> dict[str, Any]:
    """Return the fields of `QuantizeResult` about a quantized file's layers."""
    graph = model.Subgraphs(0)
    counts = LayerCounts()
    for j in range(graph.OperatorsLength()):
        op = graph.Operators(j)
        operator = kind_of(model, op)
        if operator in _DIRECT:
            continue
        read, made = (
            [graph.Tensors(int(i)) for i in ends if i >= 0] for ends in (op.InputsAsNumpy(), op.OutputsAsNumpy())
        )
        stored = all(tensor.Type() != tflite.TensorType.FLOAT32 for tensor in (*read, *made))
        weighted = operator in _WEIGHTED and len(read) > 1
        scales = read[1].Quantization().ScaleAsNumpy() if weighted and stored else 0
        counts.add(operator, stored, weighted, isinstance(scales, np.ndarray) and len(scales) > 1)
    return counts.fields()
