"""Lower fully connected layers and batch matrix products, in integer arithmetic.

The reference computes a fully connected layer as `rha(double(acc) * e)` with `e = D(sx) D(sw) / D(so)`. The form here
is `sign(acc) * ((|acc| m + 2^(k-1)) >> k)` in 64 bits with `k = 31 - s`: a single rounding, half away from zero. Both
are monotone in `acc`, so equality around each output step implies equality everywhere; `_proved` checks that for every
channel at compile time. If a 31-bit multiplier fails, the double's 53 bits serve, in two products; if these fail too,
the layer is not lowered.

TensorFlow Lite Micro and CMSIS-NN rescale like a convolution (`Task.dense_twice`): MBQM, or for int16 one rounding by a
16-bit multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer.channel_scaling import ChannelScaling, channel_bias
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, i64, quantize_multipliers, rounded
from tvm_cascade.passes.integer.task import Output, Task, as_signed, weight_type
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.operator import Operator, Quantized, computed, constant, quantized
from tvm_cascade.program.operator import Value as Held
from tvm_cascade.program.quant import STORED_TYPES, NotLowered

_EXACT_BITS = 53  # bits of a double's mantissa
_LOW_BITS = 25  # low bits of the mantissa, multiplied separately so that products with 35-bit sums fit 64 bits


def lower_biased(task: Task, bias: np.ndarray | None) -> Value:
    """Lowers the product, plus a constant int32 bias or None: fully connected (`[n, depth] x [depth, units]`), or else
    a batch matrix product. Of a fully connected layer with computed weights only the rounding is its own."""
    if not _constant_weights(task.operator):
        return _lower_batch_matmul(task, bias)
    x, weights, data = operands_of(task.operator)
    weights, data = as_signed(weights, data)
    out = task.output
    units, depth = data.shape
    once = x.dtype == "int16"
    bias = channel_bias(bias, units)
    scales = np.broadcast_to(weights.scale.reshape(-1), units).astype("float64")
    real = np.float64(x.step) * scales / np.float64(out.scale)
    total = np.abs(data.astype("int64") - weights.zero_point).sum(1) * x.reach + np.abs(bias.astype("int64"))
    wide = int(total.max()) > INT32_MAX
    rounding = {"rounding": "once, half away from zero"}
    if task.dense_twice and not out.once and (once or not wide):
        scaling, rounding = ChannelScaling.of(out, real, bias, int(total.max()), once), {}
        sums = "int64" if wide else "int32"
    elif out.once and not wide:
        scaling, sums = ChannelScaling.of(out, real, bias, int(total.max()), once=False), "int32"
    else:
        scaling = RoundedOnce.of(out, real, bias, total, wide=x.dtype == "int16" and wide)
        sums = scaling.sums

    def compute(a: Tensor, w: Tensor, *constants: Tensor) -> Tensor:
        rc = te.reduce_axis((0, depth), "rc")

        def product(n: Index, c: Index) -> Scalar:
            return te.sum((x.centred(a[n, rc]) * weights.centred(w[c, rc])).astype(sums), axis=[rc])

        acc = te.compute(out.shape, product, name="dense_acc")
        return te.compute(out.shape, lambda n, c: scaling.stored(acc[n, c], c, *constants), name="dense")

    return task.emitter.call(
        "dense",
        compute,
        [x.source, data, *scaling.constants],
        input_zero_point=x.zero_point,
        weight_zero_point=weights.zero_point,
        **weight_type(weights),
        **{**rounding, **out.described},
        kernel_layout="OI",
    )


@dataclass(frozen=True, slots=True)
class RoundedOnce:
    """The stored output of a fully connected layer, `clamp(rha((sum + bias) * real) + zero_point)`."""

    output: Output
    bias: np.ndarray  # int32, one element per channel, like the next two
    multiplier: np.ndarray  # int64 where 31 bits do not equal the double form
    shift: np.ndarray
    limit: int  # on the magnitude of every sum, or where every channel's output has saturated
    wide: bool  # sums are of 64 bits

    @classmethod
    def of(cls, output: Output, real: np.ndarray, bias: np.ndarray, total: np.ndarray, wide: bool) -> RoundedOnce:
        """Return the scaling by real multipliers (float64), one per channel, for sums up to magnitude `total`.

        Raises
        ------
        NotLowered
            If no fixed-point form equals the double form.
        """
        if wide and float((real * total).max()) >= INT32_MAX - 512:
            raise NotLowered("its output scale is so small that the reference overflows")
        bound = np.minimum(total, _saturating(real, output) if wide else INT32_MAX)
        multiplier, shift = proved_multipliers(real, bound, output)
        if wide and (int(bound.max()) >> 35 or int(shift.max()) > 30 - _LOW_BITS):
            raise NotLowered("a layer of int16 whose scaled sums exceed 64 bits")
        return cls(output, bias, multiplier, shift, int(bound.max()), wide)

    @property
    def sums(self) -> str:
        """Return the sums' type."""
        return "int64" if self.wide else "int32"

    @property
    def constants(self) -> list[np.ndarray]:
        """Return bias, multipliers and shifts, in the order in which `stored` takes their placeholders."""
        return [self.bias, self.multiplier, self.shift]

    def stored(self, total: Scalar, channel: Index, b: Tensor, m: Tensor, s: Tensor) -> Scalar:
        """Return the stored output for the sum `total` in `channel`; `b`, `m`, `s` are the placeholders of `constants`."""
        total = total.astype(self.sums) + b[channel].astype(self.sums)
        if self.wide:
            total = tirx.max(tirx.min(total, i64(self.limit)), i64(-self.limit))
        in_two_parts = self.multiplier.dtype == np.int64 or self.wide
        return self.output.stored(_te_round_once(total, m[channel], s[channel], in_two_parts, self.wide))


