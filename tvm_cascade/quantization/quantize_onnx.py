"""Quantization of `.onnx` files by ONNX Runtime's static quantizer: QDQ form, int8, weights symmetric and by channel.

The quantizer gets the output of ONNX Runtime's preprocessing: shapes inferred, constants and batch normalizations
folded. Sizes left open by the file are fixed before, as in `plan`, since tensors of unknown shape stay float.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.onnx_reference import model_function, read_onnx
from tvm_cascade.checking.sensitivity import in_own_types
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.importers.onnx.halves import as_floats
from tvm_cascade.messages import last_line
from tvm_cascade.quantization.layer_counts import LayerCounts, silent
from tvm_cascade.quantization.mixed_bits import LayerBits, Weights, choose_bits, scale_of_four_bits
from tvm_cascade.request import QuantizeRequest
from tvm_cascade.samples.sample_set import SampleSet
from tvm_cascade.search_monitor import monitor
from tvm_cascade.tensor_spec import TensorSpec

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_DIRECT = ("DequantizeLinear", "QuantizeLinear")
_LEAST_OPSET = {8: 13, 4: 21}  # by bits of weights: the first one with scales by channel, and with four bits


def quantize_onnx(
    model: Path, output: Path, samples: SampleSet, specs: Sequence[TensorSpec], asked: QuantizeRequest
) -> dict[str, Any]:
    """Write the quantized `model` to `output`; return the fields of `QuantizeResult` about layers.

    Raises `UsageError` for an already quantized model, `LoadError` if ONNX Runtime refuses the model.
    """
    source = read_onnx(model)
    if any(node.op_type in _DIRECT or node.op_type.startswith("QLinear") for node in source.graph.node):
        raise UsageError(f"{model} is quantized already; give the float model that it was made from")
    if asked.calibration == "histogram":
        raise UsageError("--calibration histogram is of .pt2 files only; of .onnx files entropy or percentile")
    bits: tuple[LayerBits, ...] = ()
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-") as folder:
        ready = Path(folder) / "ready.onnx"
        try:
            with silent():
                _prepare(_fixed(as_floats(source), specs, _LEAST_OPSET[asked.weight_bits]), ready)
                _quantize(ready, output, samples, asked)
            if asked.weight_bits == 4:
                bits = _mix(ready, output, samples, asked)
        except (LoadError, UsageError, OSError):
            raise
        except Exception as error:  # of types of its own
            raise LoadError(model, f"ONNX Runtime cannot quantize it: {last_line(error)}") from error
    return _described(read_onnx(output)) | {"weight_bits": bits}


def _mix(ready: Path, output: Path, samples: SampleSet, asked: QuantizeRequest) -> tuple[LayerBits, ...]:
    """Replace weights in the quantized file `output` by four-bit weights, where the data allows.

    The quantizer writes a second file, whose weights have four bits wherever they may. Both have the same nodes, so that
    weights, scales and biases of a layer are exchanged by name.
    """
    import onnx

    floats, eight = read_onnx(ready), read_onnx(output)
    layers = {one.layer: one for one in _weights(floats, eight)}
    free = [name for name, one in layers.items() if not one.refused]
    if not free:
        return tuple(LayerBits(one.layer, one.operator, one.count, 8, None, one.refused) for one in layers.values())
    other = ready.with_name("four.onnx")
    with silent():
        _quantize(ready, other, samples, asked, _overrides(floats, eight, free))
    four = read_onnx(other)
    stored = {tensor.name: tensor for tensor in four.graph.initializer}
    of_layer = {name: _stored_names(eight, name) for name in free}
    if of_layer != {name: _stored_names(four, name) for name in free}:
        raise LoadError(ready, "the quantizer names the weights of four bits otherwise; leave --weight-bits out")

    def mixed(names: Collection[str]) -> Any:
        made = onnx.ModelProto()
        made.CopyFrom(eight)
        exchanged = {tensor for name in names for tensor in of_layer[name]}
        for tensor in made.graph.initializer:
            if tensor.name in exchanged:
                tensor.CopyFrom(stored[tensor.name])
        return made

    chosen = choose_bits(
        list(layers.values()),
        model_function(floats),
        lambda names: model_function(mixed(names)),
        samples,
        asked.max_drop,
    )
    onnx.save(mixed([one.layer for one in chosen if one.bits == 4]), str(output))
    return chosen


def _weights(floats: Any, quantized: Any) -> Iterator[Weights]:
    """Find the layers whose weights are constants of their own, and why some keep eight bits."""
    weights = {w.name: w for w in floats.graph.initializer}
    readers = Counter(name for node in floats.graph.node for name in node.input)
    for node in floats.graph.node:
        if node.op_type not in WEIGHTED or len(node.input) < 2 or node.input[1] not in weights:
            continue
        count = int(np.prod(weights[node.input[1]].dims))
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        refused = "it stays float" if not _stored_names(quantized, node.name) else ""
        refused = refused or ("a grouped layer has few weights" if groups > 1 else "")
        refused = refused or ("other layers read its weights" if readers[node.input[1]] > 1 else "")
        yield Weights(node.name, node.op_type, count, refused)


def _stored_names(model: Any, layer: str) -> tuple[str, ...]:
    """Return the names of constants behind a layer's weights and bias: values, scales and zero points; none for a float
    layer.
    """
    made = {o: n for n in model.graph.node for o in n.output if n.op_type == "DequantizeLinear"}
    node = next(n for n in model.graph.node if n.name == layer)
    if node.input[1] not in made:
        return ()
    return tuple(name for i in node.input[1:3] if i in made for name in made[i].input)


def _overrides(floats: Any, quantized: Any, layers: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the quantizer's options for four-bit weights: for each channel the scale with the least squared error."""
    from onnx import numpy_helper
    from onnxruntime.quantization import QuantType

    weights = {w.name: w for w in floats.graph.initializer}
    nodes = {node.name: node for node in floats.graph.node}
    made = {o: n for n in quantized.graph.node for o in n.output}
    read = {node.name: made[node.input[1]] for node in quantized.graph.node if node.name in layers}
    given = {}
    for layer in layers:
        name = nodes[layer].input[1]
        axis = next((a.i for a in read[layer].attribute if a.name == "axis"), 1)
        channels = np.moveaxis(numpy_helper.to_array(weights[name]), axis, 0)
        common = {"quant_type": QuantType.QInt4, "axis": axis, "zero_point": np.array(0, np.int8)}
        given[name] = [common | {"scale": scale_of_four_bits(channel)} for channel in channels]
    return given


