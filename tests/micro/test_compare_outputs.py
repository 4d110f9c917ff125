"""Each output is held to its own range and type."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_cascade.checking.compare_outputs import Reach, Verdict, compare
from tvm_cascade.checking.sensitivity import moved_inputs


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
    assert compare({"boxes": boxes, "y": want}, {"boxes": boxes, "y": have}).match is False


def test_equal_nans_and_infinities_are_equal() -> None:
    nan, inf = float("nan"), float("inf")
    assert compare({"y": _float(nan, nan, inf, 1)}, {"y": _float(nan, -nan, inf, 1)}) == Verdict(True)


def test_an_infinity_does_not_widen_the_tolerance() -> None:
    assert not compare({"y": _float(float("inf"), 1)}, {"y": _float(float("inf"), 2)}).match


def test_small_outputs_are_held_to_their_own_range() -> None:
    assert not compare({"y": _float(1e-9, 3e-9)}, {"y": _float(0, 0)}).match
    assert compare({"y": _float(1e-9, 3e-9)}, {"y": _float(1e-9, 3.0001e-9)}).match


def test_other_shapes_are_said_in_words() -> None:
    found = compare({"a": _float(1, 2)}, {"y": _float(1, 2).reshape(1, 2)})
    assert found == Verdict(False, float("inf"), reason="output 'y' is float32[1, 2], the reference's float32[2]")
    assert (
        compare({"a": _float(2)}, {"y": np.array([2])}).reason == "output 'y' is int64[1], the reference's float32[1]"
    )


def test_classes_of_a_quantized_network_are_compared_exactly() -> None:
    assert not compare(
        {"class": np.array([3], np.int64)}, {"class": np.array([4], np.int64)}, {"class": Reach(2.0)}
    ).match
    assert compare({"y": np.array([3], np.int8)}, {"y": np.array([4], np.int8)}, {"y": Reach(2.0)}).match


def test_what_roundings_change_is_allowed_of_each_output_by_its_own_range() -> None:
    reach = {"box": Reach(3.0), "score": Reach(0.01)}
    want, have = {"box": _float(0, 300), "score": _float(0.2, 0.9)}, {"box": _float(2, 300), "score": _float(0.2, 0.9)}
    assert compare(want, have, reach) == Verdict(True, 2.0, 3.0, "", 1, 2)
    have["score"] = _float(0.2, 0.4)
    assert compare(want, have, reach).match is False


def test_a_reach_beyond_the_range_checks_nothing() -> None:
    found = compare({"mask": _float(0, 1)}, {"mask": _float(0.5, 1)}, {"mask": Reach(1.9)})
    assert (found.match, found.gap) == (None, 0.5)
    assert found.reason == "roundings alone move output 'mask' by 1.9, and its values span 1"
    assert compare({"mask": _float(0, 1)}, {"mask": _float(0, 1)}, {"mask": Reach(1.9)}).match is True  # equal is equal
    assert compare({"mask": _float(0, 1)}, {"mask": _float(2, 1)}, {"mask": Reach(1.9)}).match is False


def test_inputs_beside_a_nan_move_by_an_ulp() -> None:
    """Were they NaN too, every difference between an image and the host would count as rounding."""
    x = np.array([np.nan, -1, 0, 5], "float32")
    (moved,) = moved_inputs({"x": x}, np.random.default_rng(0)).values()
    np.testing.assert_allclose(moved, x, rtol=1e-6)
    assert (moved[[1, 3]] != x[[1, 3]]).any()


def test_more_elements_than_roundings_move_are_different() -> None:
    want, have = {"y": np.zeros(100, "int8")}, {"y": np.repeat([1, 0], [6, 94]).astype("int8")}
    assert compare(want, have, {"y": Reach(2.0, 0.05)}) == Verdict(False, 1.0, None, "", 6, 100)
    want["y"][50] = 9
    have["y"][50] = 9
    assert compare(want, have, {"y": Reach(2.0, 0.06)}) == Verdict(True, 1.0, 2.0, "", 6, 100)


def test_floats_that_are_whole_steps_are_held_to_a_quarter_of_a_step() -> None:
    """A step of 16 bits is less than what floats may differ by."""
    want, have = {"y": _float(0, 1)}, {"y": _float(1 / 65536, 1)}
    assert compare(want, have).match and not compare(want, have, steps={"y": 1 / 65536}).match
