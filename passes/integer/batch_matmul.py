"""Products of two stored tensors of any batch: `acc = sum (a - az)(b - bz)`, MBQM, int16 by one rounding in 64 bits.

Either side may be constant. The multiplier is prepared as the reference does: the product of the scales in float32.
Fully connected layers, which the reference computes in double, are `dense`'s.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered
from tvm_cascade.passes.integer.fixed_point import (
    INT32_MAX,
    i32,
    once_rounded,
    quantize_multipliers,
    te_clamp,
    te_rescale_channel,
    te_rescale_once,
)
from tvm_cascade.passes.integer.island import STORED_TYPES, Island, Quantized
from tvm_cascade.passes.integer.untyped import Call, Index, Scalar, Tensor, Value, te
from tvm_cascade.schedules.kernels.spec import Attributes


def lower_batch_matmul(island: Island, core: Call, bias: np.ndarray | None = None) -> Value:
    """Product `core`, `[.., n, k] x [.., k, m]`, batches broadcast, plus a constant bias of stored int32."""
    a, b, out = _operand(island, core, 0), _operand(island, core, 1), island.output
    if a.constant is not None and b.constant is not None:
        raise NotLowered("both operands are constant")
    rank = len(out.shape)
    if rank < 2 or len(a.shape) < 2 or len(b.shape) < 2:
        raise NotLowered("a product with a vector")
    columns, depth = out.shape[-1], a.shape[-1]
    scales = np.broadcast_to(b.scale.reshape(-1), columns)
    real = (a.step * scales).astype("float64") / np.float64(out.scale)
    multiplier, shift = quantize_multipliers(real)
    bias = np.zeros(columns, "int32") if bias is None else bias.reshape(-1).astype("int32")
    bound = depth * a.reach * b.reach + int(np.abs(bias.astype("int64")).max())
    is_int16 = a.dtype == "int16"
    if shift.max() > (14 if is_int16 else 30) or (not is_int16 and bound > INT32_MAX):
        raise NotLowered("a product whose sum or multiplier exceeds 32 bits")
    swapped = a.constant is not None

    def compute(p: Tensor, q: Tensor, c: Tensor, m: Tensor, s: Tensor) -> Tensor:
        x, y = (q, p) if swapped else (p, q)
        rc = te.reduce_axis((0, depth), "rc")

        def total(*index: Index) -> Scalar:
            left = x[(*_batch(x, index), index[-2], rc)].astype("int32") - i32(a.zero_point)
            right = y[(*_batch(y, index), rc, index[-1])].astype("int32") - i32(b.zero_point)
            return te.sum((left * right).astype("int64" if is_int16 else "int32"), axis=[rc])

        acc = te.compute(out.shape, total, name="batch_matmul_acc")

        def finish(*index: Index) -> Scalar:
            column = index[-1]
            if is_int16:
                scaled = te_rescale_once(acc[index] + c[column].astype("int64"), m[column], s[column])
            else:
                scaled = te_rescale_channel(acc[index] + c[column], m[column], s[column], shift, bound)
            return te_clamp(scaled + i32(out.zero_point), out.lo, out.hi, out.dtype)

        return te.compute(out.shape, finish, name="batch_matmul")

    constants = [k for k in (a.constant, b.constant) if k is not None]
    return island.emitter.call(
        "batch_matmul",
        compute,
        [q.value for q in (a, b) if q.constant is None],
        [*constants, bias, once_rounded(multiplier) if is_int16 else multiplier, shift],
        Attributes(
            input_zero_points=(a.zero_point, b.zero_point),
            output_zero_point=out.zero_point,
            clamp=(out.lo, out.hi),
            constant_first=swapped,
        ),
    )


def _operand(island: Island, core: Call, index: int) -> Quantized:
    found = island.reader.dequantized(core.args[index])
    if found is None or found.dtype not in STORED_TYPES:
        raise NotLowered(f"operand {index} of a product is not dequantized from integers")
    return found


def _batch(x: Tensor, index: tuple[Index, ...]) -> list[Index | int]:
    """The batch index of an operand, ones broadcast."""
    own = index[len(index) - len(x.shape) : -2]
    return [0 if int(d) == 1 else i for d, i in zip(x.shape[:-2], own, strict=True)]
