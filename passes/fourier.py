"""Fourier transforms of 2^k points in n log n steps: an in-place kernel in the output, a single block per frame.

A frame is a row of a tensor, or as many samples of a signal, beginning at multiples of a step. Decimation in time by
two (Cooley and Tukey, 1965): samples are loaded in bit-reversed order, by nested loops that count a bit each, so every
index is linear in the loops. A transform of n real samples is a transform of n/2 complex numbers, even samples beside
odd samples; the last pass separates the two spectra. Sums with other lengths are matrix products (`importers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.expressions import constant, shape_of
from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.statements import loop, one_block, sequence
from tvm_cascade.passes.integer.untyped import Function, Scalar, Value, ir, relax, s_tir, tirx
from tvm_cascade.schedules.kernels.spec import Attributes, with_spec

Number = tuple[Scalar, Scalar]  # real and imaginary part


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform of frames with 2^k samples."""

    length: int  # points
    real: bool = False  # of real samples: the first half of the spectrum alone
    parts: int = 1  # of a sample: real alone, or real and imaginary
    inverse: bool = False  # of complex samples
    step: int | None = (
        None  # x is a signal, and every frame begins so many samples behind the one before; None: rows are frames
    )

    @property
    def points(self) -> int:
        """Count the complex values processed by the butterflies."""
        return self.length // 2 if self.real else self.length

    @property
    def results(self) -> int:
        """Count the complex values in a frame's spectrum."""
        return self.length // 2 + 1 if self.real else self.length


def is_fast(length: int) -> bool:
    """Return True if a transform of so many points has this kernel."""
    return length >= 2 and length & (length - 1) == 0


