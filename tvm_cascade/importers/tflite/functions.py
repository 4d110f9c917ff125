"""Converters for TFLite operators that compute, pad or broadcast, if Relax's importer refuses the quantized form or
converts the float form wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts, scale_of, zero_point_of
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.gathering import Grid, nearest_sources
from tvm_cascade.passes.integer.reduction import IntegerMean
from tvm_cascade.passes.integer.requantize import requantized_wide
from tvm_cascade.passes.integer.task import Elementwise, Output
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, tirx
from tvm_cascade.passes.islands.reader import EXPLICIT_AXIS
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax
from tvm_cascade.passes.sorting import emit_top_k
from tvm_cascade.program.quant import STORED_TYPES


def _bounded(index: Index, value: Tensor) -> Scalar:
    """Return an element of `value` bounded like in TFLite's float32 kernels: infinity becomes the largest number, NaN
    stays.
    """
    largest = tirx.const(float(np.finfo("float32").max), "float32")
    element, least = value[index], -largest
    return tirx.Select(element > largest, largest, tirx.Select(element < least, least, element))


@converts("ELU")
def _elu(net: Network, op: Operator) -> Value:
    """Compute `relu(x) - relu(1 - exp(x))`, like Relax's importer, on real numbers."""
    x = net.real(net.get_input_tensors(op)[0])
    one = relax.const(1, "float32")
    below = relax.op.nn.relu(relax.op.subtract(one, relax.op.exp(x)))
    return net.stored(relax.op.add(relax.op.multiply(relax.const(-1, "float32"), below), relax.op.nn.relu(x)), op)


@converts("L2_NORMALIZATION")
def _l2_normalization(net: Network, op: Operator) -> Value:
    """Normalize by L2 along the last axis. The reference bounds a float norm from below by 1e-6."""
    tensor = net.get_input_tensors(op)[0]
    x = net.bb.emit(net.real(tensor))
    total = relax.op.sum(relax.op.square(x), axis=len(net.shape(tensor)) - 1, keepdims=True)
    output = net.get_output_tensors(op)[0]
    if output.qnn_params:
        return net.quantize(relax.op.divide(x, relax.op.sqrt(total)), output)
    norm = relax.op.maximum(relax.op.sqrt(total), relax.const(1e-6, "float32"))
    options = net.options(op, tflite.L2NormOptions) if op.BuiltinOptions() is not None else None
    activation = options.FusedActivationFunction() if options is not None else 0
    return net.convert_fused_activation_function(relax.op.divide(x, norm), activation)


@converts("LOCAL_RESPONSE_NORMALIZATION")
def _local_response_normalization(net: Network, op: Operator) -> Value:
    """Divide by a power of the mean square over neighbouring channels: the channels of NHWC are the depth of a rank-5
    tensor, so that rows stay rows. Relax's importer makes every pixel a row.
    """
    tensor = net.get_input_tensors(op)[0]
    if tensor.qnn_params or len(net.shape(tensor)) != 4:
        return net.convert_lrn(op)
    x, options = net.get_expr(tensor.tensor_idx), net.options(op, tflite.LocalResponseNormalizationOptions)
    radius, size = options.Radius(), 2 * options.Radius() + 1
    deep = net.bb.emit(relax.op.expand_dims(net.bb.emit(relax.op.square(x)), 4))
    padding = [0, 0, radius, 0, 0, radius]
    mean = relax.op.nn.avg_pool3d(
        deep, [1, 1, size], padding=padding, count_include_pad=True, layout="NDHWC", out_layout="NDHWC"
    )
    mean = net.bb.emit(relax.op.squeeze(net.bb.emit(mean), 4))
    scale, bias, power = (relax.const(v, "float32") for v in (options.Alpha() * size, options.Bias(), options.Beta()))
    base = relax.op.add(bias, net.bb.emit(relax.op.multiply(scale, mean)))
    return relax.op.divide(x, net.bb.emit(relax.op.power(net.bb.emit(base), power)))


@converts("BATCH_MATMUL")
def _batch_matmul(net: Network, op: Operator) -> Value:
    """Convert a matmul with broadcast batches, on operands transposed in stored form. Operands get rank 3 at least:
    lowering would take rank 2 for a fully connected layer, which rounds differently.
    """
    options = net.options(op, tflite.BatchMatMulOptions)
    tensors, operands = net.get_input_tensors(op), []
    for tensor, swapped in zip(tensors, (options.AdjX(), options.AdjY()), strict=True):
        shape = net.shape(tensor)
        wide = [1] * (3 - len(shape)) + shape
        order = [*range(len(wide) - 2), len(wide) - 1, len(wide) - 2] if swapped else None
        operands.append(_moved(net, tensor, wide, order))
    rank = max(len(net.shape(t)) for t in tensors)
    result = net.bb.emit(net.stored(relax.op.matmul(*operands), op))
    made = [int(d) for d in result.ty.shape.values]
    return relax.op.reshape(result, made[-rank:]) if rank < 3 else result


