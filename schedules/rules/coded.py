"""Weights in a prefix code (`schedules.rules.prefix_code`), decoded by the kernel that multiplies them.

A kernel makes the code's table in scratch memory, then decodes the weights of a block of output channels behind it, and
computes the block's part of all its rows. TensorFlow Lite Micro, which decodes as well, keeps a whole tensor. Where a call
computes many pixels the time to decode is small beside the products; a dense layer of one row takes several times the
instructions. So a layer is coded only where every byte saved costs few enough instructions (`KernelTarget.code_price`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.prefix_code import BEHIND, BITS, ESCAPE, HEAD, TABLE_BYTES, best_code
from tvm_cascade.schedules.rules.quantized import QuantizedConv
from tvm_cascade.schedules.tir import Value, address_of, i32, tirx

DECODED = 11  # instructions that a weight takes, roughly
DECODED_BY_BYTES = 28  # of a core that loads no words from any address
LEAST_SAVED = 128  # bytes, or the code to decode them is not worth it
_TABLE = 2000  # instructions that a table takes, roughly
_COPIES = 4  # entries of a code, usually, for estimates
_SYMBOLS = 3  # of up to `BITS` bits, that a word holds from any of its first eight bits on
_WORD = 4


def encoded(weights: np.ndarray) -> np.ndarray:
    """Encode packed weights as int32: the middle of int16 weights, the code's head, and a stream of weights less this middle."""
    stored, middles = _bytes_of(weights), [middle_of(weights)] * (weights.itemsize - 1)
    code = best_code(np.bincount(stored, minlength=256).tobytes())
    whole = np.concatenate([np.array(middles, "<i4").view(np.uint8), code.head, code.encoded(stored)])
    return np.concatenate([whole, np.zeros(-whole.size % _WORD, np.uint8)]).view(np.int32)


def first_weight(dtype: str) -> int:
    """Return the index of the first decoded weight: it is behind the table."""
    return TABLE_BYTES // np.dtype(dtype).itemsize


def middle_of(weights: np.ndarray) -> int:
    """Return the number that int16 weights are stored less, so that they fit int8; 0 for int8."""
    return 0 if weights.dtype == np.int8 else (int(weights.min()) + int(weights.max()) + 1) // 2


def _bytes_of(weights: np.ndarray) -> np.ndarray:
    """Return weights less their middle, flat, as bytes."""
    return (weights.astype(np.int16) - middle_of(weights)).astype(np.int8).reshape(-1).view(np.uint8)


