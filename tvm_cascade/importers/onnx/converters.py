"""Converters for Relax's ONNX importer, for operators imported wrongly or in a form closed to later passes.

The importer reads Pad, Clip and Tile as opaque TIR functions, and Max, Min, Sum and Mean as a stack with a reduction.
For ConvTranspose `output_shape` is ignored; SAME_LOWER pool sizes are rounded down. For Resize the size ratio replaces
the scales, wrong if a scaled size is fractional, and `axes` and antialias are ignored. Indices stay int64, though
kernels take int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tvm_cascade.errors import about
from tvm_cascade.importers.interface import MAX_ELEMENTS
from tvm_cascade.importers.onnx.integer_conv import conv_integer
from tvm_cascade.importers.onnx.known import (
    ALIGNED,
    aligned,
    compress,
    computed_size,
    dropout,
    eye_like,
    optional_has_element,
    refused,
    reverse_sequence,
    sequence_length,
    shape_constant,
    slice_by_attributes,
    space_to_depth,
)
from tvm_cascade.importers.onnx.normalizations import (
    batch_normalization,
    layer_normalization,
    lp_normalization,
    mean_variance_normalization,
    rms_normalization,
)
from tvm_cascade.importers.onnx.numbers import (
    beyond_threshold,
    bit_cast,
    bit_shift,
    cast_to_integers,
    log_sum_exp,
    of_truths,
    over_no_axes,
    power,
    remainder,
    sloped,
)
from tvm_cascade.importers.onnx.placing import counted_from_start, hardmax, inside, scatter_nd, top_k
from tvm_cascade.importers.onnx.recurrent import gru, lstm, rnn, with_outputs_read
from tvm_cascade.importers.onnx.resize import resize, text, upsample
from tvm_cascade.importers.onnx.scans import scan
from tvm_cascade.importers.onnx.signals import cumulative_product, fourier, short_time_fourier
from tvm_cascade.importers.onnx.weight_only import dequantize_blocks, matmul_by_bits
from tvm_cascade.importers.onnx.windows import columns_to_image, pool_with_places, roi_align, written_lines
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.main_rewriting import Value, blocks_closed, constant_of, relax, shape_of

Attributes = dict[str, Any]
# None: convert as the importer does, by the (changed) attributes
Converter = Callable[[Any, list[Value], Attributes], Value | None]
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


class Importer(ONNXGraphImporter):
    """Relax's importer with the converters of this module."""

    of_torch = False  # the model was made from a program, whose padding of maxima is negative infinity

    def from_onnx(self, graph: Any, opset: int) -> Any:
        with blocks_closed([self.bb]):
            return super().from_onnx(with_outputs_read(graph), opset)

    @property
    def values(self) -> Mapping[str, Value]:
        """Map the file's values to their converted expressions, by name."""
        return self._nodes

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Do nothing: `importers.onnx.load` checks, and the base class would refuse operators converted only here."""

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Attributes, opset: int) -> Any:
        convert = CONVERTERS.get(op_name)
        attrs["tvm_custom"] |= {"opset": opset, "of_torch": self.of_torch}
        with about(op_name):
            if op_name in ALIGNED and opset < 7:
                inputs[1] = aligned(self.bb, inputs, attrs)
            axes = _constant(inputs, 1) if op_name == "Unsqueeze" and opset >= 13 else None
            if axes is not None and axes.ndim == 0:  # as torch writes it, and ONNX Runtime takes
                inputs[1] = relax.const(axes.reshape(1), "int64")
            if len(inputs) == 2 and not any(isinstance(x, (relax.Call, relax.Var)) for x in inputs):
                for k, part in enumerate(inputs):  # Relax's importer takes parts of a split for constants
                    if isinstance(part, relax.TupleGetItem):
                        inputs[k] = self.bb.emit(part)
            made = convert(self.bb, inputs, attrs) if convert is not None else None
            if made is None:
                return super()._convert_operator(op_name, inputs, attrs, opset)
            return self.bb.normalize(made)


def _constant(inputs: Sequence[Value], index: int) -> np.ndarray | None:
    """Return an input's data; None if absent or not constant."""
    value = inputs[index]
    return None if value is None else constant_of(value)


def _number(inputs: Sequence[Value], index: int, otherwise: float) -> float | None:
    """Return a constant scalar input; `otherwise` if absent, None if not constant."""
    if inputs[index] is None:
        return otherwise
    data = constant_of(inputs[index])
    return None if data is None or data.size != 1 else float(data.reshape(-1)[0])


