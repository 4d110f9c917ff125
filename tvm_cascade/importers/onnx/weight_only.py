"""Convert ONNX's small weights beside float activations: block-quantized, 8-bit floats, and MatMulNBits.

Relax's importer reads none. Each becomes a difference and a product on stored numbers, kept small by
`passes.stored_constants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax, shape_of

Attributes = dict[str, Any]


def dequantize_blocks(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert DequantizeLinear with `block_size`, or on 8-bit floats, which are float32 here; None for other forms."""
    size = int(attrs.get("block_size", 0))
    if not size:
        by_integers = inputs[2] is not None and inputs[2].ty.dtype != "float32"  # no file's zero point for such floats
        return None if inputs[0].ty.dtype != "float32" or by_integers else _of_floats(bb, inputs, attrs)
    scales, zeros = constant_of(inputs[1]), None if inputs[2] is None else constant_of(inputs[2])
    if scales is None or (zeros is None and inputs[2] is not None):
        raise NotImplementedError("blocks whose scales are computed")
    shape = shape_of(inputs[0])
    axis = int(attrs.get("axis", 1)) % len(shape)
    offsets = None if zeros is None else _spread(zeros, size, axis, shape[axis])
    return _real(bb, inputs[0], _spread(scales, size, axis, shape[axis]), offsets)


def _of_floats(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Return floats times their scale, per tensor or along an axis."""
    scales, zeros = constant_of(inputs[1]), None if inputs[2] is None else constant_of(inputs[2])
    if scales is None or constant_of(inputs[0]) is None or (inputs[2] is not None and (zeros is None or zeros.any())):
        raise NotImplementedError("floats of 8 bits that are computed, or have a zero point")
    shape = [1] * len(shape_of(inputs[0]))
    if scales.size > 1:
        shape[int(attrs.get("axis", 1))] = -1
    return _real(bb, inputs[0], scales.reshape(shape), None)


def matmul_by_bits(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert ONNX Runtime's MatMulNBits: weights `[N][blocks of K][bytes]`, lowest bits first."""
    x, packed, scales, zeros, order, bias = (inputs[i] for i in range(6))  # None for those left out
    depth, units, bits, size = (int(attrs.get(n, d)) for n, d in (("K", 0), ("N", 0), ("bits", 4), ("block_size", 0)))
    data, factors = constant_of(packed), constant_of(scales)
    if data is None or factors is None or order is not None or bits not in (2, 4, 8) or not size:
        raise NotImplementedError("weights that are computed or in another order, or of other than 2, 4 or 8 bits")
    blocks = -(-depth // size)
    values = _apart(data.reshape(units, -1), bits)[:, : blocks * size][:, :depth]
    offsets = np.full((units, blocks), 1 << (bits - 1), np.float32)
    if zeros is not None:
        given = constant_of(zeros)
        if given is None:
            raise NotImplementedError("zero points that are computed")
        if given.dtype == np.uint8:
            given = _apart(given.reshape(units, -1), bits)[:, :blocks]
        offsets = given.astype(np.float32).reshape(units, blocks)
    wide = [_spread(a, size, 1, depth) for a in (factors.astype(np.float32).reshape(units, blocks), offsets)]
    real = _real(bb, constant(values), wide[0], wide[1])
    made = bb.normalize(relax.op.matmul(x, bb.normalize(relax.op.permute_dims(real))))
    return made if bias is None else relax.op.add(made, bias)


def _real(bb: Any, stored: Value, scales: np.ndarray, zeros: np.ndarray | None) -> Value:
    """Return `(stored - zeros) * scales`."""
    value = stored if stored.ty.dtype == "float32" else bb.emit(relax.op.astype(stored, "float32"))
    if zeros is not None:
        value = bb.emit(relax.op.subtract(value, constant(zeros.astype(np.float32))))
    return bb.emit(relax.op.multiply(value, constant(scales.astype(np.float32))))


def _spread(numbers: np.ndarray, size: int, axis: int, length: int) -> np.ndarray:
    """Repeat each block's number for its `size` elements along an axis with `length` elements."""
    return np.repeat(numbers, size, axis).take(range(length), axis)


def _apart(data: np.ndarray, bits: int) -> np.ndarray:
    """Unpack bytes to unsigned numbers along the last axis."""
    parts = (data[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    return parts.reshape(*data.shape[:-1], -1)
