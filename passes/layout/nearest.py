"""Compute source indices for a nearest-neighbour resize, in all modes of ONNX's Resize."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

_TIE = 1e-6  # a place this near to a half lies at a tie in ONNX Runtime 1.32, where float32 misses the half itself
_ROUNDINGS: Mapping[str, Callable[[float], int]] = MappingProxyType(
    {
        "round_prefer_floor": lambda v: math.ceil(v - 0.5 - _TIE),
        "round_prefer_ceil": lambda v: math.floor(v + 0.5 + _TIE),
        "floor": math.floor,
        "ceil": math.ceil,
        "round": lambda v: math.ceil(v - 0.5),  # Relax's name for the first, without ONNX Runtime's tolerance
    }
)
NEAREST_MODES = (
    *("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"),
    *("align_corners", "asymmetric", "tf_half_pixel_for_nn"),
)


def nearest_sources(extent: int, size: int, scale: float, mode: str, rounding: str) -> list[int]:
    """Return the source index for each of `size` outputs along an axis of `extent` elements, in float32 like ONNX
    Runtime.

    Parameters
    ----------
    scale : float
        Output per input, as the file gives it: `size / extent` where it gives sizes.
    mode, rounding : str
        `coordinate_transformation_mode` and `nearest_mode` of ONNX's Resize.

    Raises
    ------
    ValueError
        For a mode that is not in `NEAREST_MODES`, such as those that depend on a region.
    """
    if mode not in NEAREST_MODES:
        raise ValueError(f"a nearest resize of mode {mode}")
    real = _places(extent, size, scale, mode, np.float32)
    return [min(max(_ROUNDINGS[rounding](float(v)), 0), extent - 1) for v in real]


def ratio_decides(extent: int, size: int, scale: float, mode: str, rounding: str) -> bool:
    """Return True if exact arithmetic with the ratio of sizes finds the elements that `nearest_sources` names."""
    real = _places(extent, size, Fraction(size, extent), mode, Fraction)
    exact = [min(max(_ROUNDINGS[rounding](v), 0), extent - 1) for v in real]
    return exact == nearest_sources(extent, size, scale, mode, rounding)


def _places(extent: int, size: int, scale: Any, mode: str, number: Callable[[Any], Any]) -> list[Any]:
    """Compute each output's place in the input, in the arithmetic of `number`."""
    at, by, half = [number(i) for i in range(size)], number(scale), number(1) / 2
    if mode == "half_pixel_symmetric":
        centre = half * extent * (1 - number(size) / (by * extent))
        if number is np.float32:  # ONNX Runtime adds halves of 64 bits here
            return [number(float(centre) + (float(i) + 0.5) / float(by) - 0.5) for i in at]
        return [centre + (i + half) / by - half for i in at]
    if mode == "align_corners":
        return [i * (extent - 1) / max(size - 1, 1) for i in at]
    if mode == "asymmetric":
        return [i / by for i in at]
    if mode == "tf_half_pixel_for_nn":
        return [(i + half) / by for i in at]
    return [(i + half) / by - half if mode == "half_pixel" or size > 1 else number(0) for i in at]