def _pad(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    x, mode = inputs[0], _PAD_MODES.get(text(attrs, "mode", "constant"))
    shape = shape_of(x)
    widths = _constant(inputs, 1) if inputs[1] is not None else np.array(attrs.get("pads", ()))
    value, axes = _number(inputs, 2, float(attrs.get("value", 0.0))), _constant(inputs, 3)
    if mode is None or not shape or widths is None or value is None or (axes is None and inputs[3] is not None):
        return None
    chosen = [int(a) % len(shape) for a in axes] if axes is not None else list(range(len(shape)))
    if widths.size != 2 * len(chosen):
        return None
    before, after = np.zeros((2, len(shape)), "int64")
    before[chosen], after[chosen] = np.split(widths.reshape(-1), 2)
    if mode != "constant" and min(*before, *after) < 0:
        if mode != "circular" or attrs["tvm_custom"]["of_torch"]:
            return None
        cut = np.minimum([before, after], 0)  # what is left wraps
        x = bb.normalize(relax.op.nn.pad(x, cut.T.reshape(-1).tolist(), "constant", 0.0))
        before, after = np.maximum([before, after], 0)
    if mode == "reflect" and any(max(b, a) >= d for b, a, d in zip(before, after, shape, strict=True)):
        raise ValueError("a reflection wider than its input")
    return relax.op.nn.pad(x, np.stack([before, after], axis=1).reshape(-1).tolist(), mode, value)


def _clip(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Clip float32, or 8-bit integers, with constant bounds; ignore a NaN bound."""
    x = inputs[0]
    if str(x.ty.dtype) in ("int8", "uint8"):
        info = np.iinfo(str(x.ty.dtype))
        lo, hi = _number(inputs, 1, float(info.min)), _number(inputs, 2, float(info.max))
        return None if lo is None or hi is None or lo > hi else relax.op.clip(x, lo, hi)
    lo, hi = (
        _number(inputs, i, float(attrs.get(name, end))) for i, name, end in ((1, "min", -np.inf), (2, "max", np.inf))
    )
    if lo is None or hi is None or str(x.ty.dtype) != "float32":
        return None
    lo, hi = (-np.inf if np.isnan(lo) else lo), (np.inf if np.isnan(hi) else hi)
    if lo == 0 and hi == np.inf:
        return relax.op.nn.relu(x)
    if np.isfinite(lo) and np.isfinite(hi) and lo <= hi:
        return relax.op.clip(x, lo, hi)
    for bound, operator in ((lo, relax.op.maximum), (hi, relax.op.minimum)):  # the upper bound last: it wins
        if np.isfinite(bound):
            x = bb.normalize(operator(x, relax.const(bound, "float32")))
    return x


def _tile(_bb: Any, inputs: Sequence[Value], _attrs: Attributes) -> Value | None:
    repeats = _constant(inputs, 1)
    return None if repeats is None else relax.op.tile(inputs[0], [int(r) for r in repeats])


def _pairwise(operator: Callable[[Value, Value], Value], average: bool = False) -> Converter:
    """Return a converter from an operator with many operands to a chain of binary ones; `average` divides by the count."""

    def convert(bb: Any, inputs: Sequence[Value], _attrs: Attributes) -> Value | None:
        operands = list(inputs)
        if all(constant_of(v) is not None for v in operands):
            return None
        total = reduce(lambda a, b: bb.normalize(operator(a, b)), operands)
        return relax.op.divide(total, relax.const(len(operands), "float32")) if average else total

    return convert


def _swish(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Compute x * sigmoid(alpha * x): `silu` for alpha 1. Relax's importer has no such operator."""
    x, alpha = inputs[0], float(attrs.get("alpha", 1.0))
    if alpha == 1.0:
        return relax.op.nn.silu(x)
    scaled = bb.normalize(relax.op.multiply(x, constant(np.array(alpha, str(x.ty.dtype)))))
    return relax.op.multiply(x, bb.normalize(relax.op.sigmoid(scaled)))


def _infinite(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert IsInf for a single sign: the importer ignores `detect_negative` and `detect_positive`."""
    x, below, above = inputs[0], attrs.get("detect_negative", 1), attrs.get("detect_positive", 1)
    if below and above:
        return None
    bound = constant(np.array(np.inf if above else -np.inf, str(x.ty.dtype)))
    return relax.op.equal(x, bound) if below or above else relax.op.zeros(shape_of(x), "bool")


def _one_hot(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert OneHot with constant depth: the importer refuses a one-dimensional depth, and makes the values float64."""
    depth, values, x = _constant(inputs, 1), _constant(inputs, 2), inputs[0]
    if depth is None or values is None:
        return None
    count, rank = int(depth.reshape(-1)[0]), len(shape_of(x))
    if not 0 < count * prod(shape_of(x)) <= MAX_ELEMENTS:
        raise NotImplementedError(f"a depth of {count}")
    axis = int(attrs.get("axis", -1)) % (rank + 1)
    dtype = "int64" if str(x.ty.dtype) in ("int64", "uint64") else "int32"
    places = np.arange(count, dtype=dtype).reshape(count, *[1] * (rank - axis))
    given = bb.normalize(relax.op.expand_dims(bb.normalize(relax.op.astype(x, dtype)), axis))
    hits = [bb.normalize(relax.op.equal(given, constant(p))) for p in (places, places - count)]  # from either end
    off, on = (constant(np.asarray(v)) for v in values)
    return relax.op.where(bb.normalize(relax.op.logical_or(*hits)), on, off)


def _insert(_bb: Any, inputs: list[Value], _attrs: Attributes) -> None:
    """Fix SequenceInsert before a place counted from the end: the importer inserts a single place later."""
    place = _constant(inputs, 2)
    if place is not None and place < 0:
        inputs[2] = relax.const(len(inputs[0]) + int(place), "int64")


def _suppression(_bb: Any, inputs: list[Value], _attrs: Attributes) -> None:
    """Refuse computed limits in NonMaxSuppression: the importer would use its own defaults, which differ from ONNX's."""
    names = ("max_output_boxes_per_class", "iou_threshold", "score_threshold")
    defaults = (None, np.float32(0), np.finfo("float32").min)
    boxes, scores = shape_of(inputs[0]), shape_of(inputs[1])
    if len(boxes) != 3 or len(scores) != 3 or (boxes[0], boxes[1], 4) != (scores[0], scores[2], boxes[2]):
        raise NotImplementedError(f"boxes of shape {list(boxes)} with scores of shape {list(scores)}")
    for index, (name, default) in enumerate(zip(names, defaults, strict=True), 2):
        if inputs[index] is not None and _constant(inputs, index) is None:
            raise NotImplementedError(f"{name} that is computed, or an input: make it a constant")
        if inputs[index] is None and default is None:
            raise NotImplementedError(f"{name} that is left out, which means no output")
        if inputs[index] is None:
            while len(inputs) <= index:
                inputs.append(None)
            inputs[index] = relax.const(default, "float32")
    most = _number(inputs, 2, 0)
    if most is not None:  # more than there are cannot be selected, and the importer narrows the number to 32 bits
        inputs[2] = relax.const(min(int(most), boxes[1]), "int64")
    reach = _number(inputs, 3, 0)
    if reach is not None:  # boxes that overlap by just as much are kept, and the importer's are not
        inputs[3] = constant(np.nextafter(np.float32(reach), np.float32(np.inf)))


def _along_axis(operator: Callable[[Value, Value, int], Value]) -> Converter:
    """Return a converter for gathers along a single axis."""

    def convert(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
        shape, axis = shape_of(inputs[0]), int(attrs.get("axis", 0))
        if operator is relax.op.take and all(constant_of(i) is not None for i in inputs):
            return None  # the importer folds it
        places = _places(bb, inputs, shape[axis : axis + 1 or None])
        return None if places is None else operator(inputs[0], places, axis % len(shape))

    return convert


def _gather_nd(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert GatherND to a gather along its batches and the indexed axes behind them, flattened into one."""
    shape, indices, batch = shape_of(inputs[0]), _constant(inputs, 1), int(attrs.get("batch_dims", 0))
    given = shape_of(inputs[1]) if indices is None else indices.shape
    places = _places(bb, inputs, shape[batch : batch + given[-1]]) if given else None
    if places is None:
        return None
    indexed = shape[batch : batch + given[-1]]
    flat = bb.normalize(relax.op.reshape(inputs[0], (-1, *shape[batch + len(indexed) :])))
    first = np.arange(prod(shape[:batch]), dtype="int32") * prod(indexed)  # of each batch
    first = first.reshape((*shape[:batch], *(1 for _ in given[batch:-1])))
    if indices is not None:
        at = first + np.ravel_multi_index(tuple(np.moveaxis(places.value.numpy(), -1, 0)), indexed)
        return relax.op.take(flat, relax.const(at, "int32"), 0)
    if len(indexed) > 1:
        steps = np.cumprod([1, *indexed[:0:-1]])[::-1].astype("int32")
        parts = bb.normalize(relax.op.multiply(bb.normalize(relax.op.astype(places, "int32")), constant(steps)))
        at = bb.normalize(relax.op.sum(parts, [-1]))
    else:
        at = bb.normalize(relax.op.squeeze(places, [-1]))
    if batch:
        at = bb.normalize(relax.op.add(bb.normalize(relax.op.astype(at, "int32")), constant(first)))
    return relax.op.take(flat, at, 0)


def _places(bb: Any, inputs: Sequence[Value], extents: Sequence[int]) -> Value | None:
    """Return indices into axes with `extents`, counted from the start; constant indices as int32 for kernels. None
    without known shapes.
    """
    indices = _constant(inputs, 1)
    if not shape_of(inputs[0]) or not extents:
        return None
    return counted_from_start(bb, inputs[1], extents) if indices is None else inside(indices, extents)


def _local_normalization(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> None:
    """Leave LRN to the importer, which supports windows centred on a channel; refuse an even size."""
    if int(attrs["size"]) % 2 == 0:
        raise NotImplementedError(f"a window of {attrs['size']} channels: give it an odd size")


def _window(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Write SAME padding as explicit `pads`, for the importer: `ceil(in / stride)` outputs, an odd pad after or before."""
    mode = text(attrs, "auto_pad", "NOTSET")
    extents = shape_of(inputs[0])[2:]
    if not mode.startswith("SAME"):
        return None
    kernel = attrs["kernel_shape"] if "kernel_shape" in attrs else shape_of(inputs[1])[2:]
    ones = (1,) * len(extents)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    total = [
        max((-(-d // s) - 1) * s + (k - 1) * e + 1 - d, 0)
        for d, s, k, e in zip(extents, strides, kernel, dilations, strict=True)
    ]
    attrs["pads"] = _halves(total, mode == "SAME_UPPER")
    attrs["auto_pad"], attrs["ceil_mode"] = b"NOTSET", 0
    return None


def _conv_integer(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    _window(bb, inputs, attrs)
    return conv_integer(bb, inputs, attrs)


def _max_pool(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    _window(bb, inputs, attrs)
    if str(inputs[0].ty.dtype).startswith("float") and not attrs["tvm_custom"]["of_torch"]:
        _require_elements(shape_of(inputs[0])[2:], attrs)
    return pool_with_places(bb, inputs, attrs) if int(attrs["tvm_custom"]["num_outputs"]) > 1 else None


def _split_to_sequence(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert a split into a single part to a tuple, which Relax's split is not; leave others to the importer."""
    axis = int(attrs.get("axis", 0))
    extent = shape_of(inputs[0])[axis]
    if len(inputs) == 1:
        keeps = bool(attrs.get("keepdims", 1))
        return relax.Tuple([inputs[0] if keeps else relax.op.squeeze(inputs[0], [axis])]) if extent == 1 else None
    sizes = _constant(inputs, 1)
    whole = sizes is not None and sizes.size == 1 and int(sizes.reshape(-1)[0]) >= extent
    return relax.Tuple([inputs[0]]) if whole else None


def _require_elements(extents: Sequence[int], attrs: Attributes) -> None:
    """Refuse a pool with a window wholly in padding: runtimes give such a maximum different values."""
    ones, zeros = (1,) * len(extents), (0,) * len(extents)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    padded = text(attrs, "auto_pad", "NOTSET") != "VALID" and "pads" in attrs
    pads = attrs["pads"] if padded else zeros + zeros
    ends = zip(extents, attrs["kernel_shape"], strides, dilations, pads, pads[len(extents) :], strict=False)
    for extent, k, s, d, before, after in ends:
        last = extent + after - (k - 1) * d - 1
        beyond = s - 1 if attrs.get("ceil_mode", 0) else 0
        for start in range(-before, min(last + beyond + 1, extent), s):
            if all(not 0 <= place < extent for place in range(start, start + k * d, d)):
                raise NotImplementedError("a window wholly in the padding, of which runtimes differ: pad less")


def _halves(total: Sequence[int], upper: bool) -> tuple[int, ...]:
    """Return pads per axis with the sum `total`, an odd element after (`upper`) or before."""
    less = [t // 2 for t in total]
    more = [t - l for t, l in zip(total, less, strict=True)]
    return (*less, *more) if upper else (*more, *less)


def _transposed(bb: Any, inputs: list[Value], attrs: Attributes) -> Value | None:
    """Write `output_shape` of a ConvTranspose as pads and output padding, for the importer; and output padding of whole
    strides, which the importer refuses, as zeros behind the input.
    """
    wanted = attrs.pop("output_shape", None)
    if wanted is None and not any(attrs.get("output_padding", ())):
        return None
    extents, kernel = shape_of(inputs[0])[2:], shape_of(inputs[1])[2:]
    ones, zeros = (1,) * len(extents), (0,) * len(extents)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    extra = attrs.get("output_padding", zeros)
    if wanted is not None:
        spare = [
            s * (d - 1) + e + (k - 1) * f + 1 - w
            for d, s, k, f, e, w in zip(
                extents, strides, kernel, dilations, extra, wanted[-len(extents) :], strict=True
            )
        ]
        attrs["pads"] = _halves([max(s, 0) for s in spare], text(attrs, "auto_pad", "NOTSET") == "SAME_UPPER")
        extra = attrs["output_padding"] = tuple(e + max(-s, 0) for e, s in zip(extra, spare, strict=True))
        attrs["auto_pad"] = b"NOTSET"
    behind = [e // s for e, s in zip(extra, strides, strict=True)]
    if any(behind) and text(attrs, "auto_pad", "NOTSET") == "NOTSET":
        inputs[0] = bb.emit(relax.op.nn.pad(inputs[0], [w for b in (0, 0, *behind) for w in (0, b)]))
        attrs["output_padding"] = tuple(e % s for e, s in zip(extra, strides, strict=True))
    return None


CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        "Pad": _pad,
        "Clip": _clip,
        "Tile": _tile,
        "Sum": _pairwise(relax.op.add),
        "Mean": _pairwise(relax.op.add, average=True),
        "Max": _pairwise(relax.op.maximum),
        "Min": _pairwise(relax.op.minimum),
        "Pow": power,
        "Swish": _swish,
        "IsInf": _infinite,
        "BatchNormalization": batch_normalization,
        "LayerNormalization": layer_normalization,
        "RMSNormalization": rms_normalization,
        "LpNormalization": lp_normalization,
        "MeanVarianceNormalization": mean_variance_normalization,
        "ConvInteger": _conv_integer,
        "DequantizeLinear": dequantize_blocks,
        "MatMulNBits": matmul_by_bits,
        "LSTM": lstm,
        "Scan": scan,
        "GRU": gru,
        "RNN": rnn,
        "BitShift": bit_shift,
        "BitCast": bit_cast,
        "Mod": remainder,
        "PRelu": sloped,
        "ThresholdedRelu": beyond_threshold,
        "ReduceMax": of_truths(relax.op.max),
        "ReduceMin": of_truths(relax.op.min),
        "ReduceL1": over_no_axes(relax.op.abs),
        "ReduceL2": over_no_axes(relax.op.abs, floats=True),
        "ReduceLogSum": over_no_axes(relax.op.log, floats=True),
        "ReduceLogSumExp": log_sum_exp,
        "ReduceSumSquare": over_no_axes(relax.op.square),
        "EyeLike": eye_like,
        "Compress": compress,
        "Dropout": dropout,
        "CumProd": cumulative_product,
        "DFT": fourier,
        "STFT": short_time_fourier,
        "Shape": shape_constant,
        "ReverseSequence": reverse_sequence,
        "SpaceToDepth": space_to_depth,
        "Slice": slice_by_attributes,
        "RoiAlign": roi_align,
        "TopK": top_k,
        "MaxUnpool": refused(computed_size),
        "NonMaxSuppression": _suppression,
        "OneHot": _one_hot,
        "OptionalHasElement": optional_has_element,
        "SequenceInsert": _insert,
        "SequenceLength": sequence_length,
        "Gather": _along_axis(relax.op.take),
        "GatherElements": _along_axis(relax.op.gather_elements),
        "GatherND": _gather_nd,
        "ScatterND": scatter_nd,
        "Hardmax": hardmax,
        "Cast": cast_to_integers,
        "LRN": _local_normalization,
        "Conv": _window,
        "MaxPool": _max_pool,
        "SplitToSequence": _split_to_sequence,
        "Col2Im": columns_to_image,
        "TensorScatter": written_lines,
        "AveragePool": _window,
        "ConvTranspose": _transposed,
        "Resize": resize,
        "Upsample": upsample,
    }
)
