"""Row kernels for max and average pools and for means over rows and columns.

Columns are split into edges and interior as in convolutions. Scalar cores take one channel at a time, DSP cores four
(`smax8` or pairs of halfword sums), MVE cores sixteen (max) or eight (average). An average divides by its number of
taps, on MVE by a multiplication checked at compile time for every possible sum. Where padding makes divisors differ, a
table has the numbers for every cut of the window, and all cores multiply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import HALF_UP, ONCE, OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder, best_step
from tvm_cascade.schedules.rules.geometry import Columns, Sliding, row_bases, row_offsets, valid_row
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import LANES, put, requantize_lanes, splat, vector
from tvm_cascade.schedules.rules.requantize import Requantize, emit_requantize, plan_requantize
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, address_of, i32, tirx

_WRITTEN_OUT = 16  # most taps of a kernel row in one loop iteration
_REACH = 127  # largest distance in elements of what a vector load takes from a register
PAIR_TAPS = 255  # most int8 values that are summed in a halfword


@dataclass(frozen=True, eq=False)
class Pool:
    """A pool over an int8 NHWC tensor (max: also uint8, float32; if `read_pool` is asked for it, int16) with batch 1.

    Means and scaled averages have `requantize`; a plain average divides instead.
    """

    kind: str  # max or average
    window: Sliding
    dtype: str
    clamp: tuple[int, int]
    input_zero_point: int = 0  # of a mean or a scaled average
    requantize: Requantize | None = None
    head_room: int = 0  # bits by which a sum is shifted left before it is rescaled
    half_up: bool = False  # a plain average's rounding; else half away from zero
    cuts: tuple[Cut, ...] = ()  # of an average whose divisors differ: by row variant and column group of the window

    @property
    def taps(self) -> int:
        return self.window.kernel[0] * self.window.kernel[1]


@dataclass(frozen=True, slots=True)
class Cut:
    """What padding leaves of a window."""

    taps: int  # inside the map
    divisor: int  # `taps`, with padding where padding counts


def cuts_of(window: Sliding, counted: Sequence[int]) -> tuple[Cut, ...]:
    """List the cuts by row variant and column group. `counted` is the padding that counts: top, left, bottom, right."""

    def under(axis: int, position: int, low: int, high: int) -> int:
        first = position * window.strides[axis] - window.padding[axis]
        return min(first + window.kernel[axis], high) - max(first, low)

    top, left, bottom, right = counted
    rows = [window.rows.index(taps) for taps in window.row_variants()]
    columns = [(group.start, group.k1 - group.k0) for group in window.column_groups()]
    return tuple(
        Cut(
            (window.rows[y][1] - window.rows[y][0]) * taps,
            under(0, y, -top, window.height + bottom) * under(1, x, -left, window.width + right),
        )
        for y in rows
        for x, taps in columns
    )


def read_pool(spec: OperatorSpec, dtypes: Collection[str] = ("int8", "uint8")) -> Pool | None:
    """Read a pool or mean with a type in `dtypes` as a `Pool`; None for any other operator, and for forms unknown to
    the kernels.
    """
    kind, data, given = spec.kind, spec.inputs[0], spec.attributes
    if kind not in ("max_pool2d", "avg_pool2d", "scaled_avg_pool2d", "mean") or len(data.shape) != 4:
        return None
    unknown = data.dtype == "uint8" and kind != "max_pool2d"
    if data.shape[0] != 1 or data.dtype not in dtypes or unknown or spec.output.dtype != data.dtype:
        return None
    info = np.iinfo(data.dtype)
    lo, hi = given.clamp or (int(info.min), int(info.max))
    if kind == "mean":
        return _read_mean(spec, (lo, hi))
    if set(given.dilation or (1, 1)) != {1} or len(spec.output.shape) != 4 or given.pool_size is None:
        return None
    window = Sliding.of(spec, (given.pool_size[0], given.pool_size[1]))
    if not window.wraps_once:
        return None
    if kind == "max_pool2d":
        return Pool("max", window, data.dtype, (lo, hi))
    whole = {*window.rows} == {(0, window.kernel[0])} and all(
        group.k1 - group.k0 == window.kernel[1] for group in window.column_groups()
    )
    cuts = () if whole else cuts_of(window, given.counted or (0, 0, 0, 0))
    if cuts and data.dtype != "int8":
        return None
    if kind == "scaled_avg_pool2d":
        return _rescaled(spec, window, (lo, hi), cuts)
    pool = Pool("average", window, data.dtype, (lo, hi), half_up=given.rounding == HALF_UP, cuts=cuts)
    return pool if not cuts or reciprocals(pool) else None


def _read_mean(spec: OperatorSpec, clamp: tuple[int, int]) -> Pool | None:
    """Read a mean over rows and columns, for any output shape."""
    if spec.attributes.axes != (1, 2):
        return None
    _, height, width, channels = spec.inputs[0].shape
    window = Sliding(height, width, channels, 1, 1, (height, width), (height, width), (0, 0))
    return _rescaled(spec, window, clamp)


def _rescaled(spec: OperatorSpec, window: Sliding, clamp: tuple[int, int], cuts: tuple[Cut, ...] = ()) -> Pool | None:
    """Read an average rescaled by a multiplier, or by a multiplier for each of the `cuts`; None without a multiplier."""
    given, dtype = spec.attributes, spec.inputs[0].dtype
    whole = cuts or (Cut(window.kernel[0] * window.kernel[1], 0),)
    if given.multiplier is not None and given.shift is not None:
        m, s = (np.full(len(whole), v, np.int64) for v in (given.multiplier, given.shift))
    elif cuts and len(spec.constants) == 2:
        m, s = (table[[cut.divisor for cut in cuts]] for table in spec.constants)
    else:
        return None
    taps, info = np.array([cut.taps for cut in whole]), np.iinfo(dtype)
    zero_in, zero_out, head_room = given.input_zero_point or 0, given.output_zero_point or 0, given.head_room or 0
    low, high = (taps * (v - zero_in) << head_room for v in (int(info.min), int(info.max)))
    q = plan_requantize(m, s, low, high, zero_out, clamp, given.rounding == ONCE)
    return Pool("average", window, dtype, clamp, zero_in, q, head_room, cuts=cuts)


class Pooling(ABC):
    """Builder for a pool's row kernel, `lanes` channels at a time; a subclass emits how they are combined and stored."""

    lanes = 1
    overlaps = False  # where channels are no whole number of lanes, the last ones overlap those before
    most_blocks = 1  # of `lanes` channels in one loop iteration

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.g = pool.window
        numbers = [np.array(given, np.int32)] if (given := self.table()) else []
        self.k = k = KernelBuilder([pool.dtype], numbers, [pool.dtype], row_table=self.g.rows_by_table)
        self.x = k.view(k.inputs[0][0], pool.dtype, "xs")
        self.out = k.view(k.outputs[0], pool.dtype, "outs")
        if numbers:
            self.constants = k.view(k.constants[0], "int32", "table")
            if not pool.cuts:
                self.numbers = [k.let(self.constants[i32(i)], "number") for i in range(numbers[0].size)]

    def table(self) -> list[int]:
        """Return the numbers of an average, once or by cut; empty for all other pools.

        Rescaled: multiplier, addend and shift, and zero point times taps. Plain, by cut: factor and half a divisor.
        """
        q, zero, cuts = self.pool.requantize, self.pool.input_zero_point, self.pool.cuts
        if q is not None:
            taps = [cut.taps for cut in cuts] or [self.pool.taps]
            return [int(v) for row, n in zip(q.table, taps, strict=True) for v in (*row, zero * n)]
        if not cuts or self.pool.dtype != "int8":
            return []
        factors = dict(reciprocals(self.pool)[1:])
        halves = ((cut, cut.divisor // 2 + (128 * cut.divisor if self.pool.half_up else 0)) for cut in cuts)
        return [v for cut, half in halves for v in (factors[cut.divisor], half)]

    def build(self) -> RowKernel:
        return self.k.kernel(self._emit)

    def _emit(self) -> None:
        k, g = self.k, self.g
        self.written_out = g.kernel[0] <= 3
        self.rows = self.row_starts()
        self.r0, self.r1 = g.bounds(k, k.y)
        for place, group in enumerate(g.column_groups()):
            self.enter(place, group)
            with k.loop(group.stop - group.start, "xb") as xb:
                x = xb + group.start
                last = g.channels - self.lanes  # where no whole number of lanes is: computed first, stored last
                acc_of_last = self._combined(group, x, i32(last)) if g.channels % self.lanes else None
                step = best_step(g.channels // self.lanes, self.most_blocks)
                for cb in k.unrolled(g.channels // self.lanes // step, step, "cb"):
                    acc = self._combined(group, x, cb * self.lanes)
                    self.finish(acc, x * g.channels + cb * self.lanes)
                if acc_of_last is not None:
                    self.finish(acc_of_last, x * g.channels + last)

    def enter(self, place: int, group: Columns) -> None:
        """Load what the pixels of a column group, the `place`-th, have in common: the numbers of an average by cut."""
        k, cuts = self.k, self.pool.cuts
        if cuts:
            width, groups = len(self.table()) // len(cuts), len(self.g.column_groups())
            start = k.let((self.g.variant(k.y) * groups + place) * width, "start")
            self.numbers = [k.let(self.constants[start + i], "number") for i in range(width)]

    def row_starts(self) -> Any:
        """Return the starts of the window's rows: element offsets, by row."""
        return row_offsets(self.k, self.g) if self.written_out else row_bases(self.k, self.g)

    def _combined(self, group: Columns, x: Value, channel: Value) -> Value:
        """Compute the accumulators for the channels from `channel` on, for the output pixel in column `x`."""
        g, acc = self.g, self.start()
        self.window(acc, group, (x * g.strides[1] - g.padding[1] + group.k0) * g.channels + channel)
        return acc

    def window(self, acc: Value, group: Columns, column: Value) -> None:
        k, g = self.k, self.g
        if not self.written_out:
            with k.loop(self.r1 - self.r0, "r", start=self.r0) as r:
                self.row(acc, group, k.let(self.rows[r] + column, "at"))
            return
        for r, row in enumerate(self.rows):
            with valid_row(k, g, r, self.r0, self.r1):
                self.row(acc, group, k.let(row + column, "at"))

    def row(self, acc: Value, group: Columns, at: Value) -> None:
        k, taps = self.k, group.k1 - group.k0
        step = best_step(taps, _WRITTEN_OUT)
        for i in k.unrolled(taps // step, step):
            self.tap(acc, at + i * self.g.channels)

    @abstractmethod
    def start(self) -> Value:
        """Declares and initializes the accumulators of `lanes` channels."""

    @abstractmethod
    def tap(self, acc: Value, place: Value) -> None:
        """Combines the accumulators with the channels of the input pixel at element `place`."""

    @abstractmethod
    def finish(self, acc: Value, place: Value) -> None:
        """Stores the channels of an output pixel at element `place`."""

    def clamped(self, value: Value) -> Value:
        lo, hi = self.pool.clamp
        info = np.iinfo(self.pool.dtype)
        if (lo, hi) == (info.min, info.max):
            return value
        return tirx.max(tirx.min(value, i32(hi)), i32(lo))

    def averaged(self, total: Value) -> Value:
        """Compute the average (clamped int32) from a sum over all taps."""
        k, n, q = self.k, self.pool.taps, self.pool.requantize
        if q is not None:
            m, addend, e, zero = self.numbers
            return emit_requantize(k, q, k.let((total - zero) * i32(1 << self.pool.head_room), "acc"), m, addend, e)
        if self.pool.cuts:
            factor, half = self.numbers
            shift = reciprocals(self.pool)[0][0]
            if self.pool.half_up:
                return self.clamped(tirx.shift_right((total + half) * factor, i32(shift)) - 128)
            sign = k.let(tirx.shift_right(total, i32(31)), "sign")
            size = tirx.bitwise_xor(total, sign) - sign + half
            quotient = k.let(tirx.shift_right(size * factor, i32(shift)), "quotient")
            return self.clamped(tirx.bitwise_xor(quotient, sign) - sign)
        half = n // 2
        if self.pool.half_up:  # of a sum that is moved above zero
            return self.clamped(tirx.truncdiv(total + i32(128 * n + half), i32(n)) - 128)
        rounded = k.let(total + tirx.Select(total > 0, i32(half), i32(-half)), "rounded")
        return self.clamped(tirx.truncdiv(rounded, i32(n)))


class OpaqueTaps(Pooling):
    """A sum with a loop over a row's taps that takes the count from the table: LLVM would write out a loop with a known
    count, and compute the address of every tap too far from the first.
    """

    def __init__(self, pool: Pool) -> None:
        columns, near = pool.window.kernel[1], max(_REACH // pool.window.channels, 1)
        self.step = best_step(columns, near)
        self.passes = columns // self.step
        super().__init__(pool)

    def table(self) -> list[int]:
        return [*super().table(), *([self.passes] if self.passes > 1 else [])]

    def row(self, acc: Value, group: Columns, at: Value) -> None:
        k, count = self.k, self.numbers[-1] if self.passes > 1 else 1
        with k.loop(count, "i", passes=self.passes) as i:
            for u in range(self.step):
                self.tap(acc, at + (i * self.step + u) * self.g.channels)


class Scalar(Pooling):
    """One channel at a time."""

    def start(self) -> Value:
        acc = self.k.local(1, "acc")
        self.k.store(acc, 0, i32(0 if self.pool.kind == "average" else int(np.iinfo(self.pool.dtype).min)))
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        value = self.k.let(self.x[place].astype("int32"), "xv")
        old = self.k.let(acc[i32(0)], "old")
        self.k.store(acc, 0, old + value if self.pool.kind == "average" else tirx.max(old, value))

    def finish(self, acc: Value, place: Value) -> None:
        value = self.k.let(acc[i32(0)], "sum")
        value = self.averaged(value) if self.pool.kind == "average" else self.clamped(value)
        self.k.store(self.out, place, value.astype(self.pool.dtype))


class _Words(Pooling):
    """Four channels a word: `smax8` or `umax8`, or two pairs of halfword sums."""

    lanes = 4

    def start(self) -> Value:
        k, average = self.k, self.pool.kind == "average"
        acc = k.local(2 if average else 1, "acc")
        least = 0 if average or self.pool.dtype == "uint8" else -0x7F7F7F80  # the word 0x80808080
        for i in range(2 if average else 1):
            k.store(acc, i, i32(least))
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        k = self.k
        word = k.let(call("ldr", address_of(self.x[place])), "xw")
        if self.pool.kind == "max":
            name = "umax8" if self.pool.dtype == "uint8" else "smax8"
            k.store(acc, 0, call(name, acc[i32(0)], word))
            return
        k.store(acc, 0, call("sxtab16", acc[i32(0)], word))
        k.store(acc, 1, call("sxtab16_ror8", acc[i32(1)], word))

    def finish(self, acc: Value, place: Value) -> None:
        k = self.k
        if self.pool.kind == "max":
            word = k.let(acc[i32(0)], "word")
            values = [tirx.shift_right(word, i32(8 * i)) for i in range(4)]
            if self.pool.dtype == "int8":
                values = [v.astype("int8").astype("int32") for v in values]
            else:  # TVM assumes that the value of a cast to uint8 fits
                values = [tirx.bitwise_and(v, i32(255)) for v in values]
            values = [self.clamped(k.let(v, "v")) for v in values]
        else:
            values = [self.averaged(k.let(v, "total")) for v in halfword_sums(k, acc)]
        for i, value in enumerate(values):
            k.store(self.out, place + i, value.astype(self.pool.dtype))


def halfword_sums(k: KernelBuilder, pairs: Value) -> list[Value]:
    """Widen two words of halfword pairs, as summed by `sxtab16`, to four int32 sums in channel order."""
    both = [k.let(pairs[i32(i)], "pair") for i in range(2)]
    low, high = [p.astype("int16").astype("int32") for p in both], [tirx.shift_right(p, i32(16)) for p in both]
    return [*low, *high]


class _VectorMax(Pooling):
    """Rows of max pools on MVE, sixteen channels at a time."""

    lanes, overlaps = 16, True

    def start(self) -> Value:
        acc = self.k.local(16, "acc", self.pool.dtype)
        least = tirx.const(int(np.iinfo(self.pool.dtype).min), self.pool.dtype)
        put(self.k, acc, 0, splat(least, 16), 16)
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        put(self.k, acc, 0, tirx.max(vector(acc, 0, 16), vector(self.x, place, 16)), 16)

    def finish(self, acc: Value, place: Value) -> None:
        value, info = vector(acc, 0, 16), np.iinfo(self.pool.dtype)
        lo, hi = (tirx.const(v, self.pool.dtype) for v in self.pool.clamp)
        if self.pool.clamp != (info.min, info.max):
            value = tirx.max(tirx.min(value, splat(hi, 16)), splat(lo, 16))
        put(self.k, self.out, place, value, 16)


class _VectorAverage(Pooling):
    """Eight channels at a time, summed in halfwords, finished in two halves of words."""

    lanes, overlaps = 8, True

    def start(self) -> Value:
        acc = self.k.local(8, "acc", "int16")
        put(self.k, acc, 0, splat(tirx.const(0, "int16"), 8), 8)
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        put(self.k, acc, 0, vector(acc, 0, 8) + vector(self.x, place, 8).astype("int16x8"), 8)

    def finish(self, acc: Value, place: Value) -> None:
        k = self.k
        total = k.let(vector(acc, 0, 8), "total", "int16x8")
        halves = []
        for odd in range(2):
            four = tirx.Shuffle([total], [i32(2 * i + odd) for i in range(LANES)]).astype("int32x4")
            halves.append(k.let(self._four(k.let(four, "four", "int32x4")).astype("int16x4"), "half", "int16x4"))
        order = [i32(i // 2 + i % 2 * LANES) for i in range(8)]
        both = k.let(tirx.Shuffle(halves, order), "both", "int16x8")
        put(k, self.out, place, both.astype("int8x8"), 8)

    def _four(self, total: Value) -> Value:
        """Compute the averages (clamped int32) from a vector of four sums."""
        k, q, (lo, hi) = self.k, self.pool.requantize, self.pool.clamp
        if q is not None:
            m, _, e, zero = self.numbers
            acc = total - splat(zero)
            if self.pool.head_room:
                acc = acc * splat(i32(1 << self.pool.head_room))
            acc = k.let(acc, "acc", "int32x4")
            return requantize_lanes(k, q, acc, splat(m), splat(0 - e), i32(q.zero_point))
        n = self.pool.taps
        if self.pool.cuts:
            (factor, half), shift = self.numbers, reciprocals(self.pool)[0][0]
        else:
            factor, shift = reciprocal(n, 255 if self.pool.half_up else 128)
            half = n // 2 + (128 * n if self.pool.half_up else 0)
        if self.pool.half_up:
            value = tirx.shift_right((total + splat(half)) * splat(factor), splat(shift)) - splat(128)
            return value if (lo, hi) == (-128, 127) else tirx.max(tirx.min(value, splat(hi)), splat(lo))
        sign = k.let(tirx.shift_right(total, splat(31)), "sign", "int32x4")
        size = tirx.bitwise_xor(total, sign) - sign + splat(half)
        quotient = k.let(tirx.shift_right(size * splat(factor), splat(shift)), "quotient", "int32x4")
        value = tirx.bitwise_xor(quotient, sign) - sign
        return value if (lo, hi) == (-128, 127) else tirx.max(tirx.min(value, splat(hi)), splat(lo))


def reciprocal(n: int, most: int) -> tuple[int, int]:
    """Find `(f, e)` with `(v f) >> e == v // n` and `v f` in 31 bits, checked for each v up to `most` times n plus n /
    2.
    """
    for shift in range(23, 0, -1):
        if (factor := _factor(n, most, shift)) is not None:
            return factor, shift
    raise AssertionError(f"no reciprocal of {n}")


def reciprocals(pool: Pool) -> list[tuple[int, int]]:
    """Return `(e, 0)`, then `(n, f)` for every divisor of a pool's cuts, as in `reciprocal` with an `e` in common; empty if
    there is none.
    """
    divisors, most = sorted({cut.divisor for cut in pool.cuts}), 255 if pool.half_up else 128
    for shift in range(23, 0, -1):
        factors = [(n, f) for n in divisors if (f := _factor(n, most, shift)) is not None]
        if len(factors) == len(divisors):
            return [(shift, 0), *factors]
    return []


@lru_cache(maxsize=1024)
def _factor(n: int, most: int, shift: int) -> int | None:
    sums, factor = np.arange(n * most + n // 2 + 1, dtype=np.int64), -(-(1 << shift) // n)
    exact = int(sums[-1]) * factor < 1 << 31 and np.array_equal(sums * factor >> shift, sums // n)
    return factor if exact else None


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants for pools and means, the core's widest first."""
    pool = read_pool(spec)
    if pool is None:
        return []
    forms: list[tuple[str, type[Pooling]]] = []
    narrow = pool.kind == "max" or pool.taps <= PAIR_TAPS
    if target.vectors and narrow and (pool.requantize is None or pool.requantize.in_lanes):
        forms.append(("vectors", _VectorMax if pool.kind == "max" else _VectorAverage))
    if target.dsp and narrow:
        forms.append(("words", _Words))
    forms.append(("channels", Scalar))
    return served(pool, forms)


def served(pool: Pool, forms: Sequence[tuple[str, type[Pooling]]]) -> list[Variant]:
    """List the variants among these forms, each with a name, for a pool's number of channels."""
    channels = pool.window.channels
    able = [(n, f) for n, f in forms if channels % f.lanes == 0 or (f.overlaps and channels > f.lanes)]
    return [Variant(name, lambda form=form: form(pool).build()) for name, form in able]
