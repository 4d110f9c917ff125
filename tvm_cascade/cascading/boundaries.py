"""How many input pixels are dead, needed, or in between when an operator has made m output pixels.

For a set P of output pixels, N(P) are the input pixels read by some pixel in P, C(P) the input pixels whose readers are
all in P. Whatever the order in which an operator makes the output, after m pixels at most `completed[m]` input pixels
are dead, at least `needed[m]` are made, and at least `between[m]` are made and not dead. Windows are products of a
window along the rows (H outputs) and a window along the columns (W outputs), so facts on one axis carry over to the
map:

1. Along one axis let every input belong to one output that reads it, s inputs to an output. For every set of t outputs,
   0 < t < outputs: |C| <= s*t + e, |N| >= s*t + g, |N| - |C| >= b. Inputs that belong to no output are not counted. For two such
   sets, one within the other by k outputs more, |N| of the larger one less |C| of the smaller one is at least s*k + f.
2. Where P has a full row and an empty row, every column of P is partial: neither full nor empty. Then 1 holds in each input
   column, and |C| <= s*s'*m + e*columns. The same holds with rows and columns exchanged, and where all rows are partial.
3. Else where P has no full row and no full column, it has an empty row and an empty column, as not all are partial. Let p
   rows of H and q columns of W not be empty: p < H, q < W and p*q >= m. N(P) and C(P) are what 1 along the rows makes of Q and R,
   which 1 along the columns makes of each row of P: |Q| >= s'*m + g'*p, |R| <= s'*m + e'*p, |Q| - |R| >= b'*p. So
   |N| >= s*|Q| + g*(s'*q + g'), since so many columns of Q are not empty, and |C| <= (s + e/p)*|R|, since |R|/p columns of R
   are not empty. For g >= 0 their difference is at least s*b'*p - (e/p)*|Q| + e*b' + g*(s'*q + g'), and by f at least
   s*(|Q| - |R|) + f*|R|/p; for any g, b' in each input row that belongs to the p rows. All this is least for some p from
   m/(W - 1) to H - 1. Squares have the fewest between.
4. Else the pixels that P lacks have no full row and column, and the same argument says what these need: N of them is what
   C(P) leaves, and what lies between is the same.

These are vertex isoperimetric inequalities of grids (Bollobas and Leader, 1991), for windows with strides and padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.graph import Window

Counts = NDArray[np.int64]  # [m]: pixels of the input, for m pixels of the output
_Numbers = NDArray[np.float64]

_ROUNDING = 1e-6  # pixels
_LONG = 600  # outputs of an axis; tables of runs are quadratic in them


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """The input pixels (out of `pixels`) that m output pixels complete at most, and need and leave between at least, by
    m.
    """

    pixels: int
    completed: Counts
    needed: Counts
    between: Counts


@dataclass(frozen=True, slots=True)
class _Axis:
    """Fact 1 for a single axis."""

    inputs: int  # that are counted
    outputs: int
    rate: float  # s
    completed: float  # e, at most 0
    between: int  # b
    within: float  # f

    @property
    def needed(self) -> float:
        """Return g: t outputs need all inputs the other outputs do not complete."""
        return self.inputs - self.rate * self.outputs - self.completed

    @property
    def lacking(self) -> float:
        """Return how many inputs outputs at the border lack, compared with `rate`."""
        return self.rate * self.outputs - self.inputs


@lru_cache(maxsize=256)
def boundary(rows: Window, columns: Window, inputs: tuple[int, int], outputs: tuple[int, int]) -> Boundary:
    """Compute the boundary of an operator that reads a map (`inputs` rows and columns) and writes another (`outputs`)."""
    if all(_reads_all(w, i, o) for w, i, o in zip((rows, columns), inputs, outputs, strict=True)):
        return read_whole(inputs[0] * inputs[1], outputs[0] * outputs[1])
    a, b = _axis(rows, inputs[0], outputs[0]), _axis(columns, inputs[1], outputs[1])
    total, most = a.inputs * b.inputs, outputs[0] * outputs[1]
    m = np.arange(most + 1, dtype=np.float64)
    completed = np.clip(np.floor(_completed(a, b, m) + _ROUNDING).astype(np.int64), 0, total)
    completed[0], completed[-1] = 0, total
    completed = np.minimum.accumulate(completed[::-1])[::-1]  # more outputs never complete fewer
    needed = total - completed[::-1]
    between = np.maximum(needed - completed, np.ceil(_between(a, b, m) - _ROUNDING).astype(np.int64)).clip(0, total)
    between[0] = between[-1] = 0
    return Boundary(total, completed, needed, between)


def read_whole(pixels: int, outputs: int) -> Boundary:
    """Compute the boundary of an operator that reads all `pixels` before writing."""
    completed = np.zeros(outputs + 1, np.int64)
    completed[-1] = pixels
    needed = np.full(outputs + 1, pixels)
    needed[0] = 0
    return Boundary(pixels, completed, needed, needed - completed)


def overwritten(known: Boundary) -> Boundary:
    """Compute the boundary of an operator that may also overwrite its input: once it writes, no input need be alive."""
    completed = np.full_like(known.completed, known.pixels)
    completed[0] = known.completed[0]
    return replace(known, completed=completed, between=np.zeros_like(known.between))


def _completed(a: _Axis, b: _Axis, m: _Numbers) -> _Numbers:
    """Compute an upper bound on |C(P)| over all P with m pixels, neither none nor all."""
    linear, cases = a.rate * b.rate * m, [np.zeros_like(m)]
    if a.outputs > 1:
        cases.append(linear + a.completed * b.inputs)
    if b.outputs > 1:
        cases.append(linear + b.completed * a.inputs)
    if a.outputs > 1 and b.outputs > 1:
        cases.append(_corner_completed(a, b, m))
        cases.append(a.inputs * b.inputs - _corner_needed(a, b, m[::-1]))
    return np.max(cases, axis=0)


def _between(a: _Axis, b: _Axis, m: _Numbers) -> _Numbers:
    """Compute a lower bound on |N(P)| - |C(P)| over all P with m pixels, neither none nor all."""
    cases: list[_Numbers] = []
    if a.outputs > 1:
        cases.append(np.full_like(m, a.between * b.inputs))
    if b.outputs > 1:
        cases.append(np.full_like(m, b.between * a.inputs))
    if a.outputs > 1 and b.outputs > 1:
        corner = np.maximum(_corner_between(a, b, m), _corner_between(b, a, m))
        cases += [corner, corner[::-1]]
    return np.min(cases, axis=0) if cases else np.zeros_like(m)


def _possible(a: _Axis, b: _Axis, m: _Numbers) -> NDArray[np.bool_]:
    """Test whether m pixels can leave a row and a column empty."""
    return m <= (a.outputs - 1) * (b.outputs - 1)


def _least_of_rows(a: _Axis, b: _Axis, m: _Numbers, each: float, inverse: float) -> _Numbers:
    """Compute the least value of `each` * p + `inverse` * m / p over the numbers of rows p that fact 3 allows; both
    weights are at least 0.
    """
    most, fewest = a.outputs - 1, np.maximum(m / (b.outputs - 1), 1.0)
    best = np.sqrt(inverse * m / each) if each else np.full_like(m, most)
    p = np.clip(best, np.minimum(fewest, most), most)
    return each * p + inverse * m / p


def _corner_completed(a: _Axis, b: _Axis, m: _Numbers) -> _Numbers:
    """Compute an upper bound on |C(P)|, for a set P without a full row and a full column (fact 3); 0 if m pixels fill a
    row or a column.
    """
    lost = _least_of_rows(a, b, m, -a.rate * b.completed, -a.completed * b.rate)
    return np.where(_possible(a, b, m), a.rate * b.rate * m + a.completed * b.completed - lost, 0.0)


def _corner_needed(a: _Axis, b: _Axis, m: _Numbers) -> _Numbers:
    """Compute a lower bound on |N(P)|, for a set P without a full row and a full column (fact 3); all inputs if m
    pixels fill a row or a column.
    """
    if a.needed < 0 or b.needed < 0:
        return _grown(a, b.inputs, _grown(b, a.outputs, m))
    more = _least_of_rows(a, b, m, a.rate * b.needed, a.needed * b.rate)
    needed = a.rate * b.rate * m + a.needed * b.needed + more
    return np.where(_possible(a, b, m), needed, a.inputs * b.inputs)


def _grown(axis: _Axis, lines: int, m: _Numbers) -> _Numbers:
    """Compute the fewest inputs read by m pixels that lie on `lines` lines along an axis: border pixels read fewer
    inputs.
    """
    if axis.needed >= 0:
        return axis.rate * m
    return np.maximum(axis.rate * m + axis.needed * np.minimum(lines, m), 0.0)


def _corner_between(a: _Axis, b: _Axis, m: _Numbers) -> _Numbers:
    """Compute a lower bound on |N(P)| - |C(P)|, for a set P without a full row and a full column (fact 3); infinite if
    m pixels fill a row or a column.
    """
    each = a.rate * b.between
    cases = [_least_of_rows(a, b, m, each, 0.0) - b.between * max(a.lacking, 0.0)]  # 1 in each input row of theirs
    if a.needed >= 0:
        apart = (a.needed - a.completed) * b.needed + a.completed * b.between
        cases.append(apart + _least_of_rows(a, b, m, each, b.rate * (a.needed - a.completed)))
        cases.append(_least_of_rows(a, b, m, each, 0.0))
        nested = _least_of_rows(a, b, m, each, a.within * b.rate) + a.within * (b.needed - b.between)
        cases.append(np.minimum(nested, a.rate * (b.rate * m + np.minimum(b.needed, b.needed * (a.outputs - 1)))))
    return np.where(_possible(a, b, m), np.max(cases, axis=0), np.inf)


@lru_cache(maxsize=256)
def _axis(window: Window, inputs: int, outputs: int) -> _Axis:
    """Derive the constants of fact 1 for a window along one axis. An input belongs to the output with a middle tap on
    the input.
    """
    if outputs > 1 and _reads_all(window, inputs, outputs):  # nothing is dead before the last output is made
        rate = -(-inputs // outputs)
        return _Axis(inputs, outputs, rate, -rate, inputs, inputs - rate * (outputs - 2))
    rate, counted = _owned(window, inputs, outputs)
    count = len(counted)
    if outputs > _LONG:
        return _Axis(count, outputs, rate, 0.0, 0, 0.0)
    reads = _reads(window, inputs, outputs)
    if outputs == 1:
        return _Axis(int(reads.sum()), 1, float(reads.sum()), 0.0, 0, 0.0)
    reads = reads[:, counted]
    if window.dilation > 1 or not count:  # the readers of a row need not be neighbours
        return _Axis(count, outputs, rate, 0.0, 0, 0.0)
    first, last = reads.argmax(axis=0), outputs - 1 - reads[::-1].argmax(axis=0)
    runs = np.zeros((outputs + 1, outputs + 1), np.int64)  # [u, v]: inputs that only outputs [u, v) read
    np.add.at(runs, (first, last + 1), 1)
    runs = np.cumsum(np.cumsum(runs[::-1], axis=0)[::-1], axis=1)
    at = np.arange(outputs + 1)
    length = at[None, :] - at[:, None]
    excess = np.where((length > 0) & (length < outputs), runs - rate * length, -np.inf)
    before = np.maximum.accumulate(excess.max(axis=0))[1:-1]  # [k - 1]: of runs that end at k at most
    after = np.maximum.accumulate(excess.max(axis=1)[::-1])[::-1][1:-1]  # of those that begin at k at least
    within = count - rate * outputs - float((before + after).max())
    steps = np.arange(1, outputs)[:, None]
    across = ((first < steps) & (last >= steps)).sum(axis=1)  # inputs that outputs before and after a step read
    return _Axis(count, outputs, rate, float(excess.max()), int(across.min()), within)


def _reads_all(window: Window, inputs: int, outputs: int) -> bool:
    """Test whether every output reads every input, in a window without gaps."""
    last = (outputs - 1) * window.stride // window.denominator - window.padding
    return window.dilation == 1 and last <= 0 and window.extent - window.padding >= inputs


def _reads(window: Window, inputs: int, outputs: int) -> NDArray[np.bool_]:
    """Return a bool matrix [output, input]: True if the output reads the input."""
    y = np.arange(outputs)
    starts = y * window.stride // window.denominator - window.padding
    taps = starts[:, None] + np.arange(window.extent) * window.dilation
    reads = np.zeros((outputs, inputs), np.bool_)
    inside = (taps >= 0) & (taps < inputs)
    reads[np.nonzero(inside)[0], taps[inside]] = True
    return reads


def _owned(window: Window, inputs: int, outputs: int) -> tuple[float, NDArray[np.int64]]:
    """Count the inputs per output; return this and the inputs owned by one output (or by `denominator` outputs)."""
    each = min(window.stride, window.extent) if window.denominator == window.dilation == 1 else 1
    middle = (window.extent - each) // 2 * window.dilation - window.padding
    owned = np.arange(outputs) * window.stride // window.denominator + middle
    owned = (owned[:, None] + np.arange(each)).ravel()
    times = np.bincount(owned[(owned >= 0) & (owned < inputs)])
    if window.denominator > 1 and window.stride == 1:
        return 1 / window.denominator, np.flatnonzero(times == window.denominator)
    return float(each), np.flatnonzero(times)