def transformed(bb: Any, x: Value, how: Transform, window: np.ndarray | None = None) -> Value:
    """Return the spectra of frames: x is [batch, frames, samples, parts], or a signal's [batch, samples, parts].

    Samples of a frame beyond `how.length` are left out, and zeros follow too few. The result is [batch, frames, results, 2].
    """
    shape, angles = shape_of(x), np.arange(max(how.length // 2, 1)) * (2 * np.pi / how.length)
    turns = np.stack([np.cos(angles), np.sin(angles) if how.inverse else -np.sin(angles)], -1).astype("float32")
    frames = shape[1] if how.step is None else 1 + (shape[1] - how.length) // how.step
    out = (shape[0], frames, how.results, 2)
    operands = [x, constant(turns), *([] if window is None else [constant(window.astype("float32"))])]
    kind = "fourier"
    func = with_spec(_Kernel(how, shape, out, window is not None).function(), kind, 1, Attributes(units=how.length))
    return bb.emit(relax.call_tir(bb.add_func(func, kind), operands, [relax.TensorType(list(out), "float32")]))


class _Kernel:
    """Builds the PrimFunc of a transform."""

    def __init__(self, how: Transform, given: Sequence[int], out: Sequence[int], windowed: bool) -> None:
        self.how, self.given = how, given
        self.x, self.out = _buffer("x", given), _buffer("out", out)
        self.turns = _buffer("turns", (max(how.length // 2, 1), 2))
        self.window = _buffer("window", (how.length,)) if windowed else None
        self.b, self.f = (tirx.Var(name, "int32") for name in ("v_b", "v_f"))

    def function(self) -> Function:
        """Return the PrimFunc."""
        counts = {self.b: int(self.out.shape[0]), self.f: int(self.out.shape[1])}
        axes = [tirx.IterVar(ir.Range(0, n), v, tirx.IterVar.DataPar) for v, n in counts.items()]
        held = [self.turns, *([] if self.window is None else [self.window])]
        reads = [self._read(), *(tirx.BufferRegion(b, [ir.Range(0, d) for d in b.shape]) for b in held)]
        own = [ir.Range.from_min_extent(v, i32(1)) for v in (self.b, self.f)]
        writes = [tirx.BufferRegion(self.out, [*own, *(ir.Range(0, d) for d in self.out.shape[2:])])]
        block = s_tir.SBlock(axes, reads, writes, "fourier", self._frame(), None, [], [], {})
        loops = [(tirx.Var(f"i_{v.name}", "int32"), n) for v, n in counts.items()]
        return one_block(block, loops, [self.x, *held, self.out])

    def _read(self) -> Value:
        batch, parts = ir.Range.from_min_extent(self.b, i32(1)), ir.Range(0, self.given[-1])
        if self.how.step is None:
            frame = [ir.Range.from_min_extent(self.f, i32(1)), ir.Range(0, self.given[2])]
        else:
            frame = [ir.Range.from_min_extent(self.f * i32(self.how.step), i32(self.how.length))]
        return tirx.BufferRegion(self.x, [batch, *frame, parts])

    def _frame(self) -> Value:
        halves = [1 << k for k in range(self.how.points.bit_length() - 1)]
        parts = [self._loaded(), *map(self._stage, halves)]
        if self.how.real:
            parts += self._apart()
        if self.how.inverse:
            parts.append(loop("k", self.how.points, self._scaled))
        return sequence(*parts)

    def _loaded(self) -> Value:
        """Store samples in the order of reversed bits."""
        bits = self.how.points.bit_length() - 1

        def nest(k: int, place: Scalar, reversed_place: Scalar) -> Value:
            if k == bits:
                return self._put(reversed_place, self._sample(place))
            up, down = i32(1 << k), i32(1 << (bits - 1 - k))
            return loop(f"bit{k}", 2, lambda i: nest(k + 1, place + i * up, reversed_place + i * down))

        return nest(0, i32(0), i32(0))

    def _sample(self, place: Scalar) -> Number:
        if self.how.real:
            return self._part(place * i32(2), 0), self._part(place * i32(2) + i32(1), 0)
        return self._part(place, 0), self._part(place, 1) if self.how.parts == 2 else tirx.const(0.0, "float32")

    def _part(self, at: Scalar, part: int) -> Scalar:
        if self.how.step is not None:
            value = self.x[self.b, self.f * i32(self.how.step) + at, i32(part)]
        else:
            value = self.x[self.b, self.f, at, i32(part)]
            if self.given[2] < self.how.length:
                value = tirx.if_then_else(at < i32(self.given[2]), value, tirx.const(0.0, "float32"))
        return value if self.window is None else value * self.window[at]

    def _stage(self, half: int) -> Value:
        """Merge pairs of transforms with `half` points each."""
        stride = self.how.length // (2 * half)

        def butterfly(first: Scalar, k: Scalar) -> Value:
            here, there = first + k, first + k + i32(half)
            r, i, tr, ti, ar, ai = (tirx.Var(n, "float32") for n in ("r", "i", "tr", "ti", "ar", "ai"))
            turn = k * i32(stride)
            bound = {
                r: self._get(there)[0], i: self._get(there)[1],
                tr: r * self.turns[turn, i32(0)] - i * self.turns[turn, i32(1)],
                ti: r * self.turns[turn, i32(1)] + i * self.turns[turn, i32(0)],
                ar: self._get(here)[0], ai: self._get(here)[1],
            }  # fmt: skip
            stores = [self._put(there, (ar - tr, ai - ti)), self._put(here, (ar + tr, ai + ti))]
            return sequence(*(tirx.Bind(v, e) for v, e in bound.items()), *stores)

        groups = self.how.points // (2 * half)
        return loop("g", groups, lambda g: loop("k", half, lambda k: butterfly(g * i32(2 * half), k)))

    def _apart(self) -> list[Value]:
        """Split the spectra of even and odd samples, and merge them to the full spectrum."""
        points = self.how.points
        r, i = (tirx.Var(n, "float32") for n in ("r0", "i0"))
        zero = tirx.const(0.0, "float32")
        ends = [
            tirx.Bind(r, self._get(i32(0))[0]), tirx.Bind(i, self._get(i32(0))[1]),
            self._put(i32(0), (r + i, zero)), self._put(i32(points), (r - i, zero)),
        ]  # fmt: skip
        return [*ends, *([loop("k", points // 2, self._joined)] if points > 1 else [])]

    def _joined(self, before: Scalar) -> Value:
        k = before + i32(1)
        mirror, half = i32(self.how.points) - k, tirx.const(0.5, "float32")
        names = ("zr", "zi", "yr", "yi", "er", "ei", "pr", "pi", "tr", "ti")
        zr, zi, yr, yi, er, ei, pr, pi, tr, ti = (tirx.Var(n, "float32") for n in names)
        cosine, sine = self.turns[k, i32(0)], self.turns[k, i32(1)]
        bound = {
            zr: self._get(k)[0], zi: self._get(k)[1], yr: self._get(mirror)[0], yi: self._get(mirror)[1],
            er: (zr + yr) * half, ei: (zi - yi) * half,  # of even samples
            pr: (zi + yi) * half, pi: (yr - zr) * half,  # of odd ones
            tr: pr * cosine - pi * sine, ti: pr * sine + pi * cosine,
        }  # fmt: skip
        stores = [self._put(mirror, (er - tr, ti - ei)), self._put(k, (er + tr, ei + ti))]
        return sequence(*(tirx.Bind(v, e) for v, e in bound.items()), *stores)

    def _scaled(self, k: Scalar) -> Value:
        factor, (real, imaginary) = tirx.const(1.0 / self.how.length, "float32"), self._get(k)
        return self._put(k, (real * factor, imaginary * factor))

    def _get(self, k: Scalar) -> Number:
        return self.out[self.b, self.f, k, i32(0)], self.out[self.b, self.f, k, i32(1)]

    def _put(self, k: Scalar, value: Number) -> Value:
        places = ([self.b, self.f, k, i32(part)] for part in (0, 1))
        return sequence(*(tirx.BufferStore(self.out, v, at) for v, at in zip(value, places, strict=True)))


def _buffer(name: str, shape: Sequence[int]) -> Value:
    return tirx.decl_buffer([int(d) for d in shape], "float32", name)