def _fixed(model: Any, specs: Sequence[TensorSpec], least: int) -> Any:
    """Copy `model` with input shapes fixed, in opset `least` or a later one, every node named."""
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph, shapes, known = fixed.graph, {spec.name: spec.shape for spec in specs}, {}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in zip(dims, shapes.get(value.name, ()), strict=False):
            known |= {dim.dim_param: extent} if dim.dim_param else {}
            dim.dim_value = extent
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in known:
                dim.dim_value = known[dim.dim_param]
    del graph.value_info[:]  # inferred anew
    for k, node in enumerate(graph.node):
        node.name = node.name or f"{node.op_type}_{k}"
    opset = max((o.version for o in fixed.opset_import if o.domain in ("", "ai.onnx")), default=1)
    return onnx.version_converter.convert_version(fixed, least) if opset < least else fixed


def _prepare(model: Any, to: Path) -> None:
    import onnx
    from onnxruntime.quantization import quant_pre_process

    fixed = to.with_name("fixed.onnx")
    onnx.save(model, str(fixed))
    quant_pre_process(str(fixed), str(to), skip_symbolic_shape=True)  # what was symbolic has been fixed


def _quantize(
    ready: Path,
    output: Path,
    samples: SampleSet,
    asked: QuantizeRequest,
    overrides: dict[str, list[dict[str, Any]]] | None = None,
) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    model = read_onnx(ready)
    methods = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    quantize_static(
        str(ready),
        str(output),
        _reader(samples, model),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=_kept_float(model, asked),
        calibrate_method=methods[asked.calibration],
        extra_options={
            "WeightSymmetric": True,
            "ActivationSymmetric": False,
            "CalibTensorRangeSymmetric": False,
            "CalibPercentile": asked.percentile,
            **({"TensorQuantOverrides": overrides} if overrides else {}),
            "CalibStridedMinMax": 1,  # of every method: what activations a sample has is counted and forgotten
        },
    )


def _reader(samples: SampleSet, model: Any) -> Any:
    """Return the samples in the quantizer's format; progress is reported."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = range(samples.count)

        def __len__(self) -> int:
            return samples.count

        def set_range(self, start_index: int, end_index: int) -> None:
            self._left = range(start_index, end_index)

        def get_next(self) -> dict[str, np.ndarray] | None:
            if not self._left:
                return None
            k, self._left = self._left[0], self._left[1:]
            monitor().report("calibration", k, samples.count, unit="")
            return dict(in_own_types(model, samples.batch(k, k + 1)[0]))

    return Reader()


def _kept_float(model: Any, asked: QuantizeRequest) -> list[str]:
    """Names of the nodes that stay float: the first or the last layer with weights, as asked for."""
    weights = {w.name for w in model.graph.initializer}
    layers = [n for n in model.graph.node if n.op_type in WEIGHTED and any(i in weights for i in n.input)]
    return [n.name for n in (*layers[: asked.float_first], *layers[len(layers) - asked.float_last :])]


def _described(model: Any) -> dict[str, Any]:
    """Return the fields of `QuantizeResult` about a QDQ model's layers."""
    weights = {w.name: w for w in model.graph.initializer}
    made = {o: n for n in model.graph.node for o in n.output}
    read: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            read.setdefault(name, []).append(node)
    counts = LayerCounts()
    for node in model.graph.node:
        if node.op_type in _DIRECT:
            continue
        before = [made.get(name) for name in node.input if name in made]
        stored = bool(before) and all(n is not None and n.op_type == "DequantizeLinear" for n in before)
        after = [n for o in node.output for n in read.get(o, [])]
        stored = stored and bool(after) and all(n.op_type == "QuantizeLinear" for n in after)
        scale = weights.get(before[1].input[1]) if stored and len(before) > 1 and before[1] is not None else None
        by_channel = scale is not None and bool(scale.dims) and scale.dims[0] > 1
        counts.add(node.op_type, stored, node.op_type in WEIGHTED, by_channel)
    return counts.fields()