def _moved(net: Network, tensor: stock.TensorWrapper, shape: list[int], order: list[int] | None) -> Value:
    """Return a tensor's real numbers, reshaped and transposed in stored form; fold a constant."""
    if net.has_expr(tensor.tensor_idx):
        value = net.get_expr(tensor.tensor_idx)
        if net.shape(tensor) != shape:
            value = net.bb.emit(relax.op.reshape(value, shape))
        value = value if order is None else net.bb.emit(relax.op.permute_dims(value, order))
    else:
        data = np.asarray(net.get_tensor_value(tensor)).reshape(shape)
        data = data if order is None else np.ascontiguousarray(data.transpose(order))
        value = relax.const(data, str(data.dtype))
    return net.real(tensor, value)


@converts("BROADCAST_TO")
def _broadcast_to(net: Network, op: Operator) -> Value:
    """Broadcast stored values of a quantized tensor, else real ones."""
    x, shape = net.get_input_tensors(op)
    return relax.op.broadcast_to(net.get_tensor_expr(x), net.ints(shape))


@converts("DEQUANTIZE")
def _dequantize(net: Network, op: Operator) -> Value:
    """Mark a DEQUANTIZE of the file by `EXPLICIT_AXIS`: its readers are float operators, which round differently."""
    tensor = net.get_input_tensors(op)[0]
    if not net.has_expr(tensor.tensor_idx) and tensor.qnn_params:
        return _dequantized_constant(net, tensor)
    if not net.has_expr(tensor.tensor_idx) or not tensor.qnn_params or not net.shape(tensor):
        return net.convert_dequantize(op)
    params = tensor.qnn_params
    value = net.get_expr(tensor.tensor_idx)
    return Stored(value, params["scale"], params["zero_point"], EXPLICIT_AXIS).reals


def _dequantized_constant(net: Network, tensor: Any) -> Value:
    """Return a stored constant as real numbers, by tensor or channel: of a network with quantized weights alone."""
    data = net.get_tensor_value(tensor)
    scale, zero = (np.asarray(constant_of(tensor.qnn_params[name])) for name in ("scale", "zero_point"))
    axis = int(tensor.qnn_params["axis"]) if scale.size > 1 else EXPLICIT_AXIS
    zeros = np.broadcast_to(zero.reshape(-1), scale.shape) if scale.size > 1 else zero
    value = relax.const(np.ascontiguousarray(data), str(data.dtype))
    return Stored(value, relax.const(scale, "float32"), relax.const(zeros.astype("int32"), "int32"), axis).reals


@converts("QUANTIZE")
def _quantize(net: Network, op: Operator) -> Value:
    """Requantize stored integers from or to int32 here, since no island holds int32."""
    source, output = net.get_input_tensors(op)[0], net.get_output_tensors(op)[0]
    given, made = (net.get_tensor_type_str(t.tensor.Type()) for t in (source, output))
    if "int32" not in (given, made):
        return net.convert_quantize(op)
    if not source.qnn_params or not output.qnn_params or not {given, made} <= {*STORED_TYPES, "int32"}:
        raise UnsupportedForm(f"QUANTIZE of {given} to {made}")
    out = Output.unbounded(tuple(net.shape(source)), made, scale_of(output), zero_point_of(output))
    x = net.get_tensor_expr(source)
    return requantized_wide(Emitter(net.bb, {}, "quantize"), x, scale_of(source), zero_point_of(source), out)


_REDUCTIONS: Mapping[str, Callable[..., Value]] = MappingProxyType(
    {
        "MEAN": relax.op.mean,
        "REDUCE_ALL": relax.op.min,
        "REDUCE_ANY": relax.op.max,
        "REDUCE_MAX": relax.op.max,
        "REDUCE_MIN": relax.op.min,
        "REDUCE_PROD": relax.op.prod,
        "SUM": relax.op.sum,
    }
)