def proved_multipliers(real: np.ndarray, bound: np.ndarray, out: Output) -> tuple[np.ndarray, np.ndarray]:
    """Return multipliers (int32, or int64 for more bits) and shifts, proved equal to the double form.

    Parameters
    ----------
    real : float64 array
        The real multiplier of every channel.
    bound : int64 array
        Bound on every channel's accumulator.
    out : Output
        Its zero point and clamp determine at which steps the forms are compared.

    Raises
    ------
    NotLowered
        If no multiplier tried equals the double form.
    """
    if float((real * bound).max()) >= INT32_MAX - 512:
        raise NotLowered("its output scale is so small that the reference overflows")
    multiplier, shift = quantize_multipliers(real)
    if shift.max() > 30:
        raise NotLowered(f"the scales multiply to {real.max():g}")
    if _proved(real, multiplier, shift, bound, out):
        return multiplier, shift
    fraction, exponent = np.frexp(real)
    vanished = multiplier == 0
    exact = np.where(vanished, 0, fraction * float(1 << _EXACT_BITS)).astype("int64")
    shift = np.where(vanished, 0, exponent - (_EXACT_BITS - 31)).astype("int32")
    if _proved(real, exact, shift, bound, out):
        return exact, shift
    raise NotLowered("no fixed-point multiplier equals the reference's double arithmetic")


