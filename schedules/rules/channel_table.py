"""`ChannelTable`: the initial sums of a layer's channels and their requantization, as int32 words in flash.

A table has one of four layouts. `[...]` is a word; a channel has a bias for every set of valid window taps.

- compact: `[f]`, then by channel `[m][256 bias + e - 1]...`. The addend of the short and the narrow form is
  `f << (e - 1)` with `f = 2 zo + 1`, that of the form that rounds once has `f = 1`. Biases have 24 bits;
- shared: `[m][r][e]` of all channels, then by channel `[bias]...`, where all channels are requantized alike;
- narrow: the same with biases of 24 bits, in three bytes each;
- full: by channel `[m][r][e][bias]...`, for everything else.

Multiplier m, addend r, shift e and output zero point zo are those of `schedules.rules.requantize`; e is to the right.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from tvm_cascade.schedules.rules.emit import Builder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.requantize import Requantize, emit_requantize
from tvm_cascade.schedules.tir import Value, address_of, i32, tirx

_SHARING = 16  # channels at least: of fewer, a table saves less than another kernel takes
_SHIFT_BITS = 8
_MOST = 1 << (31 - _SHIFT_BITS)  # biases of 24 bits, beside a shift or in three bytes, lie in [-_MOST, _MOST)
_BYTES = 3  # of a narrow bias


class Layout(Enum):
    """How a table of channels is laid out."""

    COMPACT = "compact"
    SHARED = "shared"
    NARROW = "narrow"
    FULL = "full"


class ChannelTable:
    """The table of a layer: `words`, int32, of which `head` stand in front and `width` belong to each channel."""

    def __init__(
        self,
        requantize: Requantize,
        biases: np.ndarray,
        may_share: bool = False,
        compact: bool = True,
        narrow: bool = False,
    ) -> None:
        """Fill the table. `biases` is int32 [sets of valid taps, channels]; `may_share` allows a shared layout for
        equal channels, `compact` the compact layout, `narrow` the narrow one in place of the shared one.
        """
        q, table = requantize, requantize.table
        shifts = _right_shifts(q)
        if may_share and len(table) >= _SHARING and bool((table == table[0]).all()):
            self.layout = Layout.NARROW if narrow and _in_24_bits(biases) else Layout.SHARED
            self._fixed, head, own = 0, table[0], biases.T
        elif compact and _fits(q, shifts, biases):
            self.layout, self._fixed, head = Layout.COMPACT, 1, np.array([1 if q.once else 2 * q.zero_point + 1])
            packed = biases.T.astype(np.int64) * (1 << _SHIFT_BITS) + (shifts[:, None] - 1)
            own = np.concatenate([table[:, :1], packed], axis=1)
        else:
            self.layout, self._fixed, head, own = Layout.FULL, 3, np.zeros(0), np.concatenate([table, biases.T], axis=1)
        self.head, self.width = len(head), own.shape[1]
        numbers = own.astype("<i4").ravel()
        if self.layout is Layout.NARROW:
            kept = numbers.view(np.uint8).reshape(-1, 4)[:, :_BYTES].ravel()
            numbers = np.concatenate([kept, np.zeros(-kept.size % 4, np.uint8)]).view("<i4")
        self.words = np.concatenate([head, numbers]).astype(np.int32)
        self._factor: Value = None

    def open(self, k: Builder, table: Value) -> None:
        """Bind the numbers all channels share; `table` is the buffer of `words`, and of words that may follow."""
        self._table = table
        if self.layout is Layout.COMPACT:
            self._factor = k.let(table[i32(0)], "f")
        if self.layout is Layout.NARROW:
            self._bytes = k.view(table.data, "uint8", "narrow")

    def bias(self, k: Builder, channel: Value, which: Value) -> Value:
        """Bind and return a channel's bias for the valid taps in set `which`."""
        if self.layout is Layout.NARROW:  # the upper bytes of a word
            place = (channel * self.width + which) * _BYTES + (4 * self.head - 1)
            return k.let(tirx.shift_right(call("ldr", address_of(self._bytes[place])), i32(8)), "start")
        word = self._table[channel * self.width + (self.head + self._fixed) + which]
        return k.let(tirx.shift_right(word, i32(_SHIFT_BITS)) if self.layout is Layout.COMPACT else word, "start")

    def requantized(self, k: Builder, q: Requantize, channel: Value, sums: list[Value]) -> list[Value]:
        """Emit the requantization of a channel's sums, int32; return the outputs, clamped."""
        compact = self.layout is Layout.COMPACT
        entry = 0 if self.layout in (Layout.SHARED, Layout.NARROW) else channel * self.width + self.head
        m = k.let(self._table[entry], "m")
        if compact:
            shift = k.let(self._table[entry + 1], "e")
            addend = k.let(call("lsl", self._factor, shift), "r") if _to_the_right(q) else i32(0)
        else:
            addend, shift = k.let(self._table[entry + 1], "r"), k.let(self._table[entry + 2], "e")
        return [emit_requantize(k, q, total, m, addend, shift, in_word=compact) for total in sums]


def _fits(q: Requantize, shifts: np.ndarray, biases: np.ndarray) -> bool:
    """Return True if the compact layout holds a layer's numbers."""
    return bool(not q.wide and _in_24_bits(biases) and shifts.min() >= 1 and shifts.max() <= 32)


def _in_24_bits(biases: np.ndarray) -> bool:
    return bool(biases.min() >= -_MOST and biases.max() < _MOST)


def _right_shifts(q: Requantize) -> np.ndarray:
    """Return the shifts to the right of a layer's channels."""
    return q.table[:, 2] if _to_the_right(q) else -q.table[:, 2]


def _to_the_right(q: Requantize) -> bool:
    """Test whether a table has shifts to the right and addends; that of the general form has neither."""
    return q.short or q.once or q.narrow
