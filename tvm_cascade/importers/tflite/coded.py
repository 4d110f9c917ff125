"""Constants that TensorFlow Lite Micro's compression has coded, decoded exactly.

Two formats: the custom operator `TFLM_DECODE`, whose inputs are pairs of a coded and an ancillary tensor, one for each
output, and the metadata `COMPRESSION_METADATA`, which lists tensors that are indices into tables. Ancillary data begin with
a header of 16 bytes: byte 0 is the coding, byte 1 and byte 4 are versions.

Source: tflite-micro, `kernels/decode_state*.{h,cc}`, `compression/metadata.fbs`, `micro_allocator.cc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

_HEADER = 16  # bytes
_LUT, _HUFFMAN, _PRUNED = 0, 1, 2
_NAMES = {_LUT: "table of values", _HUFFMAN: "Huffman code", _PRUNED: "bit map"}
_MOST_BITS = 7  # of an index into a table


class MalformedCode(ValueError):
    """Coded data that contradict the header, the table or the tensor."""


@dataclass(frozen=True, slots=True)
class CodedTensor:
    """The tensor of coded data."""

    shape: tuple[int, ...]
    dtype: str
    zero_points: tuple[int, ...] = ()  # empty: not quantized
    axis: int = 0  # of the zero points

    @property
    def elements(self) -> int:
        """Count the elements."""
        return prod(self.shape)

    def channels(self) -> np.ndarray:
        """Return the channel of every element in order, int64; channels lie along the first or the last axis."""
        count, last = len(self.zero_points), len(self.shape) - 1
        if count <= 1:
            return np.zeros(self.elements, "int64")
        _require(self.axis in (0, last), f"scales along axis {self.axis} of {len(self.shape)}, not the first or last")
        _require(self.shape[self.axis] == count, f"{count} scales for {self.shape[self.axis]} channels")
        return (
            np.arange(self.elements) % count if self.axis == last else np.arange(self.elements) * count // self.elements
        )


def decoded(coded: bytes, ancillary: bytes, tensor: CodedTensor) -> bytes:
    """Decode a tensor's data as `TFLM_DECODE`'s kernels do.

    Raises `MalformedCode`.
    """
    _require(len(ancillary) >= _HEADER, f"{len(ancillary)} bytes of ancillary data, and a header has {_HEADER}")
    kind, version, own, parameter, stride = ancillary[0], ancillary[1], *ancillary[4:7]
    _require(kind in _NAMES, f"the unknown coding {kind}")
    _require((version, own) == (1, 1), f"version {version}.{own} of the coding by {_NAMES[kind]}; known is 1.1")
    held = ancillary[_HEADER:]
    if kind == _LUT:
        return by_table(coded, held, parameter & 7, stride, tensor)
    return _pruned(coded, held, tensor) if kind == _PRUNED else _huffman(coded, held, parameter, tensor)


def by_table(coded: bytes, table: bytes, bits: int, stride: int, tensor: CodedTensor) -> bytes:
    """Look up indices of `bits` bits, high bits first, in the table of each channel, `stride` values behind another.

    Raises `MalformedCode`.
    """
    _require(1 <= bits <= _MOST_BITS, f"indices of {bits} bits")
    _require(
        len(coded) * 8 >= tensor.elements * bits, f"{len(coded)} bytes for {tensor.elements} indices of {bits} bits"
    )
    values, channels = _values(table, tensor), tensor.channels()
    each = _bits(coded, tensor.elements * bits).reshape(-1, bits)
    indices = each @ (1 << np.arange(bits)[::-1])
    several = len(tensor.zero_points) > 1
    end = stride if several else values.size
    _require(int(indices.max(initial=0)) < end, f"the index {indices.max(initial=0)} into a table of {end} values")
    places = indices + channels * (stride if several else 0)
    _require(int(places.max(initial=0)) < values.size, f"{values.size} values for tables that need more")
    return values[places].tobytes()


def _pruned(coded: bytes, held: bytes, tensor: CodedTensor) -> bytes:
    """Place the values at the set bits of a map, high bits first, and zero points elsewhere."""
    _require(len(coded) * 8 >= tensor.elements, f"a bit map of {len(coded)} bytes for {tensor.elements} elements")
    values, is_set = _values(held, tensor), _bits(coded, tensor.elements).astype(bool)
    _require(int(is_set.sum()) <= values.size, f"{is_set.sum()} set bits, and {values.size} values")
    zeros = np.asarray(tensor.zero_points or (0,), "int64")
    _require(tensor.dtype in ("int8", "uint8") or not zeros.any(), f"zero points of {tensor.dtype}")
    made = zeros[tensor.channels()].astype(tensor.dtype).view(values.dtype)
    made[is_set] = values[: is_set.sum()]
    return made.tobytes()


def _huffman(coded: bytes, held: bytes, parameter: int, tensor: CodedTensor) -> bytes:
    """Decode a Huffman code by following its tables.

    The first table has `2 ** n` entries. An entry is a symbol, with the number of bits that the symbol takes of this
    table's index, or the distance to the next table, with the number of bits of that table's index.
    """
    wide, first = bool(parameter & 1), (parameter >> 4) + 1
    _require(tensor.dtype in (("int8", "int16") if wide else ("int8",)), f"a Huffman code of {tensor.dtype}")
    size, shift = (4, 27) if wide else (2, 11)
    table = np.frombuffer(held, f"<u{size}", len(held) // size).tolist()
    stream, end = coded + bytes(4), len(coded) * 8  # a code may end before the bits of its last table do
    found, of, at = [], (1 << shift) - 1, 0
    short = f"{len(coded)} bytes of Huffman code for {tensor.elements} elements"
    for _ in range(tensor.elements):
        place, bits = 0, first
        while True:
            _require(at <= end, short)
            word = int.from_bytes(stream[at >> 3 : (at >> 3) + 4], "big")
            place += word >> (32 - (at & 7) - bits) & ((1 << bits) - 1)
            _require(place < len(table), f"the entry {place} of Huffman tables with {len(table)}")
            entry = table[place]
            count, value = entry >> shift & 15, entry & of
            if entry >> (shift + 4):
                break
            at, bits, place = at + bits, count + 1, place + value
        at += min(count, bits)
        _require(count > 0 and at <= end, short)
        found.append(value)
    return np.asarray(found, "int64").astype(tensor.dtype).tobytes()


def _values(data: bytes, tensor: CodedTensor) -> np.ndarray:
    """Return data as unsigned integers of the element's size."""
    size = np.dtype(tensor.dtype).itemsize
    return np.frombuffer(data, f"<u{size}", len(data) // size)


def _bits(data: bytes, count: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(data, "uint8"), count=count)


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise MalformedCode(complaint)
