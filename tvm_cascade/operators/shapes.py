"""Shape arithmetic: NCHW and NHWC layouts, broadcasting, output extents of sliding windows."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.errors import GraphError


def channel_axis(layout: str) -> int:
    """Return the channel axis of an image in this layout, NCHW or NHWC."""
    return 1 if layout == "NCHW" else 3


def image(shape: tuple[int, ...], layout: str) -> tuple[int, int, int, int]:
    """Return (batch, channels, height, width) of an activation."""
    a, b, c, d = shape
    return (a, b, c, d) if layout == "NCHW" else (a, d, b, c)


def from_image(sizes: tuple[int, int, int, int], layout: str) -> tuple[int, ...]:
    """Return the shape in `layout` of an activation with (batch, channels, height, width)."""
    n, c, h, w = sizes
    return (n, c, h, w) if layout == "NCHW" else (n, h, w, c)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Compute numpy's broadcast of shapes. Raises `GraphError` if impossible."""
    rank = max(len(s) for s in shapes)
    out = []
    for i in range(-rank, 0):
        extents = {s[i] for s in shapes if len(s) >= -i and s[i] != 1}
        if len(extents) > 1:
            raise GraphError(f"shapes {tuple(shapes)} do not broadcast")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def window_count(size: int, kernel: int, stride: int, low: int, high: int, dilation: int, ceil: bool = False) -> int:
    """Compute the output extent: the windows of `kernel` taps that fit on an axis with `size` values, padded by `low`
    and `high`.
    """
    room = size + low + high - (kernel - 1) * dilation - 1
    return (-(-room // stride) if ceil else room // stride) + 1
