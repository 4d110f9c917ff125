"""Accumulating kernels of int8 dense layers (`schedules.kernels.accumulate`).

Each call multiplies some inputs by their weights, for blocks of four outputs. Weights lie in the order in which calls read
them: of a block, for every `lanes` inputs those of its first output, then of its second. DSP cores take four inputs at a
time in halfword pairs, MVE cores sixteen or eight in a vector, all others one. The sums start from biases with the
input zero point's part, so that only the call with the last input requantizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.accumulate import Accumulating
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.dense import read_dense
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import vector
from tvm_cascade.schedules.rules.quantized import QuantizedConv
from tvm_cascade.schedules.rules.requantize import emit_requantize
from tvm_cascade.schedules.rules.running_sums import RunningSums
from tvm_cascade.schedules.tir import Value, address_of, i32, tirx

_BLOCK = 4  # outputs
_NUMBERS = 4  # of an output in the table: multiplier, addend, shift, bias


def dense_sum(spec: OperatorSpec, generic: Accumulating, target: KernelTarget, unit: int) -> Accumulating:
    """Build a core's accumulating kernel for a dense layer; return `generic` if no kernel in this module applies.

    Every call's inputs begin and end at multiples of `unit`.
    """
    conv = read_dense(spec) if target.tunable else None
    if conv is None or conv.weights.dtype != np.int8 or conv.dtype != "int8" or conv.window.height != 1:
        return generic
    depth, outputs = conv.weights.shape[2:]
    if (generic.accumulator_bytes, generic.granule, generic.elements) != (4 * outputs, 1, depth):
        return generic
    form: type[_DenseSum] = _Singles
    if target.vectors and unit % _Vectors.lanes == 0:
        form = _Vectors if unit % _LongVectors.lanes else _LongVectors
    elif target.dsp and unit % _Pairs.lanes == 0:
        form = _Pairs
    return replace(generic, kernel=form(conv).kernel(), granule=form.lanes)


class _DenseSum(ABC):
    """Builder of the kernel: blocks of outputs, and in each the products of a call's inputs."""

    lanes = 1  # inputs at a time

    def __init__(self, conv: QuantizedConv) -> None:
        self.conv = conv
        self.depth, self.outputs = conv.weights.shape[2:]
        self.flat = conv.weights.reshape(self.depth, self.outputs)
        self.k = k = KernelBuilder([conv.dtype], [self._packed(), self._table()], [conv.out_dtype])
        self.x = k.view(k.inputs[0][0], conv.dtype, "xs")
        self.w = k.view(k.constants[0], "int8", "ws")
        self.table = k.view(k.constants[1], "int32", "table")
        self.out = k.view(k.outputs[0], conv.out_dtype, "outs")
        self.sums = RunningSums(k)

    def _blocks(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first output, the number of blocks and their outputs: whole blocks, then the rest."""
        whole, rest = divmod(self.outputs, _BLOCK)
        if whole:
            yield 0, whole, _BLOCK
        if rest:
            yield whole * _BLOCK, 1, rest

    def _packed(self) -> np.ndarray:
        parts = []
        for first, count, size in self._blocks():
            own = self.flat[:, first : first + count * size].reshape(-1, self.lanes, count, size)
            parts.append(own.transpose(2, 0, 3, 1).ravel())
        return np.concatenate(parts)

    def _table(self) -> np.ndarray:
        bias = self.conv.bias.astype(np.int64) - self.conv.input_zero_point * self.flat.sum(0, dtype=np.int64)
        return np.concatenate([self.conv.requantize.table, bias.astype(np.int32)[:, None]], axis=1).ravel()

    def kernel(self) -> RowKernel:
        k, begin, end = self.k, self.sums.begin, self.sums.end
        passes = k.let(tirx.truncdiv(end - begin, i32(self.lanes)) if self.lanes > 1 else end - begin, "passes")
        for first, count, size in self._blocks():
            with k.loop(count, "block") as block:
                channel = first + block * _BLOCK
                acc = k.local(size, "acc")
                for j in range(size):
                    start = tirx.if_then_else(begin > 0, self.sums.at(channel + j), self.number(channel + j, 3))
                    k.store(acc, j, start)
                at = k.let(channel * self.depth + begin * size, "at")
                with k.loop(passes, "i") as i:
                    self.products(acc, i, at + i * (self.lanes * size), size)
                for j in range(size):
                    k.store(self.sums.buffer, channel + j, acc[i32(j)])
        with k.when(end >= self.depth), k.loop(self.outputs, "c") as c:
            m, addend, shift = (k.let(self.number(c, i), name) for i, name in enumerate(("m", "r", "e")))
            total = k.let(self.sums.at(c), "sum")
            value = emit_requantize(k, self.conv.requantize, total, m, addend, shift)
            k.store(self.out, c, value.astype(self.conv.out_dtype))
        return self.sums.finished("dense_sum")

    def number(self, channel: Value, which: int) -> Value:
        return self.table[channel * _NUMBERS + which]

    @abstractmethod
    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        """Emit the products of the call's inputs from `i * lanes` on, whose weights begin at index `weights`."""


class _Singles(_DenseSum):
    def products(self, acc: Value, i: Value, weights: Value, size: int) -> None:
        k = self.k
        x = k.let(self.x[i].astype("int32"), "xv")
        for j in range(size):
            k.store(acc, j, acc[i32(j)] + x * self.w[weights + j].astype("int32"))


class _Pairs(_DenseSum):
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


class _Vectors(_DenseSum):
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
