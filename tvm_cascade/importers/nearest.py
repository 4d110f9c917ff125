"""Source indices of a nearest-neighbour resize, in the modes of ONNX's Resize."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

_ROUNDINGS: Mapping[str, Callable[[float], int]] = MappingProxyType(
    {
        "round_prefer_floor": lambda v: math.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: math.floor(v + 0.5),
        "floor": math.floor,
        "ceil": math.ceil,
        "round": lambda v: math.ceil(v - 0.5),  # Relax's name for the first
    }
)
NEAREST_MODES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")


def nearest_sources(extent: int, size: int, scale: float, mode: str, rounding: str) -> list[int]:
    """The index along an axis of `extent` elements that each of `size` outputs reads.

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
    if mode == "half_pixel_symmetric":
        centre = extent / 2 * (1 - size / (scale * extent))
        real = [centre + (i + 0.5) / scale - 0.5 for i in range(size)]
    elif mode == "align_corners":
        real = [i * (extent - 1) / (size - 1) if size > 1 else 0.0 for i in range(size)]
    elif mode == "asymmetric":
        real = [i / scale for i in range(size)]
    else:
        real = [0.0 if mode == "pytorch_half_pixel" and size == 1 else (i + 0.5) / scale - 0.5 for i in range(size)]
    return [min(max(_ROUNDINGS[rounding](v), 0), extent - 1) for v in real]