class Decoder:
    """Emits the code that decodes weights, in the order of the stream."""

    def __init__(self, k: KernelBuilder, codes: Any, scratch: Any, dtype: str) -> None:
        self.k, self.dtype, self.first = k, dtype, first_weight(dtype)
        self.stream = k.view(codes, "uint8", "stream")
        self.words = k.view(codes, "int32", "middles")
        self.to, self.entries = k.view(scratch, dtype, "decoded"), k.view(scratch, "int16", "entries")

    def open(self) -> None:
        """Emit the table, and the position in the stream at the first weight."""
        k, wide = self.k, self.dtype != "int8"
        head = _WORD if wide else 0
        self.bit, self.ahead = k.local(1, "bit"), k.local(1, "ahead")
        self.middle = k.let(self.words[i32(0)], "middle") if wide else None
        names = ("place", "length", "left", "byte")
        place, length, left, at = (k.local(1, name) for name in names)
        for number, first in zip((place, length, left, at), (0, 0, 0, head + HEAD), strict=True):
            k.store(number, 0, i32(first))
        escape = k.let(self.stream[i32(head)].astype("int32") + (head + HEAD), "escape")
        with k.repeated(
            tirx.LT(place[i32(0)], i32(1 << BITS))
        ):  # of a number of passes that no compiler knows or unrolls
            with k.when(tirx.EQ(left[i32(0)], i32(0))):
                k.store(length, 0, length[i32(0)] + 1)
                k.store(left, 0, self.stream[length[i32(0)] + head].astype("int32"))
            with k.when(tirx.NE(left[i32(0)], i32(0))):
                byte, n = at[i32(0)], length[i32(0)]
                entry = tirx.shift_left(self.stream[byte].astype("int32"), i32(8)) + n
                entry = entry + tirx.Select(tirx.EQ(byte, escape), i32(ESCAPE), i32(0))
                self._fill(place[i32(0)], n, k.let(entry, "entry"))
                k.store(place, 0, place[i32(0)] + tirx.shift_right(i32(1 << BITS), n))
                k.store(at, 0, byte + 1)
                k.store(left, 0, left[i32(0)] - 1)
        k.store(self.bit, 0, at[i32(0)] * 8)

    def _fill(self, place: Value, length: Value, entry: Value) -> None:
        """Store the entry of a code at all indices that begin with it."""
        k, at = self.k, self.k.local(1, "at")
        turned = tirx.shift_right(call("rbit", place), i32(32 - BITS))
        k.store(at, 0, tirx.bitwise_and(turned, i32((1 << BITS) - 1)))
        with k.loop(tirx.shift_right(i32(1 << BITS), length), "copy", passes=_COPIES):
            k.store(self.entries, at[i32(0)], entry.astype("int16"))
            k.store(at, 0, at[i32(0)] + tirx.shift_left(i32(1), length))

    def next(self, count: int) -> None:
        """Emit the decoding of the next `count` weights into the scratch memory."""
        whole = count // _SYMBOLS
        if whole:
            with self.k.loop(whole, "d") as d:
                self._several(d * _SYMBOLS, _SYMBOLS)
        if count % _SYMBOLS:
            self._several(i32(whole * _SYMBOLS), count % _SYMBOLS)

    def _several(self, first: Value, count: int) -> None:
        self._look()
        for i in range(count):
            self._one(first + i)

    def _look(self) -> None:
        """Load the bits from the position on: at least 25."""
        at = self.bit[i32(0)]
        word = self.k.let(call("ldr", address_of(self.stream[tirx.shift_right(at, i32(3))])), "word")
        self.k.store(self.ahead, 0, tirx.shift_right(word, tirx.bitwise_and(at, i32(7))))

    def _one(self, index: Value) -> None:
        k, ahead, bit = self.k, self.ahead[i32(0)], self.bit[i32(0)]
        low = tirx.bitwise_and(ahead, i32((1 << BITS) - 1))
        entry = k.let(self.entries[low].astype("int32"), "entry")
        k.store(self.ahead, 0, call("asr", ahead, entry))
        k.store(self.bit, 0, bit + tirx.bitwise_and(entry, i32(255)))
        self._put(index, tirx.shift_right(entry, i32(8)))
        with k.when(tirx.NE(call("rare", tirx.bitwise_and(entry, i32(ESCAPE))), i32(0))):
            k.store(self.bit, 0, self.bit[i32(0)] - ESCAPE)
            self._look()
            self._put(index, self.ahead[i32(0)].astype("int8"))
            k.store(self.bit, 0, self.bit[i32(0)] + 8)
            self._look()

    def _put(self, index: Value, number: Value) -> None:
        whole = number if self.middle is None else number.astype("int32") + self.middle
        self.k.store(self.to, index + self.first, whole.astype(self.dtype))


def is_coded(conv: QuantizedConv, target: KernelTarget) -> bool:
    """Return True for a layer with weights that the target's kernels decode: coded, they take so many bytes fewer that a byte
    costs at most `code_price` instructions.
    """
    if not target.code_price or not codable(conv):
        return False
    saved = saved_bytes(conv, target)
    return saved >= LEAST_SAVED and instructions_of(conv, target) <= target.code_price * saved


def codable(conv: QuantizedConv) -> bool:
    """Return True for a layer that the kernels for coded weights take."""
    weights = conv.weights
    plain = not (conv.depthwise or conv.parts) and conv.groups == 1
    return plain and (weights.dtype == np.int8 or int(weights.max()) - int(weights.min()) < 256)


def instructions_of(conv: QuantizedConv, target: KernelTarget) -> int:
    """Estimate the instructions that decode a layer's weights in an inference: once in every row."""
    each = DECODED if target.dsp or target.mve else DECODED_BY_BYTES
    return (each * conv.weights.size + _TABLE) * conv.window.out_height * conv.window.joined_rows


def saved_bytes(conv: QuantizedConv, target: KernelTarget) -> int:
    """Return the bytes that weights take less in a prefix code, its head included; 0 where all are equal."""
    weights = conv.weights
    counts = np.bincount(_bytes_of(weights), minlength=256)
    if np.count_nonzero(counts) == 1:
        return 0
    code = best_code(counts.tobytes())
    halfwords = not target.vectors and (weights.dtype == np.int16 or (conv.unsigned and target.dsp))
    return weights.size * (1 + halfwords) - code.head.size - BEHIND - (int(counts @ code.bits) + 7) // 8
