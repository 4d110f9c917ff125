"""Row kernels for float32 pools on cores with a floating-point unit, one channel at a time, or four by MVE vectors; and
for means over rows and columns by vectors.

Each maximum begins with negative infinity and is NaN where a tap is, each sum begins with zero; they take the taps in the
order of the generic kernel.
"""

from __future__ import annotations

from math import inf, nan

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.geometry import Columns, Sliding
from tvm_cascade.schedules.rules.lanes import LANES, put, splat, vector
from tvm_cascade.schedules.rules.pooling import Cut, OpaqueTaps, Pool, Pooling, cuts_of, served
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx
from tvm_cascade.schedules.tir.nan import or_nan

FLOAT = "float32"
LEAST = tirx.const(-inf, FLOAT)
_INFINITY = 0x7F800000  # its bits


class _Max(Pooling):
    """A channel at a time. The sum of the taps tells whether a tap may be NaN; then all taps are taken again, with
    care.
    """

    careful = False

    def start(self) -> Value:
        acc = self.k.local(2, "acc", FLOAT)  # the maximum and the sum
        self.k.store(acc, 0, LEAST)
        self.k.store(acc, 1, tirx.const(0.0, FLOAT))
        return acc

    def window(self, acc: Value, group: Columns, column: Value) -> None:
        super().window(acc, group, column)
        is_suspect = tirx.isnan(acc[1]).astype("int32")  # of infinities too, where their signs differ
        with self.k.loop(is_suspect, "again", passes=0):
            self.careful = True
            self.k.store(acc, 0, LEAST)
            super().window(acc, group, column)
            self.careful = False

    def row(self, acc: Value, group: Columns, at: Value) -> None:
        if not self.careful:
            super().row(acc, group, at)
            return
        with self.k.loop(group.k1 - group.k0, "i") as i:
            value, old = self.k.let(self.x[at + i * self.g.channels], "xv", FLOAT), self.k.let(acc[0], "old", FLOAT)
            self.k.store(acc, 0, or_nan(tirx.max)(old, value))

    def tap(self, acc: Value, place: Value) -> None:
        value, old = self.k.let(self.x[place], "xv", FLOAT), self.k.let(acc[0], "old", FLOAT)
        self.k.store(acc, 0, tirx.max(old, value))
        self.k.store(acc, 1, acc[1] + value)

    def finish(self, acc: Value, place: Value) -> None:
        self.k.store(self.out, place, acc[0])


class _VectorMax(Pooling):
    """Four channels at a time. Maxima leave NaN out; the largest bits without signs reveal a NaN."""

    lanes, overlaps = LANES, True

    def start(self) -> Value:
        acc = self.k.local(LANES, "acc", FLOAT), self.k.local(LANES, "bits")
        put(self.k, acc[0], 0, splat(LEAST), LANES)
        put(self.k, acc[1], 0, splat(0), LANES)
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        (most, bits), four = acc, f"{FLOAT}x{LANES}"
        value = self.k.let(vector(self.x, place, LANES), "xv", four)
        put(self.k, most, 0, tirx.call_llvm_pure_intrin(four, "llvm.maxnum", vector(most, 0, LANES), value), LANES)
        magnitude = tirx.bitwise_and(tirx.reinterpret(f"int32x{LANES}", value), splat(0x7FFFFFFF))
        put(self.k, bits, 0, tirx.max(vector(bits, 0, LANES), magnitude), LANES)

    def finish(self, acc: Value, place: Value) -> None:
        is_nan = vector(acc[1], 0, LANES) > splat(_INFINITY)
        value = tirx.Select(is_nan, splat(tirx.const(nan, FLOAT)), vector(acc[0], 0, LANES))
        put(self.k, self.out, place, value, LANES)