@converts(*_REDUCTIONS)
def _reduced(net: Network, op: Operator) -> Value:
    """Reduce along axes that may be negative or repeated, which the importer refuses."""
    data, axis = net.get_input_tensors(op)
    count = len(net.shape(data))
    along = sorted({a % count for a in net.ints(axis)}) if count else []
    options = net.options(op, tflite.ReducerOptions) if op.BuiltinOptions() is not None else None
    kept = options is not None and bool(options.KeepDims())
    kind = net.get_op_code_str(op)
    if kind == "MEAN" and data.tensor.Type() == tflite.TensorType.INT32 and along:
        return _mean_of_integers(net, data, along, kept)
    if kind in ("REDUCE_ALL", "REDUCE_ANY"):
        numbers = net.bb.emit(relax.op.astype(net.get_tensor_expr(data), "int8"))
        return relax.op.astype(net.bb.emit(_REDUCTIONS[kind](numbers, along, kept)), "bool")
    return net.stored(_REDUCTIONS[kind](net.real(data), along, kept), op)


def _mean_of_integers(net: Network, data: stock.TensorWrapper, along: list[int], kept: bool) -> Value:
    """Compute an int32 mean like the reference: a 64-bit sum, divided toward zero."""
    value, shape = net.bb.emit(net.get_tensor_expr(data)), net.shape(data)
    reduced = [1 if axis in along else extent for axis, extent in enumerate(shape)]
    mean = Emitter(net.bb, {}, "mean").call("mean", IntegerMean(tuple(shape), tuple(along)), [value])
    return mean if kept else relax.op.reshape(mean, [d for axis, d in enumerate(reduced) if axis not in along])


@converts("DIV")
def _div(net: Network, op: Operator) -> Value:
    """Divide; quotients by a constant with a 0 end at the largest float, the reference's bound on all results."""
    divisor, output = net.get_input_tensors(op)[1], net.get_output_tensors(op)[0]
    result = net._convert_elemwise(op, relax.op.divide)
    if output.tensor.Type() != tflite.TensorType.FLOAT32 or net.has_expr(divisor.tensor_idx):
        return result
    if np.asarray(net.get_tensor_value(divisor)).all():
        return result
    result = net.bb.emit(result)
    bounded = Elementwise(tuple(int(d) for d in result.ty.shape.values), _bounded, "bounded")
    return Emitter(net.bb, {}, "quotient").call("bounded", bounded, [result])


@converts("SQUARED_DIFFERENCE")
def _squared_difference(net: Network, op: Operator) -> Value:
    """Convert to a product, for integers too, which have no powers."""
    if net.get_output_tensors(op)[0].qnn_params:
        return net.convert_squared_difference(op)
    difference = net.bb.emit(net._convert_elemwise(op, relax.op.subtract))
    return relax.op.multiply(difference, difference)


@converts("CUMSUM")
def _cumsum(net: Network, op: Operator) -> Value:
    """Convert a running sum; reverse the tensor for a reversed sum."""
    data, axis = net.get_input_tensors(op)
    options, dtype = net.options(op, tflite.CumsumOptions), net.get_tensor_type_str(data.tensor.Type())
    shape, (along,) = net.shape(data), net.ints(axis)
    along, value = along % len(shape), net.get_tensor_expr(data)
    value = _reversed(net, value, shape, [along]) if options.Reverse() else value
    value = net.bb.emit(relax.op.cumsum(net.bb.emit(value), along, dtype, bool(options.Exclusive())))
    return _reversed(net, value, shape, [along]) if options.Reverse() else value


