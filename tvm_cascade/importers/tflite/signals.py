"""Converters for Fourier transforms and complex results.

A complex tensor is a float tensor with one more axis, the last, for real and imaginary parts.
"""

from __future__ import annotations

from math import prod

from tvm_cascade.importers.tflite.network import Network, Operator, converts
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.passes.fourier import Transform, is_fast, transformed
from tvm_cascade.passes.main_rewriting import Value, relax, shape_of


@converts("RFFT2D")
def _real_transform(net: Network, op: Operator) -> Value:
    """Transform rows, with `fft_length` for a single row, like `tf.signal.rfft` and `stft`."""
    data, lengths = net.get_input_tensors(op)
    rows, length = net.ints(lengths)
    shape = net.shape(data)
    if rows != 1 or shape[-2] != 1:
        raise UnsupportedForm(f"RFFT2D over {rows} rows of {shape[-2]}: transforms of one row alone are computed here")
    if not is_fast(length):
        raise InvalidForm(f"RFFT2D of {length} points, which LiteRT refuses: give a power of two")
    how = Transform(length, real=True)
    frames = net.bb.emit(relax.op.reshape(net.get_tensor_expr(data), [1, prod(shape[:-1]), shape[-1], 1]))
    return relax.op.reshape(transformed(net.bb, frames, how), [*shape[:-1], how.results, 2])


@converts("COMPLEX_ABS")
def _size(net: Network, op: Operator) -> Value:
    """Compute the magnitude: the root of both parts' squared sum."""
    value = net.get_tensor_expr(net.get_input_tensors(op)[0])
    return relax.op.sqrt(net.bb.emit(relax.op.sum(net.bb.emit(relax.op.multiply(value, value)), axis=-1)))


@converts("REAL", "IMAG")
def _part(net: Network, op: Operator) -> Value:
    """Return the real or the imaginary parts."""
    value = net.get_tensor_expr(net.get_input_tensors(op)[0])
    part = int(net.get_op_code_str(op) == "IMAG")
    shape, last = shape_of(value), len(shape_of(value)) - 1
    taken = net.bb.emit(relax.op.strided_slice(value, axes=[last], begin=[part], end=[part + 1]))
    return relax.op.reshape(taken, shape[:-1])
