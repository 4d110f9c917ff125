"""Each output is held to its own range and type."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_cascade.checking.compare_outputs import compare_with_reference, same_outputs
from tvm_cascade.checking.reference import Expected


def _float(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("want", "have"),
    [
        (_float(0.25), _float(0.75)),  # a score beside boxes of 10,000
        (np.array([3], np.int64), np.array([4], np.int64)),  # a class beside them
        (np.array([2**53], np.int64), np.array([2**53 + 1], np.int64)),
        (_float(2.5), np.array([2], np.int64)),
        (np.array([2], np.int64), _float(2)),
        (_float(float("nan")), _float(0)),
        (_float(float("inf")), _float(float("-inf"))),
        (_float(1, 2), _float(1)),
    ],
)
def test_large_outputs_hide_no_difference_of_others(want: np.ndarray, have: np.ndarray) -> None:
    boxes = _float(10_000)
    assert not same_outputs({"boxes": boxes, "y": want}, {"boxes": boxes, "y": have})
    assert not compare_with_reference(Expected({"boxes": boxes, "y": want}), {"boxes": boxes, "y": have}, ())[0]


def test_equal_nans_and_infinities_are_equal() -> None:
    nan, inf = float("nan"), float("inf")
    assert compare_with_reference(Expected({"y": _float(nan, nan, inf, 1)}), {"y": _float(nan, -nan, inf, 1)}, ()) == (
        True,
        0,
    )


def test_an_infinity_does_not_widen_the_tolerance() -> None:
    assert not same_outputs({"y": _float(float("inf"), 1)}, {"y": _float(float("inf"), 2)})


def test_classes_of_a_quantized_network_are_compared_exactly() -> None:
    expected = Expected({"class": np.array([3], np.int64)}, reach=2.0)
    assert not compare_with_reference(expected, {"class": np.array([4], np.int64)}, ())[0]
    stored = Expected({"y": np.array([3], np.int8)}, reach=2.0)
    assert compare_with_reference(stored, {"y": np.array([4], np.int8)}, ())[0]
