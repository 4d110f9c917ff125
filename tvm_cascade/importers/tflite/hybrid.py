"""Converters for hybrid operators, with float activations and int8 weights, as written by TFLite's converter without
data ("dynamic range").

The reference quantizes activations to int8 for each single operator (`passes.integer.hybrid`); so do these.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvm_cascade.importers.tflite.blocks import blocked_reals
from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts, converts_hybrid, scale_of
from tvm_cascade.importers.tflite.site import UnsupportedForm
from tvm_cascade.importers.tflite.svdf import svdf_units, svdf_weights
from tvm_cascade.importers.tflite.weights import in_blocks
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.hybrid import HybridWeights, Storing, Window, lower_conv, lower_dense, lower_stored
from tvm_cascade.passes.main_rewriting import Value, relax


def _hybrid_weights(net: Network, weights: Any, bias: Any, axis: int) -> HybridWeights:
    """Return an operator's int8 weights, with output channels along `axis`, and its bias."""
    data = _bytes(net, weights)
    scales = np.asarray(weights.qnn_params["scale"].value.numpy(), "float32").reshape(-1)
    channels = data.shape[axis]
    if scales.size > 1 and (int(weights.qnn_params["axis"]) != axis or scales.size != channels):
        raise UnsupportedForm("weights without one scale an output channel")
    if bias is None or bias.tensor_idx < 0:
        return HybridWeights(data, scales, np.zeros(channels, "float32"))
    added = None if net.has_expr(bias.tensor_idx) else np.asarray(net.get_tensor_value(bias))
    if added is None or added.dtype != np.float32 or added.size != channels:
        raise UnsupportedForm("float activations with a bias that is no float constant")
    return HybridWeights(data, scales, added.reshape(-1))


def _bytes(net: Network, weights: Any) -> np.ndarray:
    """Return a tensor's constant int8 weights with zero point 0."""
    data = None if net.has_expr(weights.tensor_idx) else np.asarray(net.get_tensor_value(weights))
    if data is None or data.dtype != np.int8 or weights.qnn_params["zero_point"].value.numpy().any():
        raise UnsupportedForm("float activations with weights that are no int8 constants of zero point 0")
    return data


