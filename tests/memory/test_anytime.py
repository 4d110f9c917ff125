"""Arenas under a limit that strikes after every number of looks at the clock: valid, and never larger with more time."""

from __future__ import annotations

import random

import pytest

from tvm_cascade.memory import AllocateOptions, Buffer, OffsetConstraint, Problem, allocate
from tvm_cascade.memory.validate import validate
from tvm_cascade.testing.looks import after_looks, with_more_and_more_time

EFFORT = AllocateOptions(nodes=3_000, first_limit=300, placements=60 * 60)


def crowded(seed: int, constrained: bool) -> Problem:
    """Buffers that no heuristic lays out within the bound."""
    random_ = random.Random(seed)
    buffers = []
    for i in range(60):
        lower = random_.randrange(20)
        buffers.append(Buffer(i, random_.randint(1, 400), lower, lower + random_.randint(1, 12)))
    pairs = [random_.sample(range(60), 2) for _ in range(8)] if constrained else []
    return Problem(tuple(buffers), None, tuple(OffsetConstraint(r, w, 5) for r, w in pairs))


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("seed", [0, 3])
def test_more_time_never_gives_a_larger_arena(seed: int, constrained: bool) -> None:
    asked = crowded(seed, constrained)
    whole = allocate(asked, options=EFFORT)
    found = list(with_more_and_more_time(lambda: allocate(asked, options=EFFORT)))
    for allocation in found:
        validate(asked, allocation)
    peaks, bounds = [a.peak for a in found], [a.bound for a in found]
    assert peaks == sorted(peaks, reverse=True) and bounds == sorted(bounds)
    assert len(found) > 1 and peaks[0] > peaks[-1]
    assert (found[-1].offsets, found[-1].bound) == (whole.offsets, whole.bound)


def test_the_compiled_search_asks_often_enough() -> None:
    """Every 256 nodes: ten looks are over long before a search of ten million nodes is."""
    effort = AllocateOptions(nodes=10**7, first_limit=10**7, placements=0)
    allocation, limited = after_looks(10, lambda: allocate(crowded(2, True), options=effort))
    assert limited and allocation.bound < allocation.peak
