"""Row kernels for float32 max pools on cores with a floating-point unit, one channel at a time, or four by MVE vectors;
and for means over rows and columns by vectors.

Each maximum begins with the least number, each sum with zero; they take the taps in the generic kernel's order.
"""

from __future__ import annotations

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.geometry import Sliding
from tvm_cascade.schedules.rules.lanes import LANES, put, splat, vector
from tvm_cascade.schedules.rules.pooling import OpaqueTaps, Pool, Pooling, served
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

FLOAT = "float32"


class _Max(Pooling):
    """One channel at a time."""

    def start(self) -> Value:
        acc = self.k.local(1, "acc", FLOAT)
        self.k.store(acc, 0, tirx.min_value(FLOAT))
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        value, old = self.k.let(self.x[place], "xv", FLOAT), self.k.let(acc[0], "old", FLOAT)
        self.k.store(acc, 0, tirx.max(old, value))

    def finish(self, acc: Value, place: Value) -> None:
        self.k.store(self.out, place, acc[0])


class _VectorMax(Pooling):
    """Four channels at a time."""

    lanes, overlaps = LANES, True

    def start(self) -> Value:
        acc = self.k.local(LANES, "acc", FLOAT)
        put(self.k, acc, 0, splat(tirx.min_value(FLOAT)), LANES)
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        put(self.k, acc, 0, tirx.max(vector(acc, 0, LANES), vector(self.x, place, LANES)), LANES)

    def finish(self, acc: Value, place: Value) -> None:
        put(self.k, self.out, place, vector(acc, 0, LANES), LANES)


class _VectorMean(OpaqueTaps):
    """Four channels at a time. Lanes are divided singly: there is no vector division."""

    lanes, overlaps = LANES, True

    def start(self) -> Value:
        acc = self.k.local(LANES, "acc", FLOAT)
        put(self.k, acc, 0, splat(tirx.const(0.0, FLOAT)), LANES)
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        put(self.k, acc, 0, vector(acc, 0, LANES) + vector(self.x, place, LANES), LANES)

    def finish(self, acc: Value, place: Value) -> None:
        for i in range(LANES):
            self.k.store(self.out, place + i, acc[i32(i)] / tirx.const(float(self.pool.taps), FLOAT))


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


def read_max(spec: OperatorSpec) -> Pool | None:
    """Read a float32 max pool, NHWC with batch 1; None for any other operator."""
    given = spec.attributes
    if (
        spec.kind != "max_pool2d"
        or {t.dtype for t in (*spec.inputs, spec.output)} != {FLOAT}
        or given.pool_size is None
    ):
        return None
    if len(spec.inputs[0].shape) != 4 or spec.inputs[0].shape[0] != 1 or len(spec.output.shape) != 4:
        return None
    if set(given.dilation or (1, 1)) != {1} or given.clamp is not None or given.bounds is not None:
        return None
    window = Sliding.of(spec, (given.pool_size[0], given.pool_size[1]))
    return Pool("max", window, FLOAT, (0, 0)) if window.wraps_once else None


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants of a float max pool or mean, the widest first; none for any other operator."""
    if target.core.fpu and (pool := read_max(spec)) is not None:
        return served(pool, [*([("vectors", _VectorMax)] if target.vectors else []), ("channels", _Max)])
    if target.vectors and (pool := read_mean(spec)) is not None:
        return served(pool, [("vectors", _VectorMean)])
    return []