@converts_hybrid("FULLY_CONNECTED")
def _hybrid_dense(net: Network, op: Operator) -> Value:
    tensors, options = net.get_input_tensors(op), net.options(op, tflite.FullyConnectedOptions)
    x, bias = tensors[0], tensors[2] if len(tensors) > 2 else None
    weights = _hybrid_weights(net, tensors[1], bias, 0)
    shape, (units, depth) = net.shape(x), weights.data.shape
    emitter = _emitter(net, op)
    rows = emitter.reshape(net.get_tensor_expr(x), [prod(shape) // depth, depth])
    made = lower_dense(emitter, lower_stored(emitter, rows, _storing(options.AsymmetricQuantizeInputs())), weights)
    result = net.convert_fused_activation_function(made, options.FusedActivationFunction())
    declared = net.shape(net.get_output_tensors(op)[0])
    if not declared or prod(declared) != prod(shape) // depth * units:
        declared = [*shape[:-1], units] if options.KeepNumDims() else [prod(shape) // depth, units]
    return relax.op.reshape(net.bb.emit(result), declared)


@converts_hybrid("BATCH_MATMUL")
def _hybrid_matmul(net: Network, op: Operator) -> Value:
    x, matrix = net.get_input_tensors(op)
    options, shape = net.options(op, tflite.BatchMatMulOptions), net.shape(x)
    data = _bytes(net, matrix)
    if options.AdjX() or prod(data.shape[:-2]) > 1 or len(shape) < data.ndim:
        raise UnsupportedForm("float activations with several matrices of int8 weights, or transposed")
    rows, columns = data.shape[-2:]
    weights = data.reshape(rows, columns) if options.AdjY() else data.reshape(rows, columns).T
    units, depth = (rows, columns) if options.AdjY() else (columns, rows)
    given = HybridWeights(np.ascontiguousarray(weights), scale_of(matrix).reshape(1), np.zeros(units, "float32"))
    emitter = _emitter(net, op)
    flat = emitter.reshape(net.get_tensor_expr(x), [prod(shape) // depth, depth])
    made = lower_dense(emitter, lower_stored(emitter, flat, _storing(options.AsymmetricQuantizeInputs())), given)
    return relax.op.reshape(made, [*shape[:-1], units])


@converts_hybrid("EMBEDDING_LOOKUP")
@converts("EMBEDDING_LOOKUP")
def _lookup(net: Network, op: Operator) -> Value:
    """Look up table rows, dequantized if only the table is quantized. (The importer swaps indices and table.)"""
    places, table = net.get_input_tensors(op)
    extent = net.shape(table)[0]
    if in_blocks(table.tensor):
        return relax.op.take(blocked_reals(net, table), net.places(places, extent), axis=0, mode="fast")
    params: Any = table.qnn_params
    quantized = bool(params) and not net.get_output_tensors(op)[0].qnn_params
    if quantized and (scales := np.asarray(params["scale"].value.numpy(), "float32")).size > 1:
        data = _bytes(net, table)
        if int(params["axis"]) != 0 or scales.size != extent:
            raise UnsupportedForm("a table without one scale a row")
        columns = [extent] + [1] * (data.ndim - 1)
        real = net.bb.emit(relax.op.astype(relax.const(data, "int8"), "float32"))
        whole = net.bb.emit(relax.op.multiply(real, relax.const(scales.reshape(columns), "float32")))
        return relax.op.take(whole, net.places(places, extent), axis=0, mode="fast")
    rows = relax.op.take(net.get_tensor_expr(table), net.places(places, extent), axis=0, mode="fast")
    if not quantized:
        return rows
    _bytes(net, table)
    real = relax.op.astype(net.bb.emit(rows), "float32")
    return relax.op.multiply(net.bb.emit(real), relax.const(scale_of(table), "float32"))


@converts_hybrid("CONV_2D", "DEPTHWISE_CONV_2D")
def _hybrid_convolution(net: Network, op: Operator) -> Value:
    depthwise = net.get_op_code_str(op) == "DEPTHWISE_CONV_2D"
    tensors = net.get_input_tensors(op)
    options = net.options(op, tflite.DepthwiseConv2DOptions if depthwise else tflite.Conv2DOptions)
    weights = _hybrid_weights(net, tensors[1], tensors[2] if len(tensors) > 2 else None, 3 if depthwise else 0)
    extents, size = net.shape(tensors[0])[1:3], weights.data.shape[1:3]
    steps = (options.StrideH(), options.StrideW()), (options.DilationHFactor(), options.DilationWFactor())
    window = Window(*steps, _padding(extents, size, *steps, options.Padding() == tflite.Padding.SAME))
    if depthwise:
        if not weights.by_channel and weights.data.shape[3] > 1:
            raise UnsupportedForm("float activations with depthwise weights of one scale")
        data = weights.data.reshape(*size, net.shape(tensors[0])[3], -1)
    else:
        data = weights.data.transpose(1, 2, 3, 0)
    scales = weights.scales
    if not depthwise and (scales == scales[0]).all():
        scales = scales[:1]  # the reference takes equal scales for one, and stores inputs around zero
    arranged = HybridWeights(np.ascontiguousarray(data), scales, weights.bias)
    emitter = _emitter(net, op)
    stored = lower_stored(emitter, net.get_tensor_expr(tensors[0]), _storing(depthwise or arranged.by_channel))
    made = lower_conv(emitter, stored, arranged, window, depthwise)
    return net.convert_fused_activation_function(made, options.FusedActivationFunction())


@converts_hybrid("SVDF")
def _hybrid_svdf(net: Network, op: Operator) -> Value:
    x, features, times, bias, state = net.get_input_tensors(op)
    options = net.options(op, tflite.SVDFOptions)
    weights, steps = svdf_weights(net, features, times, options.Rank())
    real = np.float32(1) if not times.qnn_params else scale_of(times)
    emitter, given = _emitter(net, op), _hybrid_weights(net, features, None, 0)
    stored = lower_stored(emitter, net.get_tensor_expr(x), _storing(options.AsymmetricQuantizeInputs()))
    units = len(weights) // options.Rank()
    added = np.zeros(units, "float32") if bias.tensor_idx < 0 else np.asarray(net.get_tensor_value(bias))
    made = svdf_units(net, state, lower_dense(emitter, stored, given), steps.astype("float32") * real, added)
    return net.convert_fused_activation_function(made, options.FusedActivationFunction())


def _storing(asymmetric: bool) -> Storing:
    return Storing.ASYMMETRIC if asymmetric else Storing.SYMMETRIC


def _emitter(net: Network, op: Operator) -> Emitter:
    return Emitter(net.bb, {}, net.get_op_code_str(op).lower())


def _padding(
    extents: list[int], size: tuple[int, ...], strides: tuple[int, int], dilation: tuple[int, int], same: bool
) -> tuple[int, int, int, int]:
    """Return the padding: top, left, bottom, right."""
    rows, columns = (
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) if same else 0
        for n, k, s, d in zip(extents, size, strides, dilation, strict=True)
    )
    return rows // 2, columns // 2, rows - rows // 2, columns - columns // 2
