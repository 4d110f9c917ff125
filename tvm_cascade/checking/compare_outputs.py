"""Compare the outputs of a run with those of the host run and of a reference, by position, within tolerances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvm_cascade.checking.reference import Expected, real
from tvm_cascade.tensor_spec import TensorSpec

FLOAT_TOLERANCE = 1e-4  # of float outputs, relative to the largest of the same output: sums are reassociated
_STORED_BYTES = 2  # of the widest integers that a quantized network's outputs are stored in
_REACH_FACTOR = 2  # a quantized network may differ from a float reference by this multiple of `Expected.reach`


def same_outputs(want: Mapping[str, np.ndarray], have: Mapping[str, np.ndarray]) -> bool:
    """Whether outputs are equal: integers exactly, floats to within `FLOAT_TOLERANCE`."""
    return _matches(want, have)[0]


def compare_with_reference(
    expected: Expected, made: Mapping[str, np.ndarray], outputs: Sequence[TensorSpec]
) -> tuple[bool, float]:
    """Whether outputs match a reference, and the largest difference (infinite where number or sizes differ).

    Stored integers are dequantized where the reference's outputs are floats.
    """
    have = dict(made)
    for want, spec in zip(expected.outputs.values(), outputs, strict=False):
        if want.dtype.kind == "f":
            have[spec.name] = real(have[spec.name], spec.scale, spec.zero_point)
    return _matches(expected.outputs, have, reference_tolerance(expected) or 0.0)


def reference_tolerance(expected: Expected) -> float | None:
    """The largest difference allowed between a quantized network and a float reference; None for other references.

    It is the greater of one quantization step of the outputs and `_REACH_FACTOR * expected.reach` (`checking.sensitivity`).
    """
    if expected.reach is None:
        return None
    return max(expected.step or 0.0, _REACH_FACTOR * expected.reach) * (1 + FLOAT_TOLERANCE)


def _matches(
    want: Mapping[str, np.ndarray], have: Mapping[str, np.ndarray], tolerance: float = 0.0
) -> tuple[bool, float]:
    """Return whether outputs match by position, and the largest difference, infinite where number, size or type differ."""
    if len(want) != len(have):
        return False, float("inf")
    found = [_compare(a, b, tolerance) for a, b in zip(want.values(), have.values(), strict=True)]
    return all(match for match, _ in found), max((gap for _, gap in found), default=0.0)


def _compare(want: np.ndarray, have: np.ndarray, tolerance: float) -> tuple[bool, float]:
    """Return whether one output matches, and the largest difference.

    Floats may differ by the greater of `tolerance` and `FLOAT_TOLERANCE * max(|want|, 1)`, finite values of this output
    alone; stored integers of up to 16 bits by `tolerance`; wider ones, which are indices and counts, not at all.
    """
    is_float = want.dtype.kind == "f"
    if want.size != have.size or is_float != (have.dtype.kind == "f"):
        return False, float("inf")
    a, b = want.reshape(-1), have.reshape(-1)
    gap = _difference(a, b)
    if not is_float:
        exact = a.dtype.itemsize > _STORED_BYTES or not tolerance
        return bool(np.array_equal(a, b)) if exact else gap <= tolerance, gap
    largest = np.abs(a[np.isfinite(a)].astype(np.float64)).max(initial=1.0)
    return gap <= max(FLOAT_TOLERANCE * float(largest), tolerance), gap


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest absolute difference; equal infinities, and NaNs of any sign, do not differ."""
    one, other = a.astype(np.float64), b.astype(np.float64)
    differs = (one != other) & ~(np.isnan(one) & np.isnan(other))
    gap = np.abs(one[differs] - other[differs])
    return float("inf") if np.isnan(gap).any() else float(gap.max(initial=0.0))
