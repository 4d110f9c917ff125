"""Compare a run's outputs with the host run's and a reference's, by position, within tolerances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.checking.reference import real
from tvm_cascade.tensor_spec import TensorSpec

FLOAT_TOLERANCE = 1e-4  # of float outputs, relative to the largest of the same output: sums are reassociated
_STORED_BYTES = 2  # of the widest integers that a quantized network's outputs are stored in
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far roundings may move an output."""

    gap: float  # the largest difference
    share: float = 1.0  # of the elements that may differ


Reaches = Mapping[str, Reach]  # by name of an output
_NONE = Reach(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of comparing outputs: match, largest difference and reason."""

    match: bool | None  # None: only a difference as large as the output's range would have been seen
    gap: float = 0.0  # the largest difference, infinite where number, shape or type differ
    allowed: float | None = None  # the largest difference that roundings may make, where an output needed it
    reason: str = ""  # what differs besides values, or why nothing was checked
    differing: int = 0  # elements that differ, of those that are held to equality or needed `allowed`
    elements: int = 0  # of the same outputs


def compare(
    want: Arrays, have: Arrays, allowed: Reaches | None = None, steps: Mapping[str, float] | None = None
) -> Verdict:
    """Compare outputs by position.

    Integers must be equal, floats equal to within `FLOAT_TOLERANCE` times the largest value in the same output, and to
    within a quarter of its step, if it is named in `steps` as a sum of whole steps. If not,
    floats and integers up to 16 bits may differ by `allowed`, the effect of roundings on the output named so in `want`;
    unless that is as wide as the output's range, so any values would match.
    """
    if len(want) != len(have):
        return Verdict(False, float("inf"), reason=f"{len(have)} outputs, the reference has {len(want)}")
    reaches, whole = allowed or {}, steps or {}
    pairs = zip(want.items(), have.items(), strict=True)
    return overall(_compare(name, a, b, reaches.get(key, _NONE), whole.get(key)) for (key, a), (name, b) in pairs)


def compare_with_reference(
    want: Arrays,
    made: Arrays,
    outputs: Sequence[TensorSpec],
    allowed: Reaches | None = None,
    steps: Mapping[str, float] | None = None,
) -> Verdict:
    """Compare outputs with a reference's as `compare` does; make stored integers real if the reference returns floats."""
    have = dict(made)
    for array, spec in zip(want.values(), outputs, strict=False):
        if array.dtype.kind == "f":
            have[spec.name] = real(have[spec.name], spec.scale, spec.zero_point)
    return compare(want, have, allowed, steps)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several outputs, or on several calls: the first of the worst, with the largest difference."""
    found = list(verdicts)
    worst = min(found, key=lambda v: (True, None, False)[::-1].index(v.match), default=Verdict(True))
    needed = max((v.allowed for v in found if v.allowed is not None), default=None)
    counted = [sum(v.differing for v in found), sum(v.elements for v in found)]
    return Verdict(worst.match, max((v.gap for v in found), default=0.0), needed, worst.reason, *counted)


def largest_gaps(want: Arrays, have: Arrays) -> dict[str, float]:
    """Return the largest difference in each output, by name in `want`."""
    return {name: difference(a, b) for (name, a), b in zip(want.items(), have.values(), strict=True)}


def _compare(name: str, want: np.ndarray, have: np.ndarray, reach: Reach, step: float | None) -> Verdict:
    """Compare an output."""
    is_float = want.dtype.kind == "f"
    if want.shape != have.shape or is_float != (have.dtype.kind == "f"):
        ours, theirs = (f"{a.dtype}{list(a.shape)}" for a in (have, want))
        return Verdict(False, float("inf"), reason=f"output '{name}' is {ours}, the reference's {theirs}")
    gap = difference(want, have)
    if np.array_equal(want, have) or (is_float and gap <= tolerance(want, step)):
        return Verdict(True, gap)
    counted = int(np.count_nonzero(differs(want, have, step))), want.size
    if not is_float and want.dtype.itemsize > _STORED_BYTES:
        return Verdict(False, gap, None, "", *counted)  # indices and counts
    if gap > reach.gap * (1 + FLOAT_TOLERANCE) or counted[0] > reach.share * want.size:
        return Verdict(False, gap, None, "", *counted)
    span = _span(want)
    if reach.gap < span:
        return Verdict(True, gap, reach.gap, "", *counted)
    reason = f"roundings alone move output '{name}' by {reach.gap:.3g}, and its values span {span:.3g}"
    return Verdict(None, gap, reach.gap, reason, *counted)


def _span(array: np.ndarray) -> float:
    """Return the width of the smallest range around 0 and all finite values."""
    finite = array[np.isfinite(array)].astype(np.float64)
    return float(finite.max(initial=0.0) - finite.min(initial=0.0))


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest absolute difference; equal infinities, and NaNs of any sign, do not differ."""
    one, other = a.astype(np.float64), b.astype(np.float64)
    unequal = (one != other) & ~(np.isnan(one) & np.isnan(other))
    gap = np.abs(one[unequal] - other[unequal])
    return float("inf") if np.isnan(gap).any() else float(gap.max(initial=0.0))


def differs(want: np.ndarray, have: np.ndarray, step: float | None = None) -> np.ndarray:
    """Mark the elements that differ by more than `tolerance`."""
    if want.dtype.kind != "f":
        return np.asarray(want != have)
    one, other = want.astype(np.float64), have.astype(np.float64)
    both_nan = np.isnan(one) & np.isnan(other)
    with np.errstate(invalid="ignore"):
        near = np.abs(one - other) <= tolerance(want, step)
    return ~(near | (one == other) | both_nan)


def tolerance(want: np.ndarray, step: float | None = None) -> float:
    """Return the difference of floats that reassociated sums explain, of whole steps a quarter of one at most."""
    most = FLOAT_TOLERANCE * _span(want)
    return most if step is None else min(most, step / 4)
