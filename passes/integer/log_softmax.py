"""Lower log softmax along a byte tensor's last axis, in gemmlowp's fixed point.

`x - max - log(sum exp(x - max))`: exponentials from the softmax's table (Q0.31), their sum in Q12.19, its logarithm in
Q5.26 by the reference's rational approximation around sqrt(sqrt(1/2)). Everything per row is a separate stage, in int64
raw values. Source: TFLite's integer_ops/log_softmax.h and `log_x_for_x_greater_than_or_equal_to_1`, with the names of
its constants.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.passes.integer import softmax
from tvm_cascade.passes.integer.fixed_point import i32, i64
from tvm_cascade.passes.integer.rows import Row, Rows, Stage
from tvm_cascade.passes.integer.task import Task, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.quant import BYTE_TYPES, NotLowered

_OUTPUT_BITS = 4  # integer bits of the result, Q4.4 in eight
_DROPPED = 31 - softmax.INPUT_BITS - _OUTPUT_BITS  # low bits of Q5.26 that the result drops
_LEVELS = 256
_WIDE_BITS = softmax.INPUT_BITS + 1  # integer bits of the logarithm's terms while they are summed
_LOG_2 = 1488522236
_SQRT_SQRT_HALF, _SQRT_HALF, _QUARTER = 1805811301, 1518500250, 536870912
_ALPHA_N, _ALPHA_D, _ALPHA_I, _ALPHA_F = 117049297, 127690142, 1057819769, 638450708


@lowers("log_softmax")
def lower_log_softmax(task: Task) -> Value:
    """Lower log softmax along the last axis of stored bytes, with the reference's output scale 1/16."""
    x, out = task.operator.quantized(0), task.output
    rank = len(out.shape)
    if task.attributes["axis"] % rank != rank - 1:
        raise NotLowered("a log softmax that is not along the last axis")
    if x.dtype not in BYTE_TYPES or x.constant is not None or out.declared != x.declared:
        raise NotLowered("a log softmax of something other than stored bytes")
    if (float(out.scale), out.zero_point) != (1 / 16, fp.range_of(out.dtype)[1]):
        raise NotLowered("a log softmax whose output has other than the reference's quantization")
    if out.shape[-1] > 1 << softmax.SUM_BITS:
        raise NotLowered(f"{out.shape[-1]} classes overflow the reference's sum")
    table = softmax.exponentials(float(x.step), 1.0)
    m, s = softmax.scaled_multiplier(float(x.step), 1.0)
    if s < 1:
        raise NotLowered(f"a log softmax over logits of scale {x.step:g}")
    lowest = softmax.lowest_difference(s)
    scaling = (*fp.quantize_multiplier((1 << (31 - s)) / m), lowest)

    def compute(a: Tensor, exps: Tensor, steps: Tensor) -> Tensor:
        return _te_log_softmax(a, exps, steps, out.dtype, scaling)

    operands = [x.source, table, _steps(m, s, lowest)]
    return task.emitter.call("log_softmax", compute, operands, axis=rank - 1, clamp=out.clamp)


def _steps(m: int, s: int, lowest: int) -> np.ndarray:
    """Tabulate `-scale * d` in Q5.26 for d in 0..255, as int32, no smaller than the step from which every output is the
    lowest.
    """
    d = np.maximum(-np.arange(256, dtype="int64"), lowest)
    return np.maximum(fp.srdhm(d << s, m), -(_LEVELS + 1) << _DROPPED).astype("int32")


