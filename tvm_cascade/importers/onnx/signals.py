"""Converters for ONNX operators on sample sequences: running products and Fourier transforms.

A transform of 2^k points has an n log n kernel (`passes.fourier`). Any other is one matrix product: real and imaginary
parts are sums over the samples, times cosines and sines of 2 pi j k / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.importers.interface import MAX_ELEMENTS
from tvm_cascade.passes.fourier import Transform, is_fast, transformed
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax, shape_of

Attributes = dict[str, Any]


def cumulative_product(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert CumProd along a constant axis."""
    x, axis = inputs[0], _scalar(inputs[1], "axis") % len(shape_of(inputs[0]))
    flipped = bool(attrs.get("reverse"))
    x = bb.normalize(relax.op.flip(x, axis)) if flipped else x
    done = bb.normalize(relax.op.cumprod(x, axis, exclusive=bool(attrs.get("exclusive"))))
    return relax.op.flip(done, axis) if flipped else done


def fourier(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert DFT along a constant axis; the last axis holds real and imaginary parts, or only the real part."""
    x, rank = inputs[0], len(shape_of(inputs[0]))
    axis = (
        _scalar(inputs[2], "axis")
        if inputs[2] is not None
        else int(attrs.get("axis", 1 if attrs["tvm_custom"]["opset"] < 20 else -2))
    )
    axis %= rank
    extent, parts = shape_of(x)[axis], shape_of(x)[-1]
    inverse, one_sided = bool(attrs.get("inverse")), bool(attrs.get("onesided"))
    wanted = _scalar(inputs[1], "dft_length") if inputs[1] is not None else 0
    length = wanted or (2 * (extent - 1) if inverse and one_sided else extent)
    order = [a for a in range(rank) if a not in (axis, rank - 1)]
    others = tuple(shape_of(x)[a] for a in order)
    rows = x if axis == rank - 2 else bb.normalize(relax.op.permute_dims(x, [*order, axis, rank - 1]))
    back = list(range(rank - 2))
    back.insert(axis, rank - 2)
    if is_fast(length) and str(x.ty.dtype) == "float32" and not (one_sided and (inverse or parts == 2)):
        how = Transform(length, real=one_sided, parts=parts, inverse=inverse)
        frames = bb.normalize(relax.op.reshape(rows, (1, prod(others), extent, parts)))
        made = bb.normalize(relax.op.reshape(transformed(bb, frames, how), (*others, how.results, 2)))
        return made if axis == rank - 2 else relax.op.permute_dims(made, [*back, rank - 1])
    table = _table(length, extent, parts, inverse, one_sided)
    rows = bb.normalize(relax.op.reshape(rows, (*others, extent * parts)))
    made = bb.normalize(relax.op.matmul(rows, constant(table.reshape(extent * parts, -1).astype(str(x.ty.dtype)))))
    made = bb.normalize(relax.op.reshape(made, (*others, *table.shape[2:])))
    return relax.op.permute_dims(made, [*back, rank - 1])


def short_time_fourier(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert STFT: transform windows that begin every `frame_step` samples."""
    x, step = inputs[0], _scalar(inputs[1], "frame_step")
    window = None if inputs[2] is None else constant_of(inputs[2])
    if inputs[2] is not None and window is None:
        raise NotImplementedError("a window that the network computes: make it a constant")
    if inputs[3] is None and window is None:
        raise NotImplementedError("neither window nor frame_length")
    length = _scalar(inputs[3], "frame_length") if window is None else window.size
    batch, extent, parts = (*shape_of(x), 1)[:3]
    count = 1 + (extent - length) // step if step > 0 else 0
    if not 0 < length <= extent or count < 1 or batch * count * length * parts > MAX_ELEMENTS:
        raise NotImplementedError(f"frames of {length} samples every {step} of {extent}")
    one_sided = bool(attrs.get("onesided", 1))
    if is_fast(length) and str(x.ty.dtype) == "float32" and not (one_sided and parts == 2):
        signal = x if len(shape_of(x)) == 3 else bb.normalize(relax.op.reshape(x, (batch, extent, parts)))
        how = Transform(length, real=one_sided, parts=parts, step=step)
        return transformed(bb, signal, how, None if window is None else window.reshape(-1))
    places = np.arange(count)[:, None] * step + np.arange(length)[None]
    frames = bb.normalize(relax.op.take(x, relax.const(places.reshape(-1), "int32"), 1))
    frames = bb.normalize(relax.op.reshape(frames, (batch, count, length * parts)))
    table = _table(length, length, parts, False, one_sided)
    table = table if window is None else table * window.reshape(-1, 1, 1, 1)
    made = relax.op.matmul(frames, constant(table.reshape(length * parts, -1).astype(str(x.ty.dtype))))
    return relax.op.reshape(bb.normalize(made), (batch, count, *table.shape[2:]))


def _table(length: int, extent: int, parts: int, inverse: bool, one_sided: bool) -> np.ndarray:
    """Return what each part of `extent` samples contributes to each part of each result; samples from `length` on are cut
    off.
    """
    half = length // 2 + 1
    results = half if one_sided and not inverse else length
    if length < 1 or prod((extent, parts, results, 2)) > MAX_ELEMENTS:
        raise NotImplementedError(f"a transform of {length} samples")
    given, made = np.arange(extent)[:, None], np.arange(results)[None]
    turns = np.exp((2j if inverse else -2j) * np.pi * (given * made % length) / length) / (length if inverse else 1)
    turns[half if inverse and one_sided else length :] = 0
    if inverse and one_sided:  # the other half of the spectrum mirrors the given one, and the result is real
        twice = np.where((given == 0) | (2 * given == length), 1, 2) * turns
        return np.stack([twice.real, -twice.imag][:parts], 1)[..., None]
    return np.stack([np.stack([turns.real, turns.imag], -1), np.stack([-turns.imag, turns.real], -1)][:parts], 1)


def _scalar(value: Value, name: str) -> int:
    data = constant_of(value)
    if data is None or data.size != 1:
        raise NotImplementedError(f"{name} that the network computes: make it a constant")
    return int(data.reshape(-1)[0])