@converts("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def _resized(net: Network, op: Operator) -> Value:
    """Resize stored values: the reference copies them, without rescaling to the output's scale."""
    linear = net.get_op_code_str(op) == "RESIZE_BILINEAR"
    options = net.options(op, tflite.ResizeBilinearOptions if linear else tflite.ResizeNearestNeighborOptions)
    if options.AlignCorners() and options.HalfPixelCenters():
        return _resize_nearest_by_both(net, linear, op)
    source, output = net.get_input_tensors(op)[0], net.get_output_tensors(op)[0]
    own = output.qnn_params
    try:
        output.qnn_params = source.qnn_params
        return net._convert_resize("linear" if linear else "nearest_neighbor", op)
    finally:
        output.qnn_params = own


def _resize_nearest_by_both(net: Network, linear: bool, op: Operator) -> Value:
    """Resize nearest with align_corners and half_pixel_centers, absent from Relax: gather rows and columns."""
    if linear:
        raise InvalidForm("align_corners and half_pixel_centers at once")
    data, size = net.get_input_tensors(op)
    value, shape = net.get_tensor_expr(data), net.shape(data)
    for axis, extent in zip((1, 2), net.ints(size), strict=True):
        sources = nearest_sources(Grid(shape[axis], extent, align_corners=True, half_pixel=True))
        places = relax.const(sources.astype("int32"), "int32")
        value = net.bb.emit(relax.op.take(value, places, axis=axis, mode="fast"))
    return value


@converts("TOPK_V2")
def _top_k(net: Network, op: Operator) -> Value:
    """Return largest values and indices along the last axis, first among equals, in the reference's order."""
    data, count = net.get_input_tensors(op)
    (k,), shape = net.ints(count), net.shape(data)
    if not shape or not 0 < k <= shape[-1]:
        raise InvalidForm(f"k of {k} for {shape}")
    declared = net.get_tensor_type_str(net.get_output_tensors(op)[1].tensor.Type())
    return emit_top_k(net.bb, net.get_tensor_expr(data), k, declared)


@converts("GELU")
def _gelu(net: Network, op: Operator) -> Value:
    """Convert GELU with its option `approximate`, ignored by the importer, and in quantized form, refused there."""
    tensor = net.get_input_tensors(op)[0]
    approximate = op.BuiltinOptions() is not None and net.options(op, tflite.GeluOptions).Approximate()
    return net.stored((relax.op.nn.gelu_tanh if approximate else relax.op.nn.gelu)(net.real(tensor)), op)


@converts("SQRT")
def _sqrt(net: Network, op: Operator) -> Value:
    """Convert the square root; the reference rounds a quantized root toward zero."""
    tensor, output = net.get_input_tensors(op)[0], net.get_output_tensors(op)[0]
    root = relax.op.sqrt(net.real(tensor))
    if not output.qnn_params:
        return root
    step = output.qnn_params["scale"]
    return net.quantize(relax.op.multiply(relax.op.floor(relax.op.divide(root, step)), step), output)


@converts("REVERSE_V2")
def _reverse(net: Network, op: Operator) -> Value:
    """Reverse by a strided slice with steps of -1 along all given axes, where the importer supports one; values stay
    stored.
    """
    data, axes = net.get_input_tensors(op)
    shape = net.shape(data)
    return _reversed(net, net.get_tensor_expr(data), shape, sorted({a % len(shape) for a in net.ints(axes)}))


def _reversed(net: Network, value: Value, shape: list[int], along: list[int]) -> Value:
    """Reverse a value of `shape` along axes."""
    return relax.op.strided_slice(
        value,
        axes=along,
        begin=[shape[a] - 1 for a in along],
        end=[-shape[a] - 1 for a in along],
        strides=[-1] * len(along),
    )


@converts("SOFTMAX")
def _softmax(net: Network, op: Operator) -> Value:
    """Multiply the logits by beta, which the importer drops."""
    options = net.options(op, tflite.SoftmaxOptions)
    logits = net.real(net.get_input_tensors(op)[0])
    if options.Beta() != 1.0:
        logits = relax.op.multiply(logits, relax.const(options.Beta(), "float32"))
    return net.stored(relax.op.nn.softmax(logits, axis=-1), op)


@converts("RELU_0_TO_1")
def _relu_0_to_1(net: Network, op: Operator) -> Value:
    """Clip to [0, 1]; the importer refuses quantized operators."""
    return net.stored(relax.op.clip(net.real(net.get_input_tensors(op)[0]), min=0, max=1), op)


@converts("PAD", "PADV2")
def _pad(net: Network, op: Operator) -> Value:
    """PAD fills with the output's zero point, which may differ from the input's; PADV2 with the stored constant."""
    inputs = net.get_input_tensors(op)
    output = net.get_output_tensors(op)[0]
    value = 0.0
    if len(inputs) == 3 and inputs[2].tensor_idx >= 0:
        value = float(net.get_tensor_value(inputs[2]).reshape(-1)[0])
    elif output.qnn_params:
        value = float(zero_point_of(output))
    widths = [int(v) for v in net.get_tensor_value(inputs[1]).reshape(-1)]
    return relax.op.nn.pad(net.get_tensor_expr(inputs[0]), pad_width=widths, pad_value=value)


@converts("AVERAGE_POOL_2D")
def _average_pool(net: Network, op: Operator) -> Value:
    """Average stored values, regardless of scales, without padding, like the reference."""
    return net.convert_pool2d(op, pool_type="average")


@converts("PRELU")
def _prelu(net: Network, op: Operator) -> Value:
    """Convert slopes per channel to `prelu`; the importer flattens all slopes and refuses quantized operators."""
    x, slopes = net.get_input_tensors(op)
    shape, given = net.shape(x), net.shape(slopes)
    data, alpha = net.real(x), net.real(slopes)
    if int(np.prod(given)) == given[-1] == shape[-1]:
        result = relax.op.nn.prelu(data, relax.op.reshape(alpha, [shape[-1]]), axis=len(shape) - 1)
    else:
        result = relax.op.add(
            relax.op.nn.relu(data), relax.op.multiply(alpha, relax.op.minimum(data, relax.const(0.0, "float32")))
        )
    return net.stored(result, op)
