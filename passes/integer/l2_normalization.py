"""Lower L2 normalization along a byte tensor's last axis: `x / sqrt(sum x^2)`, with output scale 1/128.

The inverse square root is the reference's: the sum is scaled by a power of four into [2^27, 2^29), then five Newton
steps in Q3.28 start from 1; a single multiplier and shift per row. Source: TFLite's `GetInvSqrtQuantizedMultiplierExp`.
"""

from __future__ import annotations

from functools import partial

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, i64
from tvm_cascade.passes.integer.rows import Row, Rows, Stage
from tvm_cascade.passes.integer.task import Output, Task, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.quant import BYTE_TYPES, NotLowered

_OUTPUT_BITS = 7  # fraction bits of the result
NEWTON_STEPS = 5
ONE, HALF_OF_THREE = 1 << 28, (1 << 28) + (1 << 27)  # Q3.28
HALF_SQRT_2 = 1518500250  # Q0.31
_LARGEST_SUM = 1 << 29  # sums from here on are divided by four first
BASE_SHIFT = 11


@lowers("l2_normalization")
def lower_l2_normalization(task: Task) -> Value:
    """Lower an L2 normalization along the last axis."""
    x, out = task.operator.quantized(0), task.output
    if x.dtype not in BYTE_TYPES or x.constant is not None or out.declared != x.declared:
        raise NotLowered("an l2 normalization of something other than stored bytes")
    unsigned = out.declared == "uint8"
    if (float(out.scale), out.zero_point) != (1 / 128, 128 if out.dtype == "uint8" else 0):
        raise NotLowered("an l2 normalization whose output has other than the reference's quantization")
    if x.shape[-1] * 255 * 255 > INT32_MAX:
        raise NotLowered(f"an l2 normalization of {x.shape[-1]} channels, whose sum exceeds 32 bits")

    def compute(a: Tensor) -> Tensor:
        return _te_normalized(a, x.zero_point, out, unsigned)

    return task.emitter.call(
        "l2_normalization",
        compute,
        [x.source],
        axis=len(x.shape) - 1,
        input_zero_point=x.zero_point,
        output_zero_point=out.zero_point,
    )


def _te_normalized(x: Tensor, zero_point: int, out: Output, unsigned: bool) -> Tensor:
    rows = Rows(x, "l2_normalization")
    rk = rows.axis("rk")

    def element(row: Row, k: object) -> Scalar:
        return rows.element(row, k) - i32(zero_point)

    total = rows.stage("acc", lambda *r: te.sum(element(r, rk) * element(r, rk), axis=[rk]))
    inverse, shift = _te_inverse_root(total, rows.stage)

    def finish(row: Row, k: Index) -> Scalar:
        d = element(row, k).astype("int64")
        if unsigned:
            high = fp.te_srdhm(d * i64(1 << _OUTPUT_BITS), inverse[row])
            e = shift[row].astype("int64")
        else:
            left = i64(_OUTPUT_BITS) - shift[row].astype("int64")
            high = fp.te_srdhm(d * (i64(1) << tirx.max(left, i64(0))), inverse[row])
            e = tirx.max(i64(0) - left, i64(0))
        sign = tirx.Select(e > i64(0), high >> i64(63), i64(0))
        rounded = ((high + sign + ((i64(1) << e) >> i64(1))) >> e).astype("int32")
        return fp.te_clamp(rounded + i32(out.zero_point), *fp.range_of(out.dtype), out.dtype)

    return rows.elements(finish)


def _te_inverse_root(total: Tensor, stage: Stage) -> tuple[Tensor, Tensor]:
    """Return multiplier (Q0.31 as int64) and right shift (int32) for `1 / sqrt(total)`, per row."""
    quarter = stage(
        "reduced", lambda *r: tirx.Select(total[r] >= i32(_LARGEST_SUM), total[r] >> i32(2), tirx.max(total[r], i32(2)))
    )
    pairs = stage("pairs", lambda *r: ((fp.te_leading_zeros(quarter[r]) - i32(1)) >> i32(1)) - i32(1))
    half = stage(
        "half", lambda *r: (((quarter[r] << (pairs[r] + pairs[r])) >> i32(1)) + i32(1)).astype("int64") >> i64(1)
    )
    x = stage("newton", lambda *r: _te_step(half[r], i64(ONE)))
    for _ in range(NEWTON_STEPS - 1):
        x = stage("newton", partial(_te_next, half, x))
    shift = stage(
        "shift",
        lambda *r: tirx.Select(total[r] >= i32(_LARGEST_SUM), i32(BASE_SHIFT + 1), i32(BASE_SHIFT)) - pairs[r],
    )
    inverse = stage(
        "inverse",
        lambda *r: tirx.Select(
            total[r] <= i32(1),
            i64(INT32_MAX),
            fp.te_srdhm(x[r], i64(HALF_SQRT_2)) << tirx.max(i32(0) - shift[r], i32(0)).astype("int64"),
        ),
    )
    used = stage("right", lambda *r: tirx.Select(total[r] <= i32(1), i32(0), tirx.max(shift[r], i32(0))))
    return inverse, used


def _te_next(half: Tensor, x: Tensor, *r: Index) -> Scalar:
    return _te_step(half[r], x[r])


def _te_step(half: Scalar, x: Scalar) -> Scalar:
    """Compute one Newton step, `x (3/2 - half x^2)` in Q3.28, rounded and saturated like the reference."""
    cube = fp.te_saturate(fp.te_srdhm(fp.te_srdhm(x, x), x) * i64(1 << 6))
    return fp.te_saturate((fp.te_srdhm(i64(HALF_OF_THREE), x) - fp.te_srdhm(half, cube)) * i64(1 << 3))
