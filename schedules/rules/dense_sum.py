"""Accumulating kernels of dense layers, int8 and float32 (`schedules.kernels.accumulate`).

Each call multiplies some inputs by their weights, for a block of outputs at a time. Weights lie in the order in which calls read
them: of a block, for every `lanes` inputs those of its first output, then of its second. Of int8, DSP cores take four
inputs at a time in halfword pairs, MVE cores sixteen or eight in a vector, all others one; weights of four bits stay so
if the file stores them so. Sums start from biases with the input zero point's part, so that only the call with the last
input requantizes. Of float32, MVE cores take a block's outputs in vectors; sums are added up in the generic kernel's
order, the bias last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.accumulate import Accumulating
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.kernels.storage import Storage
from tvm_cascade.schedules.rules.dense import read_dense
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.fpu_float_kernels import FLOAT, FloatLayer, biases_of, read_layer
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import put, splat, vector
from tvm_cascade.schedules.rules.packing import nibbles
from tvm_cascade.schedules.rules.quantized import QuantizedConv, of_four_bits
from tvm_cascade.schedules.rules.requantize import emit_requantize
from tvm_cascade.schedules.rules.running_sums import RunningSums
from tvm_cascade.schedules.tir import Value, address_of, i32, tirx

_LANES = 4  # floats in a vector
_NUMBERS = 4  # of an output in the table: multiplier, addend, shift, bias


def dense_sum(spec: OperatorSpec, generic: Accumulating, target: KernelTarget, unit: int) -> Accumulating:
    """Build a core's accumulating kernel for a dense layer; return `generic` if no kernel in this module applies.

    Every call's inputs begin and end at multiples of `unit`.
    """
    layer = (read_dense(spec) or read_layer(spec)) if target.tunable else None
    if layer is None or layer.window.height != 1 or layer.window.kernel != (1, 1):
        return generic
    depth, outputs = layer.weights.shape[2:]
    if (generic.accumulator_bytes, generic.granule, generic.elements) != (4 * outputs, 1, depth):
        return generic
    made = _of_floats(layer, target, unit) if isinstance(layer, FloatLayer) else _of_integers(layer, target, unit)
    return generic if made is None else replace(generic, kernel=made.kernel(), granule=made.lanes)


def _of_integers(conv: QuantizedConv, target: KernelTarget, unit: int) -> _DenseSum | None:
    if conv.weights.dtype != np.int8 or conv.dtype != "int8":
        return None
    forms: list[type[_Integers]] = [_LongVectors, _Vectors] if target.vectors else [_Pairs] if target.dsp else []
    if target.packs_weights:
        nibbled: list[type[_Integers]] = [_LongNibbleVectors, _NibbleVectors] if target.vectors else [_NibblePairs]
        forms = [form for form in nibbled if forms and of_four_bits(conv, form.lanes)] + forms
    return next((form for form in forms if unit % form.lanes == 0), _Singles)(conv)


def _of_floats(layer: FloatLayer, target: KernelTarget, unit: int) -> _DenseSum | None:
    if layer.stored is not None or not target.core.fpu:
        return None
    if target.vectors and layer.outputs % _LANES == 0:
        return _FloatVectors(layer)
    return _Floats(layer) if unit % _FloatPairs.lanes else _FloatPairs(layer)


class _DenseSum(ABC):
    """Kernel builder: output blocks, and in each the products for a call's inputs."""

    lanes = 1  # inputs at a time
    block = 4  # outputs at a time
    sums = "int32"
    stored_as = ""  # of weights in fewer bytes than int8: `Storage.name`

    def __init__(self, layer: QuantizedConv | FloatLayer) -> None:
        self.depth, self.outputs = layer.weights.shape[2:]
        self.flat = layer.weights.reshape(self.depth, self.outputs)
        packed, table = self._packed(), self.table_of(layer)
        self.k = k = KernelBuilder([layer.dtype], [packed, table], [layer.out_dtype])
        self.x = k.view(k.inputs[0][0], layer.dtype, "xs")
        self.w = k.view(k.constants[0], str(packed.dtype), "ws")
        self.table = k.view(k.constants[1], str(table.dtype), "table")
        self.out = k.view(k.outputs[0], layer.out_dtype, "outs")
        self.running = RunningSums(k, self.sums)

    def _blocks(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first output, the number of blocks and their outputs: whole blocks, then the rest."""
        whole, rest = divmod(self.outputs, self.block)
        if whole:
            yield 0, whole, self.block
        if rest:
            yield whole * self.block, 1, rest

    def _packed(self) -> np.ndarray:
        parts = []
        for first, count, size in self._blocks():
            own = self.flat[:, first : first + count * size].reshape(-1, self.lanes, count, size)
            parts.append(own.transpose(2, 0, 3, 1).ravel())
        return np.concatenate(parts)

    def kernel(self) -> RowKernel:
        k, begin, end = self.k, self.running.begin, self.running.end
        passes = k.let(tirx.truncdiv(end - begin, i32(self.lanes)) if self.lanes > 1 else end - begin, "passes")
        for first, count, size in self._blocks():
            with k.loop(count, "block") as block:
                channel = first + block * self.block
                acc = k.local(size, "acc", self.sums)
                for j in range(size):
                    start = tirx.if_then_else(begin > 0, self.running.at(channel + j), self.start(channel + j))
                    k.store(acc, j, start)
                at = k.let(channel * self.depth + begin * size, "at")
                with k.loop(passes, "i") as i:
                    self.products(acc, i, at + i * (self.lanes * size), size)
                for j in range(size):
                    k.store(self.running.buffer, channel + j, acc[i32(j)])
        with k.when(end >= self.depth), k.loop(self.outputs, "c") as c:
            k.store(self.out, c, self.finished(c, k.let(self.running.at(c), "sum", self.sums)))
        kernel = self.running.finished("dense_sum")
        saved = self.flat.size - kernel.constants[0].nbytes
        return replace(kernel, storage=Storage(self.stored_as, saved)) if self.stored_as else kernel

    @abstractmethod
    def table_of(self, layer: QuantizedConv | FloatLayer) -> np.ndarray:
        """Return the outputs' numbers, flat."""

    @abstractmethod
    def start(self, channel: Value) -> Value:
        """Return an output's sum before the first input."""

    @abstractmethod
    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        """Emit the products of the call's inputs from `i * lanes` on, whose weights begin at index `weights`."""

    @abstractmethod
    def finished(self, channel: Value, total: Value) -> Value:
        """Return an output from its sum."""


class _Integers(_DenseSum):
    def __init__(self, conv: QuantizedConv) -> None:
        self.conv = conv
        super().__init__(conv)

    def table_of(self, layer: QuantizedConv | FloatLayer) -> np.ndarray:
        bias = self.conv.bias.astype(np.int64) - self.conv.input_zero_point * self.flat.sum(0, dtype=np.int64)
        return np.concatenate([self.conv.requantize.table, bias.astype(np.int32)[:, None]], axis=1).ravel()

    def _number(self, channel: Value, which: int) -> Value:
        return self.table[channel * _NUMBERS + which]

    def start(self, channel: Value) -> Value:
        return self._number(channel, 3)

    def finished(self, channel: Value, total: Value) -> Value:
        k = self.k
        m, addend, shift = (k.let(self._number(channel, i), name) for i, name in enumerate(("m", "r", "e")))
        return emit_requantize(k, self.conv.requantize, total, m, addend, shift).astype(self.conv.out_dtype)


class _Singles(_Integers):
    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        k = self.k
        x = k.let(self.x[i].astype("int32"), "xv")
        for j in range(size):
            k.store(acc, j, acc[i32(j)] + x * self.w[weights + j].astype("int32"))


class _Pairs(_Integers):
    lanes = 4

    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        k = self.k
        word = k.let(call("ldr", address_of(self.x[i * self.lanes])), "xw")
        x = [k.let(call(f"sxtb16{turned}", word), "xp") for turned in ("", "_ror8")]
        for j in range(size):
            word = k.let(call("ld32", address_of(self.w[weights + j * self.lanes])), "ww")
            for pair, turned in zip(x, ("", "_ror8"), strict=True):
                w = k.let(call(f"sxtb16{turned}", word), "wp")
                k.store(acc, j, call("smlad", pair, w, acc[i32(j)]))


class _Vectors(_Integers):
    lanes = 8

    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        k, lanes = self.k, self.lanes
        dtype = f"int{128 // lanes}x{lanes}"
        x = k.let(vector(self.x, i * lanes, lanes).astype(dtype), "xv", dtype)
        for j in range(size):
            w = k.let(vector(self.w, weights + j * lanes, lanes).astype(dtype), "wv", dtype)
            total = tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.vmldava", 0, 0, 0, acc[i32(j)], x, w)
            k.store(acc, j, total)


class _LongVectors(_Vectors):
    lanes = 16


class _Nibbles(_Integers):
    """Weights of four bits, half the flash: kernels multiply by sixteen times the weights, so that sums are sixteen times
    as large until they are requantized.
    """

    stored_as = "4 bits"

    def start(self, channel: Value) -> Value:
        return super().start(channel) * 16

    def finished(self, channel: Value, total: Value) -> Value:
        return super().finished(channel, self.k.let(tirx.shift_right(total, i32(4)), "acc"))


class _NibblePairs(_Nibbles):
    lanes = 8

    def _packed(self) -> np.ndarray:
        return nibbles(super()._packed())

    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        k = self.k
        x = []
        for half in range(2):
            word = k.let(call("ldr", address_of(self.x[i * self.lanes + half * 4])), "xw")
            x.append([k.let(call(f"sxtb16{turned}", word), "xp") for turned in ("", "_ror8")])
        for j in range(size):
            eight = k.let(self.w[tirx.truncdiv(weights, i32(self.lanes)) + j], "ww")
            for pairs, half in zip(x, ("lower_nibbles", "upper_nibbles"), strict=True):
                four = k.let(call(half, eight), "wn")
                for pair, turned in zip(pairs, ("", "_ror8"), strict=True):
                    w = k.let(call(f"sxtb16{turned}", four), "wp")
                    k.store(acc, j, call("smlad", pair, w, acc[i32(j)]))


class _NibbleVectors(_Nibbles):
    """Vectors of eight bytes, widened to halfwords, hold sixteen weights: first those in the lower halves."""

    lanes = 16

    def _packed(self) -> np.ndarray:
        halves = super()._packed().reshape(-1, 2, self.lanes // 2).view(np.uint8)
        return (halves[:, 0] & 15 | halves[:, 1] << 4).astype(np.uint8).view(np.int8).ravel()

    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        k, lanes = self.k, self.lanes // 2
        dtype = f"int{128 // lanes}x{lanes}"
        x = [k.let(vector(self.x, i * self.lanes + n, lanes).astype(dtype), "xv", dtype) for n in (0, lanes)]
        for j in range(size):
            place = tirx.truncdiv(weights, i32(2)) + j * lanes
            both = k.let(vector(self.w, place, lanes).astype(dtype), "wv", dtype)
            for part, half in zip(x, (self._lower(both), self._constant(both, -16, tirx.bitwise_and)), strict=True):
                w = k.let(half, "wn", dtype)
                total = tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.vmldava", 0, 0, 0, acc[i32(j)], part, w)
                k.store(acc, j, total)

    def _constant(self, vectors: Value, number: int, operator: Callable[[Value, Value], Value]) -> Value:
        return operator(vectors, splat(tirx.const(number, f"int{256 // self.lanes}"), self.lanes // 2))

    def _lower(self, both: Value) -> Value:
        return self._constant(self._constant(both, 12, tirx.shift_left), 8, tirx.shift_right)


class _LongNibbleVectors(_NibbleVectors):
    """Vectors of sixteen bytes hold thirty-two weights."""

    lanes = 32

    def _lower(self, both: Value) -> Value:
        return self._constant(both, 4, tirx.shift_left)


class _Floats(_DenseSum):
    block = 8
    sums = FLOAT

    def __init__(self, layer: FloatLayer) -> None:
        self.layer = layer
        super().__init__(layer)

    def table_of(self, layer: QuantizedConv | FloatLayer) -> np.ndarray:
        return biases_of(self.layer)

    def start(self, channel: Value) -> Value:
        return tirx.const(0.0, FLOAT)

    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        k = self.k
        for n in range(self.lanes):
            x = k.let(self.x[i * self.lanes + n], "xv", FLOAT)
            for j in range(size):
                k.store(acc, j, call("mlaf", x, self.w[weights + j * self.lanes + n], acc[i32(j)]))

    def finished(self, channel: Value, total: Value) -> Value:
        bias = self.k.let(self.table[channel], "bias", FLOAT) if self.layer.bias is not None else None
        return self.layer.finished(total, bias)


class _FloatPairs(_Floats):
    lanes = 2


class _FloatVectors(_Floats):
    def __init__(self, layer: FloatLayer) -> None:
        self.block = next(n for n in (16, 8, _LANES) if layer.outputs % n == 0)
        super().__init__(layer)

    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        x = splat(self.k.let(self.x[i], "xv", FLOAT))
        for j in range(0, size, _LANES):
            product = x * vector(self.w, weights + j, _LANES)
            put(self.k, acc, j, vector(acc, j, _LANES) + product, _LANES)
