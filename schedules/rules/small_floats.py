"""Floats of 16 and 8 bits that stand in flash for float32 numbers: how each kind is encoded, and decoded in a kernel.

Decoding is exact, subnormal numbers, infinities and NaN included. Floats of 8 bits are read as the float16 of the same bits:
those of ONNX's other biases are the same numbers but for a power of two, which is a factor of the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.tir import Value, i32


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A kind of floats in flash."""

    name: str
    dtype: str  # of the element in flash that has its bits
    factors: tuple[float, ...]  # the powers of two by which numbers of files may differ from decoded ones
    from_floats: Callable[[np.ndarray], np.ndarray]  # bits of the nearest numbers to float32 numbers, or some
    to_floats: Callable[[np.ndarray], np.ndarray]  # decodes bits
    bits_32: Callable[[Value], Value]  # decodes an int32 of bits in a kernel

    @property
    def bits(self) -> int:
        """Return the bits of a number."""
        return np.dtype(self.dtype).itemsize * 8

    def encode(self, values: np.ndarray) -> tuple[np.ndarray, float] | None:
        """Return bits and the factor by which decoded bits are exactly `values`; None if there are none."""
        for factor in self.factors:
            with np.errstate(all="ignore"):
                bits = self.from_floats(values / np.float32(factor))
                made = self.to_floats(bits) * np.float32(factor)
            same = (made.view(np.int32) == values.view(np.int32)) | (np.isnan(made) & np.isnan(values))
            if same.all():
                return bits, factor
        return None


def _half_bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).astype(np.float16).view(np.uint16)


def _of_half_bits(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def _four_exponent_bits(values: np.ndarray) -> np.ndarray:
    """Drop the highest exponent bit and the lower bits of float16 numbers."""
    bits = _half_bits(values)
    return ((bits >> 8 & 0x80) | (bits >> 7 & 0x7F)).astype(np.uint8).view(np.int8)


def _with_five(bits: np.ndarray) -> np.ndarray:
    return _of_half_bits(bits.astype(np.int32) << 7 & 0xBFFF)


FLOAT16 = SmallFloat("float16", "uint16", (1.0,), _half_bits, _of_half_bits, lambda b: call("half", b))
BFLOAT16 = SmallFloat(
    "bfloat16",
    "uint16",
    (1.0,),
    lambda v: (np.ascontiguousarray(v, np.float32).view(np.uint32) >> 16).astype(np.uint16),
    lambda b: (b.astype(np.uint32) << 16).view(np.float32),
    lambda b: call("real", b << i32(16)),
)
FLOAT8_E4 = SmallFloat(  # 1.4.3: float8e4m3fn, of a bias of 7, and float8e4m3fnuz, of 8
    "float8_e4",
    "int8",  # whose sign fills the highest bit, and all but one of those above
    (2.0**8, 2.0**7),
    _four_exponent_bits,
    _with_five,
    lambda b: call("half", (b << i32(7)) & i32(0xBFFF)),
)
FLOAT8_E5 = SmallFloat(  # 1.5.2: float8e5m2, and float8e5m2fnuz, of a bias of 16
    "float8_e5",
    "uint8",
    (1.0, 0.5),
    lambda v: (_half_bits(v) >> 8).astype(np.uint8),
    lambda b: _of_half_bits(b.astype(np.uint16) << 8),
    lambda b: call("half", b << i32(8)),
)
KINDS = {kind.name: kind for kind in (FLOAT8_E4, FLOAT8_E5, FLOAT16, BFLOAT16)}  # the smallest first


def small_floats(values: np.ndarray, kinds: Collection[str]) -> tuple[str, np.ndarray, float] | None:
    """Return float32 `values` as the smallest of some kinds that holds them all: its name, bits and factor.

    None if no kind holds them.
    """
    for name, kind in KINDS.items():
        encoded = kind.encode(np.ascontiguousarray(values, np.float32)) if name in kinds else None
        if encoded is not None:
            return name, *encoded
    return None
