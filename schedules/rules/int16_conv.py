"""Row kernels of convolutions of int16 by int8 weights for the M-profile vector extension (Cortex-M55 and M85), through
LLVM.

Eight products per instruction (`vmladava`), then four for the rest, then one. The sums fit words: over the whole window
if every channel's weights sum to at most 65,535, else over a kernel row, after which they are added up in 64 bits. The
results equal the reference's 64-bit sums.

If rows of taps are whole vectors, even when cut off by padding, four channels' rows are interleaved: everything within
an instruction's reach is near. Otherwise each channel's weights lie one behind another, so a row may begin anywhere;
then two channels at a time leave registers for addresses.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.schedules.kernels.spec import ONCE, OperatorSpec
from tvm_cascade.schedules.rules.conv_row import Blocking
from tvm_cascade.schedules.rules.geometry import Columns, Sliding
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import LANES, vector
from tvm_cascade.schedules.rules.opaque_loops import OpaqueLoops
from tvm_cascade.schedules.rules.quantized import QuantizedConv
from tvm_cascade.schedules.rules.requantize import Requantize, may_tie
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

_VECTOR = 8  # products of an instruction
INTERLEAVED = tuple(Blocking(p, LANES, unroll=n, step=s) for p, n, s in ((2, 4, 3), (2, 1, 1), (1, 1, 1)))
IN_ROWS = tuple(Blocking(p, 2, unroll=n, step=s) for p, n, s in ((2, 4, 3), (2, 1, 1), (1, 1, 1)))
_MOST = 65535  # by which int16 values are multiplied in all, where the sum is of 32 bits
_ENTRY = 3  # numbers of a channel: multiplier, bits to shift to the right less one, bias


def read_conv(spec: OperatorSpec) -> QuantizedConv | None:
    """Read a convolution of int16 by int8 weights with zero points 0; None for any other operator and for sums above
    `_MOST`.
    """
    given, data = spec.attributes, spec.inputs[0]
    if spec.kind not in CONVOLUTIONS or len(spec.constants) != 4 or {data.dtype, spec.output.dtype} != {"int16"}:
        return None
    weights, bias, m, s = spec.constants
    zeros = given.input_zero_point, given.output_zero_point, given.weight_zero_point
    if weights.dtype != np.int8 or data.shape[0] != 1 or any(zeros) or bias.dtype != np.int32:
        return None
    window, outputs = Sliding.of(spec, (weights.shape[0], weights.shape[1])), spec.output.shape[3]
    if not window.wraps_once or (window.rows_by_table and window.dilated_rows):
        return None
    m, s = (np.broadcast_to(a.ravel(), (outputs,)).astype(np.int64) for a in (m, s))
    up = (30 if given.rounding == ONCE else 14) - s
    if _largest(weights, (1, 2)) > _MOST or up.min() < 0:
        return None
    if given.rounding == ONCE and not _half_up_serves(weights, bias.ravel(), m, s):
        return None
    table = np.stack([m, up, bias.ravel()], axis=1).astype(np.int32)
    lo, hi = given.clamp or (-32768, 32767)
    requantize = Requantize(table, False, True, 0, lo, hi, "rounds once, in 64 bits")
    groups = given.groups or 1
    return QuantizedConv(window, weights, bias, 0, requantize, False, dtype="int16", out_dtype="int16", groups=groups)


def _half_up_serves(weights: np.ndarray, bias: np.ndarray, m: np.ndarray, s: np.ndarray) -> bool:
    """Return True if sums times multipliers of 31 bits fit 64 bits, the results 32, and none lies halfway."""
    most = np.abs(weights.astype(np.int64)).sum((0, 1, 2)).reshape(-1)
    most = np.broadcast_to(most, bias.shape) * (1 << 15) + np.abs(bias.astype(np.int64))
    fits = most.max() < 1 << 32 and (most * np.ldexp(m.astype(np.float64), s - 31)).max() < (1 << 31) - 1
    return bool(fits) and not may_tie(m, s, most)


def _largest(weights: np.ndarray, axes: tuple[int, ...]) -> int:
    return int(np.abs(weights.astype(np.int64)).sum(axes).max())


class _Conv(OpaqueLoops):
    """Convolution by dot products: eight at a time along a kernel row."""

    group = _VECTOR

    def pack_table(self) -> np.ndarray:
        """Pack the loop counts, then each channel's numbers."""
        self.passes = self.pass_counts()
        self.by_rows = _largest(self.conv.weights, (0, 1, 2)) > _MOST
        return np.concatenate([np.array(self.passes, np.int32), self.conv.requantize.table.ravel()])

    def pack_weights(self) -> np.ndarray:
        if _interleaved(self.conv):
            return super().pack_weights()
        return self.arranged(lambda w: np.ascontiguousarray(w.reshape(-1, w.shape[3]).T).ravel())

    def packed(self, size: int) -> int:
        return super().packed(size) if _interleaved(self.conv) else 1

    def place(self, weights: Value, size: int, j: int, tap: Value) -> Value:
        return super().place(weights, size, j, tap) if _interleaved(self.conv) else weights + j * self.taps + tap

    def bias_at(self, y: Value) -> Value:
        return 0

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        return self._zeros(pixels * size, "int64" if self.by_rows else "int32")

    def _zeros(self, count: int, dtype: str) -> Value:
        acc = self.k.local(count, "acc", dtype)
        for i in range(count):
            self.k.store(acc, i, tirx.const(0, dtype))
        return acc

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        lo, hi = group.k0 * self.depth, group.k1 * self.depth
        sums = self._zeros(pixels * size, "int32") if self.by_rows else acc
        passes, step = self.split(hi - lo)
        if passes:
            with self.loop(passes) as i:
                for u in range(step):
                    self._dot(sums, at, weights, (i * step + u) * self.group, lo, self.group, pixels, size)
        done = passes * step * self.group
        if hi - lo - done >= LANES:
            self._dot(sums, at, weights, i32(done), lo, LANES, pixels, size)
            done += LANES
        for tap in range(done, hi - lo):
            self._single(sums, at, weights, tap, lo, pixels, size)
        for i in range(pixels * size if self.by_rows else 0):
            self.k.store(acc, i, acc[i32(i)] + sums[i32(i)].astype("int64"))

    def _dot(
        self, acc: Value, at: Value, weights: Value, tap: Value, lo: int, lanes: int, pixels: int, size: int
    ) -> None:
        k, hop, wide = self.k, self.g.strides[1] * self.g.channels, {_VECTOR: "int16x8", LANES: "int32x4"}[lanes]
        xs = [k.let(vector(self.x, at + tap + p * hop, lanes).astype(wide), "xv", wide) for p in range(pixels)]
        for j in range(size):
            w = k.let(vector(self.w, self.place(weights, size, j, tap + lo), lanes).astype(wide), "wv", wide)
            for p, x in enumerate(xs):
                value = acc[i32(p * size + j)]
                total = tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.vmldava", 0, 0, 0, value, x, w)
                k.store(acc, p * size + j, total)

    def _single(self, acc: Value, at: Value, weights: Value, tap: int, lo: int, pixels: int, size: int) -> None:
        k, hop = self.k, self.g.strides[1] * self.g.channels
        xs = [k.let(self.x[at + tap + p * hop].astype("int32"), "xv") for p in range(pixels)]
        for j in range(size):
            w = k.let(self.w[self.place(weights, size, j, tap + lo)].astype("int32"), "wv")
            for p, x in enumerate(xs):
                k.store(acc, p * size + j, call("mla", x, w, acc[i32(p * size + j)]))

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        """Store `clamp(((sum + bias) m + 2^up) >> (up + 1))`, in 64 bits: `m` has 16 bits, or 31 if no sum lies
        halfway.
        """
        k, q = self.k, self.conv.requantize
        for j in range(size):
            entry = (channel + j) * _ENTRY + len(self.passes)
            m, up, bias = (
                k.let(self.table[entry + i].astype("int64"), s, "int64") for i, s in enumerate(("m", "up", "b"))
            )
            half = k.let(tirx.shift_left(tirx.const(1, "int64"), up), "half", "int64")
            for p in range(pixels):
                product = (acc[i32(p * size + j)].astype("int64") + bias) * m + half
                value = tirx.shift_right(product, up + tirx.const(1, "int64")).astype("int32")
                value = k.let(tirx.max(tirx.min(value, i32(q.hi)), i32(q.lo)), "q")
                k.store(self.out, (x + p) * self.conv.outputs + channel + j, value.astype("int16"))


def convolutions(spec: OperatorSpec) -> list[Variant]:
    """List a convolution's variants, the default first, the smallest code last; none for any other operator."""
    conv = read_conv(spec)
    if conv is None:
        return []
    rows = max(conv.window.tile_rows, 1)
    blockings = INTERLEAVED if _interleaved(conv) else IN_ROWS
    return [Variant(f"dot {b.name}", lambda b=b: _Conv(conv, b).build(), rows) for b in blockings]


def _interleaved(conv: QuantizedConv) -> bool:
    """Return True if rows of taps are whole vectors, even when cut off by padding."""
    depth, whole = conv.weights.shape[2], conv.non_contiguous or not conv.window.whole_columns
    return depth * (1 if whole else conv.weights.shape[1]) % _VECTOR == 0