def _te_log_softmax(x: Tensor, exps: Tensor, steps: Tensor, dtype: str, scaling: tuple[int, int, int]) -> Tensor:
    back, back_shift, lowest = scaling
    rows = Rows(x, "log_softmax")
    rk, rs = rows.axis("rk"), rows.axis("rs")
    top = rows.stage("max_acc", lambda *r: te.max(rows.element(r, rk), axis=[rk]))
    total = rows.stage(
        "sum_acc", lambda *r: te.sum(softmax.te_halves_up(exps[top[r] - rows.element(r, rs)]), axis=[rs])
    )
    log = _te_log(total, rows.stage)
    cut = rows.stage("cut", lambda *r: _te_cut(log[r], back, back_shift, lowest).astype("int32"))
    narrow = rows.stage("narrow", lambda *r: log[r].astype("int32"))
    low, high = fp.range_of(dtype)

    def finish(row: Row, k: Index) -> Scalar:
        distance = top[row] - rows.element(row, k)
        # the logarithm of at most 2^12 terms leaves the difference within 32 bits
        rounded = fp.te_rounding_divide(steps[distance] - narrow[row], _DROPPED)
        stored = fp.te_clamp(rounded + i32(high), low, high, dtype)
        return tirx.Select(distance < i32(0) - cut[row], stored, tirx.const(low, dtype))

    return rows.elements(finish)


def _te_cut(log: Scalar, back: int, shift: int, lowest: int) -> Scalar:
    """Return the stored difference `x - max` from which down the reference writes the lowest output, by MBQM of `log`."""
    high = fp.te_srdhm(log - i64(1 << 31), i64(back << max(shift, 0)))
    return tirx.max(fp.te_rounding_divide(high, max(-shift, 0), bits=64), i64(lowest - 1))


def _te_log(total: Tensor, stage: Stage) -> Tensor:
    """Compute the natural logarithm in Q5.26, as int64, for a sum of at least one in Q12.19."""
    unit = 31 - _WIDE_BITS
    wide = stage("total", lambda *r: total[r].astype("int64"))
    zeros = stage("zeros", lambda *r: fp.te_leading_zeros(total[r]).astype("int64"))
    shifted = stage("b", lambda *r: fp.te_srdhm(wide[r], i64(_SQRT_HALF)))
    b_room = stage("b_zeros", lambda *r: fp.te_leading_zeros(shifted[r].astype("int32")).astype("int64") - i64(1))
    a_raw = stage(
        "a_mantissa",
        lambda *r: fp.te_saturate(fp.te_srdhm(wide[r] << (zeros[r] - i64(1)), i64(_SQRT_HALF)) * i64(2)),
    )
    b_raw = stage("b_mantissa", lambda *r: fp.te_saturate(wide[r] << b_room[r]))
    quarter = _QUARTER >> _WIDE_BITS
    power = stage(
        "power",
        lambda *r: tirx.max(
            fp.te_saturate(fp.te_saturate((i64(softmax.SUM_BITS) - zeros[r]) * i64(1 << unit)) + i64(quarter)),
            fp.te_saturate(fp.te_saturate((i64(softmax.SUM_BITS) - b_room[r]) * i64(1 << unit)) - i64(quarter)),
        ),
    )
    mantissa = stage("mantissa", lambda *r: tirx.min(a_raw[r], b_raw[r]))
    p = stage("p", lambda *r: (mantissa[r] + i64(_SQRT_SQRT_HALF + 1)) >> i64(1))
    q = stage("q", lambda *r: (mantissa[r] - i64(_SQRT_SQRT_HALF)) * i64(2))
    square = stage("q2", lambda *r: fp.te_srdhm(q[r], q[r]))
    cube = stage("q3", lambda *r: fp.te_srdhm(q[r], square[r]))
    numerator = stage("numerator", lambda *r: fp.te_srdhm(q[r], mantissa[r]) + fp.te_srdhm(cube[r], i64(_ALPHA_N)))
    inner = stage("inner", lambda *r: i64(_ALPHA_I) + q[r] + fp.te_srdhm(i64(_ALPHA_D), square[r]))
    rest = stage("rest", lambda *r: fp.te_srdhm(p[r], inner[r]) + fp.te_srdhm(i64(_ALPHA_F), q[r]))
    half = stage("half", lambda *r: (rest[r] + i64(1 << 31)) >> i64(1))
    guess = softmax.te_newton(half, stage)
    return stage(
        "log",
        lambda *r: fp.te_saturate(
            (
                fp.te_srdhm(power[r], i64(_LOG_2))
                + fp.te_srdhm(
                    fp.te_rounding_divide(numerator[r], _WIDE_BITS, bits=64), fp.te_saturate(guess[r] * i64(2))
                )
            )
            * i64(2)
        ),
    )