class _Average(Pooling):
    """A channel at a time. Pixels of a column group have a common divisor."""

    def start(self) -> Value:
        acc = self.k.local(1, "acc", FLOAT)
        self.k.store(acc, 0, tirx.const(0.0, FLOAT))
        return acc

    def enter(self, place: int, group: Columns) -> None:
        k, cuts, groups = self.k, self.pool.cuts, len(self.g.column_groups())
        if len({cut.divisor for cut in cuts[place::groups]}) < 2:  # whatever the row
            self.divisor = tirx.const(float(cuts[place].divisor if cuts else self.pool.taps), FLOAT)
            return
        self.divisor = k.let(self.constants[self.g.variant(k.y) * groups + place].astype(FLOAT), "divisor", FLOAT)

    def table(self) -> list[int]:
        return [cut.divisor for cut in self.pool.cuts]

    def tap(self, acc: Value, place: Value) -> None:
        self.k.store(acc, 0, acc[0] + self.x[place])

    def finish(self, acc: Value, place: Value) -> None:
        self.k.store(self.out, place, acc[0] / self.divisor)


class _VectorSums(Pooling):
    """Four channels at a time. Lanes are divided singly: there is no vector division."""

    lanes, overlaps = LANES, True
    divisor: Value

    def start(self) -> Value:
        acc = self.k.local(LANES, "acc", FLOAT)
        put(self.k, acc, 0, splat(tirx.const(0.0, FLOAT)), LANES)
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        put(self.k, acc, 0, vector(acc, 0, LANES) + vector(self.x, place, LANES), LANES)

    def finish(self, acc: Value, place: Value) -> None:
        for i in range(LANES):
            self.k.store(self.out, place + i, acc[i32(i)] / self.divisor)


class _VectorAverage(_VectorSums, _Average):
    """Average pools by vectors."""


class _VectorMean(_VectorSums, OpaqueTaps):
    """Means over rows and columns by vectors."""

    def enter(self, place: int, group: Columns) -> None:
        self.divisor = tirx.const(float(self.pool.taps), FLOAT)


def read_mean(spec: OperatorSpec) -> Pool | None:
    """Read a float32 mean over rows and columns, NHWC with batch 1; None for any other operator."""
    if (
        spec.kind != "mean"
        or {t.dtype for t in (*spec.inputs, spec.output)} != {FLOAT}
        or spec.attributes.axes != (1, 2)
    ):
        return None
    batch, height, width, channels = spec.inputs[0].shape
    window = Sliding(height, width, channels, 1, 1, (height, width), (height, width), (0, 0))
    return Pool("average", window, FLOAT, (0, 0)) if batch == 1 else None


def read_pool(spec: OperatorSpec) -> Pool | None:
    """Read a float32 max or average pool, NHWC with batch 1; None for any other operator."""
    given = spec.attributes
    if (
        spec.kind not in ("max_pool2d", "avg_pool2d")
        or {t.dtype for t in (*spec.inputs, spec.output)} != {FLOAT}
        or given.pool_size is None
    ):
        return None
    if len(spec.inputs[0].shape) != 4 or spec.inputs[0].shape[0] != 1 or len(spec.output.shape) != 4:
        return None
    if set(given.dilation or (1, 1)) != {1} or given.clamp is not None or given.bounds is not None:
        return None
    window = Sliding.of(spec, (given.pool_size[0], given.pool_size[1]))
    if not window.wraps_once:
        return None
    if spec.kind == "max_pool2d":
        return Pool("max", window, FLOAT, (0, 0))
    cuts = cuts_of(window, given.counted or (0, 0, 0, 0))
    whole = Cut(given.pool_size[0] * given.pool_size[1], given.pool_size[0] * given.pool_size[1])
    return Pool("average", window, FLOAT, (0, 0), cuts=cuts if {*cuts} != {whole} else ())


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants of a float pool or mean, the widest first; none for any other operator."""
    if target.core.fpu and (pool := read_pool(spec)) is not None:
        forms = (_VectorMax, _Max) if pool.kind == "max" else (_VectorAverage, _Average)
        return served(pool, [*([("vectors", forms[0])] if target.vectors else []), ("channels", forms[1])])
    if target.vectors and (pool := read_mean(spec)) is not None:
        return served(pool, [("vectors", _VectorMean)])
    return []
