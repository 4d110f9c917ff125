"""Converters for TRANSPOSE_CONV and FULLY_CONNECTED, with shapes beyond Relax's importer."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite.blocks import blocked_reals
from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts, scale_of, zero_point_of
from tvm_cascade.importers.tflite.site import UnsupportedForm
from tvm_cascade.importers.tflite.weights import in_blocks
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import Value, relax


@converts("TRANSPOSE_CONV")
def _transpose_conv(net: Network, op: Operator) -> Value:
    """Convert a transposed convolution with the output size from its operand, or from the file if computed; the
    importer derives it from the padding alone.

    Float convolutions are emitted in NCHW, the only layout Relax legalizes.
    """
    inputs, output = net.get_input_tensors(op), net.get_output_tensors(op)[0]
    options = net.options(op, tflite.TransposeConvOptions)
    weights, x = inputs[1], inputs[2]
    if net.has_expr(weights.tensor_idx):
        raise UnsupportedForm("TRANSPOSE_CONV with computed weights")
    declared = net.shape(output)
    known = net.known_shape(inputs[0], "output shape (input 0)")
    shape = declared if known is None and len(declared) == 4 else net.ints(inputs[0])
    size, extents = net.shape(x)[1:3], shape[1:3]
    kernel = net.shape(weights)[1:3]
    strides = [options.StrideH(), options.StrideW()]
    padding, extra = _transposed_padding(size, extents, kernel, strides, options.Padding() == tflite.Padding.SAME)
    data = net.get_tensor_value(weights).transpose(3, 0, 1, 2)
    w = relax.const(np.ascontiguousarray(data), str(data.dtype))
    value = net.get_tensor_expr(x)
    window = {"strides": strides, "padding": padding, "output_padding": extra, "kernel_layout": "IOHW"}
    if x.qnn_params:
        params: Any = weights.qnn_params
        scaled = Stored(w, params["scale"], params["zero_point"], axis=1 if data.ndim else 0).reals
        result = relax.op.nn.conv2d_transpose(net.real(x, value), scaled, data_layout="NHWC", **window)
    else:
        planes = relax.op.nn.conv2d_transpose(relax.op.permute_dims(value, [0, 3, 1, 2]), w, **window)
        result = relax.op.permute_dims(planes, [0, 2, 3, 1])
    if len(inputs) == 4 and inputs[3].tensor_idx >= 0:
        result = relax.op.add(result, net.real(inputs[3]))
    return _activated(net, result, output, options.FusedActivationFunction())


def _activated(net: Network, value: Value, output: stock.TensorWrapper, activation: int) -> Value:
    """Return a float result with its fused activation, quantized if `output` is."""
    if not output.qnn_params:
        return net.convert_fused_activation_function(value, activation)
    return net.convert_qnn_fused_activation_function(
        net.quantize(value, output),
        activation,
        float(scale_of(output)),
        zero_point_of(output),
        net.get_tensor_type_str(output.tensor.Type()),
    )


def _has_small_bias(inputs: list[Any]) -> bool:
    """Return True for int16 data with a 32-bit bias."""
    bias = inputs[2] if len(inputs) > 2 and inputs[2].tensor_idx >= 0 else None
    types = tflite.TensorType
    return bias is not None and inputs[0].tensor.Type() == types.INT16 and bias.tensor.Type() == types.INT32


@converts("FULLY_CONNECTED")
def _fully_connected(net: Network, op: Operator) -> Value:
    """Flatten the input to [-1, K] and give the result its declared shape, like TFLite; the importer fails on rank 4
    and assumes keep_num_dims.
    """
    inputs = net.get_input_tensors(op)
    if inputs[1].tensor_idx < 0 or len(net.shape(inputs[1])) != 2:
        raise UnsupportedForm("FULLY_CONNECTED with weights that are no matrix")
    if net.variables.like and _has_small_bias(inputs):
        raise UnsupportedForm("FULLY_CONNECTED of int16 with a bias of 32 bits, under --like: its rounding is another")
    units, depth = net.shape(inputs[1])
    shape = net.shape(inputs[0])
    flat = [int(np.prod(shape)) // depth, depth]
    if in_blocks(inputs[1].tensor):
        result = _blocked(net, op, flat)
    elif shape == flat:
        result = net.convert_fully_connected(op)
    else:  # meanwhile its input is bound to a reshape to [-1, K]
        name = stock.get_tensor_name(net.subgraph, inputs[0].tensor_idx)
        plain = net.get_tensor_expr(inputs[0])
        net.exp_tab.set_expr(name, net.bb.emit(relax.op.reshape(plain, flat)), force_override=True)
        try:
            result = net.convert_fully_connected(op)
        finally:
            net.exp_tab.set_expr(name, plain, force_override=True)
    declared = net.shape(net.get_output_tensors(op)[0])
    known = declared and int(np.prod(declared)) == flat[0] * units
    if not known and net.options(op, tflite.FullyConnectedOptions).KeepNumDims():
        declared, known = [*shape[:-1], units], True
    if known and declared != [flat[0], units]:
        result = relax.op.reshape(result, declared)
    return result


def _blocked(net: Network, op: Operator, flat: list[int]) -> Value:
    """Multiply float rows by weights with a scale for each block."""
    x, weights, *biases = net.get_input_tensors(op)
    rows = net.bb.emit(relax.op.reshape(net.get_tensor_expr(x), flat))
    turned = net.bb.emit(relax.op.permute_dims(blocked_reals(net, weights)))
    result = relax.op.matmul(rows, turned)
    for bias in biases:
        result = relax.op.add(result, net.get_tensor_expr(bias)) if bias.tensor_idx >= 0 else result
    activation = net.options(op, tflite.FullyConnectedOptions).FusedActivationFunction()
    return net.bb.emit(net.convert_fused_activation_function(net.bb.emit(result), activation))


def _transposed_padding(
    size: list[int], extents: list[int], kernel: list[int], strides: list[int], same: bool
) -> tuple[list[int], list[int]]:
    """Return padding [t, l, b, r] and output padding [rows, columns] for a transposed convolution from `size` to
    `extents`.
    """
    before, after, extra = [], [], []
    for n, m, k, s in zip(size, extents, kernel, strides, strict=True):
        total = max((-(-m // s) - 1) * s + k - m, 0) if same else 0
        before.append(total // 2)
        after.append(total - total // 2)
        left = m - ((n - 1) * s + k - total)
        after[-1] += max(-left, 0)  # what the declared size cuts off
        extra.append(max(left, 0))
    return [*before, *after], extra
