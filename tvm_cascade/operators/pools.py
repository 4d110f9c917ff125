"""Pooling. Attributes: `layout`, `kernel`, `strides` (rows, columns), `padding` (top, left, bottom, right), `ceil` (a last
window may begin in the padding); of averages also `count_pad` (padding counts as values)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tvm_cascade.graph import Window
from tvm_cascade.operators.convolutions import sliding_windows
from tvm_cascade.operators.record import Array, Attributes, Family, Operator, TensorType, Types
from tvm_cascade.operators.shapes import from_image, image, window_count


def _infer(read: Types, attrs: Attributes) -> Types:
    layout = attrs["layout"]
    n, c, h, w = image(read[0].shape, layout)
    (kh, kw), (sh, sw), (top, left, bottom, right) = attrs["kernel"], attrs["strides"], attrs["padding"]
    oh = window_count(h, kh, sh, top, bottom, 1, attrs["ceil"])
    ow = window_count(w, kw, sw, left, right, 1, attrs["ceil"])
    return (TensorType(from_image((n, c, oh, ow), layout), read[0].dtype),)


def _steps(read: Types, made: Types, attrs: Attributes) -> int:
    return prod(made[0].shape) * prod(attrs["kernel"])


def _windows(read: Types, made: Types, attrs: Attributes) -> tuple[Window, Window]:
    return sliding_windows(attrs["kernel"], attrs)


def _taps(attrs: Attributes, x: Array) -> tuple[Array, Array]:
    """Return the windows over `x` (NCHW) with taps last, and a mask for real taps."""
    nchw = x if attrs["layout"] == "NCHW" else np.transpose(x, (0, 3, 1, 2))
    (kh, kw), (sh, sw), (top, left, bottom, right) = attrs["kernel"], attrs["strides"], attrs["padding"]
    more = (sh - 1, sw - 1) if attrs["ceil"] else (0, 0)
    widths = ((0, 0), (0, 0), (top, bottom + more[0]), (left, right + more[1]))
    real = np.pad(np.ones(nchw.shape, bool), widths)
    padded = np.pad(nchw, widths)
    cut = [sliding_window_view(v, (kh, kw), axis=(2, 3))[:, :, ::sh, ::sw] for v in (padded, real)]
    return tuple(v.reshape(*v.shape[:4], kh * kw) for v in cut)  # type: ignore[return-value]


def _from_nchw(attrs: Attributes, y: Array) -> Array:
    return y if attrs["layout"] == "NCHW" else np.transpose(y, (0, 2, 3, 1))


def _largest(attrs: Attributes, x: Array) -> Array:
    taps, real = _taps(attrs, x)
    low = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    return _from_nchw(attrs, np.where(real, taps, np.array(low, x.dtype)).max(-1))


def _average(attrs: Attributes, x: Array) -> Array:
    taps, real = _taps(attrs, x)
    count = taps.shape[-1] if attrs["count_pad"] else real.sum(-1)
    return _from_nchw(attrs, (taps.sum(-1) / count).astype(x.dtype))


def _pool(kind: str, evaluate: Callable[..., Array]) -> Operator:
    return Operator(
        kind, Family.POOL, _infer, evaluate, steps=_steps, windows=_windows, channelwise=True, takes_parts=True
    )


OPERATORS = (_pool("max_pool2d", _largest), _pool("avg_pool2d", _average))
