"""Prefix codes of bytes, short enough for a kernel to decode by a table of 512 bytes.

Each value of a code has up to `BITS` bits, so that the next `BITS` bits of a stream are the index of a table entry: a value
and the length of its code. Rare values share one code, the escape, and follow it as eight plain bits. Lengths are the best
under that limit (package-merge: Larmore and Hirschberg, Journal of the ACM 37(3), 1990); the values behind the escape are those
that make stream and head shortest. Streams begin with the lowest bit of the first byte.

Codes are canonical, so a head says the table: which code is the escape, how many codes have each length, and the values by
length. Read from the first bit as the highest, codes are numbers of `BITS` bits that rise with the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

BITS = 8  # of a code, at most
HEAD = BITS + 1  # bytes in front of a head's values
ESCAPE = 128  # in the low byte of an entry, beside the length: eight plain bits follow
TABLE_BYTES = 2 << BITS
BEHIND = 4  # bytes behind a stream that a decoder may read: it loads words
_PLAIN = 8
_ESCAPED = 256  # the escape, among values
_MOST_KEPT = 254  # values with codes of their own: with the escape as many as a byte counts


@dataclass(frozen=True, slots=True, eq=False)
class PrefixCode:
    """A code for bytes."""

    lengths: np.ndarray  # [256], bits of each value's code; 0 for a value behind the escape
    escape: int  # bits of the escape's code; 0 without an escape

    @property
    def bits(self) -> np.ndarray:
        """Return the bits that each value takes in a stream, [256]."""
        return np.where(self.lengths > 0, self.lengths, self.escape + _PLAIN)

    @property
    def by_length(self) -> list[tuple[int, int]]:
        """Return length and value of each code, 256 for the escape, the shortest first."""
        lengths = [*(int(n) for n in self.lengths), self.escape]
        return sorted((length, value) for value, length in enumerate(lengths) if length)

    @property
    def head(self) -> np.ndarray:
        """Return the code as a kernel reads it, uint8."""
        lengths, values = (list(part) for part in zip(*self.by_length, strict=True))
        escape = values.index(_ESCAPED) if self.escape else len(values)
        counts = np.bincount(lengths, minlength=BITS + 1)[1:]
        return np.concatenate([[escape], counts, np.array(values) % _ESCAPED]).astype(np.uint8)

    def words(self) -> tuple[np.ndarray, int]:
        """Return the bits in each value's code, lowest first, and in the escape's code."""
        found, place = np.zeros(_ESCAPED + 1, np.int64), 0
        for length, value in self.by_length:
            found[value] = int(f"{place:0{BITS}b}"[::-1], 2)
            place += 1 << BITS >> length
        return found[:_ESCAPED], int(found[_ESCAPED])

    def encoded(self, values: np.ndarray) -> np.ndarray:
        """Encode bytes, uint8, as a stream, uint8, with `BEHIND` zeros at its end."""
        words, escape = self.words()
        codes = np.where(self.lengths > 0, words, escape | np.arange(256) << self.escape)[values]
        taken = self.bits[values]
        place = np.arange(int(self.bits.max()))
        bits = (codes[:, None] >> place & 1)[place < taken[:, None]].astype(np.uint8)
        return np.concatenate([np.packbits(bits, bitorder="little"), np.zeros(BEHIND, np.uint8)])


@lru_cache(maxsize=256)  # every form of a layer's kernel asks again
def best_code(numbers: bytes) -> PrefixCode:
    """Find the code with the fewest bytes of head and stream for bytes that occur as often as `numbers` says (int64 [256]);
    at least two different ones occur.
    """
    counts = np.frombuffer(numbers, np.int64)
    order = np.argsort(-counts, kind="stable")
    best, least = None, np.inf
    bounds = _least_bits(counts[order])
    for index in np.argsort(bounds, kind="stable"):
        if bounds[index] >= least:
            break
        code = _with_kept(counts, order, int(index) + 1)
        bits = np.inf if code is None else int(counts @ code.bits) + _PLAIN * code.head.size
        if bits < least:
            best, least = code, bits
    assert best is not None
    return best


def _least_bits(counts: np.ndarray) -> np.ndarray:
    """Bound the bits of head and stream from below by the entropy, with 1, 2, ... of the commonest values kept. `counts`
    falls.
    """
    used = int((counts > 0).sum())
    kept = np.arange(1, min(used, _MOST_KEPT) + 1)
    rest = counts.sum() - np.cumsum(counts)[kept - 1]
    logs = np.cumsum(counts[:used] * np.log2(counts[:used]))[kept - 1] + rest * np.log2(np.maximum(rest, 1))
    return counts.sum() * np.log2(counts.sum()) - logs + _PLAIN * (rest + kept + HEAD)


def _with_kept(counts: np.ndarray, order: np.ndarray, kept: int) -> PrefixCode | None:
    """Return the best code in which the `kept` commonest values have codes of their own; None if they are too many."""
    rest = int(counts[order[kept:]].sum())
    weights = [*(int(n) for n in counts[order[:kept]]), *([rest] if rest else [])]
    if len(weights) > 1 << BITS or len(weights) < 2:
        return None
    lengths = limited_lengths(weights, BITS)
    found = np.zeros(256, np.int64)
    found[order[:kept]] = lengths[:kept]
    return PrefixCode(found, lengths[kept] if rest else 0)


def limited_lengths(weights: Sequence[int], limit: int) -> list[int]:
    """Compute lengths of a prefix code, at most `limit`, with the least sum of weight times length; of two weights or more,
    at most `2 ** limit`.
    """
    leaves = sorted((weight, (index,)) for index, weight in enumerate(weights))
    packages: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(limit):
        row = sorted([*leaves, *packages], key=lambda item: item[0])
        packages = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(row[: len(row) // 2 * 2 : 2], row[1::2], strict=True)]
    lengths = [0] * len(weights)
    for _, members in packages[: len(weights) - 1]:
        for index in members:
            lengths[index] += 1
    return lengths


def decoded(stream: np.ndarray, table: np.ndarray, count: int) -> np.ndarray:
    """Decode `count` bytes of a stream, as a kernel does, one after another: int8."""
    bits = np.unpackbits(stream, bitorder="little").astype(np.int64)
    entries = table.view(np.uint16).tolist()
    found, at = np.zeros(count, np.uint8), 0
    for i in range(count):
        entry = entries[int(bits[at : at + BITS] @ (1 << np.arange(BITS)))]
        at += entry & (ESCAPE - 1)
        found[i] = entry >> 8
        if entry & ESCAPE:
            found[i] = int(bits[at : at + _PLAIN] @ (1 << np.arange(_PLAIN)))
            at += _PLAIN
    return found.view(np.int8)
