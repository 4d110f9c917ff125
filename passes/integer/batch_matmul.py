"""Products of two stored tensors of any batch: `acc = sum (a - az)(b - bz)`, MBQM, int16 by one rounding in 64 bits.

Either side may be constant. The multiplier is prepared as the reference does: the product of the scales in float32.
Fully connected layers, which the reference computes in double, are `dense`'s.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.channel_scaling import ChannelScaling, channel_bias
from tvm_cascade.passes.integer.expressions import NotLowered
from tvm_cascade.passes.integer.fixed_point import INT32_MAX
from tvm_cascade.passes.integer.island import STORED_TYPES, Island, Quantized
from tvm_cascade.passes.integer.untyped import Call, Index, Scalar, Tensor, Value, te


def lower_batch_matmul(island: Island, core: Call, bias: np.ndarray | None = None) -> Value:
    """Product `core`, `[.., n, k] x [.., k, m]`, batches broadcast, plus a constant bias of stored int32."""
    a, b, out = _operand(island, core, 0), _operand(island, core, 1), island.output
    if len(out.shape) < 2 or len(a.shape) < 2 or len(b.shape) < 2:
        raise NotLowered("a product with a vector")
    columns, depth = out.shape[-1], a.shape[-1]
    real = (a.step * np.broadcast_to(b.scale.reshape(-1), columns)).astype("float64") / np.float64(out.scale)
    added = channel_bias(bias, columns)
    bound = depth * a.reach * b.reach + int(np.abs(added.astype("int64")).max())
    is_int16 = a.dtype == "int16"
    if not is_int16 and bound > INT32_MAX:
        raise NotLowered("a product whose sum exceeds 32 bits")
    scaling = ChannelScaling.of(out, real, added, bound, is_int16)

    def compute(x: Tensor, y: Tensor, *constants: Tensor) -> Tensor:
        rc = te.reduce_axis((0, depth), "rc")

        def total(*index: Index) -> Scalar:
            left = a.centred(x[(*_batch(x, index), index[-2], rc)])
            right = b.centred(y[(*_batch(y, index), rc, index[-1])])
            return te.sum((left * right).astype("int64" if is_int16 else "int32"), axis=[rc])

        acc = te.compute(out.shape, total, name="batch_matmul_acc")
        return te.compute(out.shape, lambda *i: scaling.stored(acc[i], i[-1], *constants), name="batch_matmul")

    return island.emitter.call(
        "batch_matmul",
        compute,
        [a.operand, b.operand, *scaling.constants],
        input_zero_points=(a.zero_point, b.zero_point),
        **out.described,
        constant_first=a.constant is not None,
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
