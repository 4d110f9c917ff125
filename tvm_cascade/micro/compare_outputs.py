"""Compare the outputs of a run with those of the host run and of a reference, by position, within tolerances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvm_cascade.micro.reference import Expected, real
from tvm_cascade.tensor_spec import TensorSpec

FLOAT_TOLERANCE = 1e-4  # of float outputs, relative to the largest: sums are reassociated
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

    It is the greater of one quantization step of the outputs and `_REACH_FACTOR * expected.reach` (`micro.sensitivity`).
    """
    if expected.reach is None:
        return None
    return max(expected.step or 0.0, _REACH_FACTOR * expected.reach) * (1 + FLOAT_TOLERANCE)


def _difference(want: Mapping[str, np.ndarray], have: Mapping[str, np.ndarray]) -> float:
    """Largest absolute difference over all outputs, by position; infinite where their number or sizes differ."""
    if len(want) != len(have):
        return float("inf")
    worst = 0.0
    for a, b in zip(want.values(), have.values(), strict=True):
        if a.size != b.size:
            return float("inf")
        if a.size:
            gap = np.abs(a.reshape(-1).astype(np.float64) - b.reshape(-1).astype(np.float64)).max()
            worst = max(worst, float("inf") if np.isnan(gap) else float(gap))
    return worst


def _matches(
    want: Mapping[str, np.ndarray], have: Mapping[str, np.ndarray], tolerance: float = 0.0
) -> tuple[bool, float]:
    """Whether outputs match, and the largest difference.

    Integers may differ by `tolerance`, floats by the greater of `tolerance` and `FLOAT_TOLERANCE * max(|want|, 1)`.
    """
    gap = _difference(want, have)
    if all(a.dtype.kind in "iub" for a in want.values()):
        return gap <= tolerance, gap
    scale = max((float(np.abs(a).max()) for a in want.values() if a.size), default=1.0)
    return gap <= max(FLOAT_TOLERANCE * max(scale, 1.0), tolerance), gap
