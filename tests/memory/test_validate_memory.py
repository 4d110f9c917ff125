"""The validator refuses what is wrong."""

from __future__ import annotations

import pytest

from tvm_cascade.errors import ValidationError
from tvm_cascade.memory import Allocation, Buffer, OffsetConstraint, Problem, validate

A, B = Buffer(0, 10, 0, 2, 2), Buffer(1, 10, 1, 3)


@pytest.mark.parametrize(
    ("problem", "allocation", "message"),
    [
        (Problem((A, B)), Allocation((0, 9), 19, 0, False), "share bytes"),
        (Problem((A, B)), Allocation((1, 11), 21, 0, False), "not a multiple of 2"),
        (Problem((A, B)), Allocation((0,), 10, 0, False), "2 buffers and 1 offsets"),
        (Problem((A, B)), Allocation((0, 10), 21, 0, False), "the peak is 20 bytes"),
        (Problem((A, B)), Allocation((0, 10), 20, 21, False), "exceeds the peak"),
        (Problem((A, B), 19), Allocation((0, 10), 20, 20, True), "exceeds the capacity"),
        (Problem((A, B), None, (OffsetConstraint(0, 1, 4),)), Allocation((2, 0), 12, 0, False), "overtakes"),
        (Problem((Buffer(0, 4, 0, 1, offset=4),)), Allocation((0,), 4, 0, False), "pinned at 4"),
    ],
)
def test_wrong_allocations_are_refused(problem: Problem, allocation: Allocation, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        validate(problem, allocation)


def test_a_follower_at_its_distance_is_right() -> None:
    validate(Problem((A, B), None, (OffsetConstraint(0, 1, 4),)), Allocation((4, 0), 14, 14, True))