def _proved(real: np.ndarray, m: np.ndarray, s: np.ndarray, bound: np.ndarray, out: Output) -> bool:
    """Return True if fixed point and double give equal outputs for every accumulator in `[-bound, bound]`, in every
    channel.

    Both are monotone in the accumulator, so a comparison at output changes is enough. For every output value v, seven
    accumulators around the first real product rounding to v are compared, and the change to v has to lie within these
    seven.
    """
    steps = np.arange(out.lo - out.zero_point, out.hi - out.zero_point + 2, dtype="int64")
    limits: dict[tuple[float, int, int], int] = {}
    for *key, limit in zip(real.tolist(), m.tolist(), s.tolist(), bound.tolist(), strict=True):
        limits[key[0], key[1], key[2]] = max(limit, limits.get((key[0], key[1], key[2]), 0))
    for (e, mult, shift), limit in limits.items():
        if mult == 0:
            if e * limit >= 0.5:
                return False
            continue
        middle = np.ceil((steps - 0.5) / e)
        acc = (middle[:, None] + np.arange(-3, 4)).clip(-limit, limit).astype("int64")
        double = rounded(acc.astype("float64") * e).astype("int64")
        fixed = round_once(acc, mult, shift)
        taken_before, taken_after = double[:, 0] < steps, double[:, -1] >= steps
        inside = (np.abs(middle) + 3) <= limit
        if np.any(double != fixed) or not np.all((taken_before & taken_after) | ~inside):
            return False
    return True


def round_once(acc: np.ndarray, m: int, s: int) -> np.ndarray:
    """Compute `rha(acc * m * 2^(s - 31))` on an int64 array, like `_te_round_once`."""
    sign = acc >> 63
    if m >> 31 == 0 and int(np.abs(acc).max(initial=0)) >> 31 == 0:  # the sum below is the same, in one product
        return (acc * m + (1 << (30 - s)) + sign) >> (31 - s)
    low = (acc * (m & ((1 << _LOW_BITS) - 1)) + sign) >> _LOW_BITS
    up = 30 - s - _LOW_BITS
    return (acc * (m >> _LOW_BITS) + low + (1 << up)) >> (up + 1)


def _te_round_once(acc: Scalar, m: Scalar, s: Scalar, in_two_parts: bool, wide: bool) -> Scalar:
    """Compute `rha(acc * m * 2^(s - 31))` as int32; shifts round down, so negative sums add one less than half.

    `in_two_parts` splits 53-bit multipliers, `wide` is for sums beyond 32 bits.
    """
    sign = acc >> i64(63) if wide else (acc >> i32(31)).astype("int64")
    acc = acc.astype("int64")
    up = i64(30) - s.astype("int64")
    m = m.astype("int64")
    if not in_two_parts:
        return ((acc * m + (i64(1) << up) + sign) >> (up + i64(1))).astype("int32")
    low = (acc * (m & i64((1 << _LOW_BITS) - 1)) + sign) >> i64(_LOW_BITS)
    up = up - i64(_LOW_BITS)
    return ((acc * (m >> i64(_LOW_BITS)) + low + (i64(1) << up)) >> (up + i64(1))).astype("int32")


def _constant_weights(operator: Operator) -> bool:
    """Return True for the product of a rank-2 activation and a constant matrix."""
    stored = operator.operands[1]
    while not isinstance(stored, Held) or stored.producer is not None:
        turned = stored.producer if isinstance(stored, Held) else stored
        if not isinstance(turned, Operator) or (turned.kind, turned.quant) != ("permute_dims", None):
            return False
        stored = turned.operands[0]
    return stored.is_constant and len(stored.shape) == 2 and len(operator.value(0).shape) == 2


def operands_of(operator: Operator) -> tuple[Quantized, Quantized, np.ndarray]:
    """Return the activation (rank 2) and the weights of a fully connected layer, and the weights' data, [out, in].

    Raises `NotLowered` unless both are dequantized from integers, the weights from constants by one scale or one an output.
    """
    x, weights = (quantized(o) for o in operator.operands[:2])
    if x is None or weights is None:
        raise NotLowered("its operands are not dequantized from integers")
    if weights.scale.size > 1 and weights.quant.axis % 2 != 1:
        raise NotLowered("weights without one scale an output")
    turned = computed(weights.producer, "permute_dims")
    data = weights.constant if turned is None else constant(turned.operands[0])
    if data is None or data.ndim != 2 or len(x.shape) != 2 or x.is_constant:
        raise NotLowered("its weights are not a constant matrix of integers")
    return x, weights, np.ascontiguousarray(data.T if turned is None else data)


def _saturating(real: np.ndarray, out: Output) -> np.ndarray:
    """Return for every channel the least accumulator magnitude with a saturated output (or a bound above)."""
    reach = max(abs(out.lo - out.zero_point), abs(out.hi - out.zero_point)) + 2
    return np.minimum(np.ceil(reach / real), 2.0**52).astype("int64")


def _lower_batch_matmul(task: Task, bias: np.ndarray | None) -> Value:
    """Lower a batch matrix product `[.., n, k] x [.., k, m]`, batches broadcast, plus a constant int32 bias or None.

    `acc = sum (a - az)(b - bz)`, then MBQM; for int16 a single rounding in 64 bits. Either operand may be constant.
    Like in the reference, the multiplier comes from the scales' product in float32.
    """
    a, b, out = _batch_operand(task.operator, 0), _batch_operand(task.operator, 1), task.output
    if len(out.shape) < 2 or len(a.shape) < 2 or len(b.shape) < 2:
        raise NotLowered("a product with a vector")
    columns, depth = out.shape[-1], a.shape[-1]
    added = channel_bias(bias, columns)
    bound = depth * a.reach * b.reach + int(np.abs(added.astype("int64")).max())
    is_int16 = a.dtype == "int16"
    if not is_int16 and bound > INT32_MAX:
        raise NotLowered("a product whose sum exceeds 32 bits")
    of_matrices = max(len(a.shape), len(b.shape)) == 2 and not task.real
    scaling = _scaling(a, b, out, added, bound, fully_connected=of_matrices and not task.dense_twice)

    def compute(x: Tensor, y: Tensor, *constants: Tensor) -> Tensor:
        rc = te.reduce_axis((0, depth), "rc")

        def total(*index: Index) -> Scalar:
            left = a.centred(x[(*_batch(x, index), index[-2], rc)])
            right = b.centred(y[(*_batch(y, index), rc, index[-1])])
            return te.sum((left * right).astype("int64" if is_int16 else "int32"), axis=[rc])

        acc = te.compute(out.shape, total, name="batch_matmul_acc")
        return te.compute(out.shape, lambda *i: scaling.stored(acc[i], i[-1], *constants), name="batch_matmul")

    return task.emitter.call(
        "batch_matmul",
        compute,
        [a.operand, b.operand, *scaling.constants],
        input_zero_points=(a.zero_point, b.zero_point),
        **out.described,
        constant_first=a.constant is not None,
    )


def _scaling(
    a: Quantized, b: Quantized, out: Output, bias: np.ndarray, bound: int, fully_connected: bool
) -> ChannelScaling | RoundedOnce:
    """Return the rescaling for sums of products, in a fully connected layer or a batch matrix product."""
    scales = np.broadcast_to(b.scale.reshape(-1), bias.size)
    if fully_connected:
        real = np.float64(a.step) * scales.astype("float64") / np.float64(out.scale)
        return RoundedOnce.of(out, real, bias, np.full(bias.size, bound, "int64"), wide=bound > INT32_MAX)
    product = np.float64(a.step) * scales if out.once else a.step * scales
    real = product.astype("float64") / np.float64(out.scale)
    return ChannelScaling.of(out, real, bias, bound, a.dtype == "int16")


def _batch_operand(operator: Operator, index: int) -> Quantized:
    operand = quantized(operator.operands[index])
    if operand is None or operand.dtype not in STORED_TYPES:
        raise NotLowered(f"operand {index} of a product is not dequantized from integers")
    if operand.scale.size > 1 and (index == 0 or operand.quant.axis % len(operand.shape) != len(operand.shape) - 1):
        raise NotLowered("a product without one scale an output")
    return operand


def _batch(x: Tensor, index: tuple[Index, ...]) -> list[Index | int]:
    """Return the batch indices into operand `x` for an output index; broadcast axes of extent 1."""
    own = index[len(index) - len(x.shape) : -2]
    return [0 if int(d) == 1 else i for d, i in zip(x.shape[:-2], own, strict=True)]
