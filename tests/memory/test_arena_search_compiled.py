"""The compiled searches against the Python that they follow: the same answers, of the arena search from the same nodes."""

from __future__ import annotations

import inspect
import random

import pytest

from tvm_cascade import native
from tvm_cascade.memory import Buffer, OffsetConstraint, Problem
from tvm_cascade.memory.arena_search import rankings, search, tables
from tvm_cascade.memory.fit import Fit, Placer, top
from tvm_cascade.memory.local_search import improve
from tvm_cascade.native.xorshift import Xorshift
from tvm_cascade.testing.searches.arena import search_in_python
from tvm_cascade.testing.searches.placement import improve_in_python, place_in_order, surroundings


def problem(random_: random.Random, constrained: bool, pinned: bool) -> Problem:
    """Up to 28 buffers over up to 14 steps, some aligned, some pinned, some that may overlap a dying one."""
    steps = random_.randint(2, 14)
    buffers = []
    for i in range(random_.randint(1, 28)):
        lower = random_.randrange(steps)
        upper = max(lower + 1, min(steps, lower + random_.randint(1, 5)))
        offset = random_.randrange(10) * 16 if pinned and random_.random() < 0.1 else None
        size = random_.randint(1, 40) * random_.choice((1, 4))
        buffers.append(Buffer(i, size, lower, upper, random_.choice((1, 1, 4, 16)), offset))
    pairs = [random_.sample(range(len(buffers)), 2) for _ in range(random_.randint(0, 6)) if len(buffers) > 1]
    constraints = [OffsetConstraint(r, w, random_.randint(-20, 30)) for r, w in pairs] if constrained else []
    return Problem(tuple(buffers), None, tuple(constraints))


def never() -> bool:
    return False


def test_the_library_is_built() -> None:
    module = inspect.getmodulename(native.library()._name)
    assert module is None or "." in module, "what imports every module of the package would try to import the library"


@pytest.mark.parametrize("seed", range(24))
def test_the_same_answer_from_the_same_nodes(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(4):
        asked = problem(random_, constrained=seed % 2 == 1, pinned=seed % 4 == 1)
        t = tables(asked)
        load = int(max((t.sections * t.padded).sum(1)))
        capacity = int(load * random_.choice((0.8, 1, 1, 1.02, 1.05, 1.1, 1.3)))
        for rank in rankings(t)[:2]:
            assert search(t, capacity, rank, 300, never) == search_in_python(t, capacity, rank, 300, never)


@pytest.mark.parametrize("seed", range(8))
def test_buffers_are_placed_in_the_same_gaps(seed: int) -> None:
    random_ = random.Random(seed)
    refused = 0
    for _ in range(12):
        asked = problem(random_, constrained=seed % 2 == 1, pinned=seed % 4 > 1)
        placer, order = Placer(asked), random_.sample(range(len(asked.buffers)), len(asked.buffers))
        around = surroundings(asked)
        for fit in Fit:
            placed = place_in_order(asked, order, fit, around)
            compiled = placer.place(order, fit)
            assert placed is not None and compiled is not None and compiled.tolist() == placed
            assert placer.top(compiled) == top(asked, placed)
            limit = random_.randint(0, top(asked, placed))
            within = place_in_order(asked, order, fit, around, limit)
            compiled = placer.place(order, fit, limit)
            assert (None if compiled is None else compiled.tolist()) == within
            refused += within is None
    assert refused


@pytest.mark.parametrize("seed", range(8))
def test_the_local_search_takes_the_same_way(seed: int) -> None:
    random_ = random.Random(seed)
    smaller = 0
    for _ in range(12):
        asked = problem(random_, constrained=seed % 2 == 1, pinned=seed % 4 > 1)
        placer, order = Placer(asked), random_.sample(range(len(asked.buffers)), len(asked.buffers))
        first = placer.place(order, Fit.FIRST)
        assert first is not None
        begin = tuple(first.tolist())
        compiled = improve(placer, begin, 0, 300)
        by_offset = sorted(range(len(begin)), key=lambda i: (begin[i], i))
        assert compiled == improve_in_python(asked, by_offset, begin, 0, 300, Xorshift(0))[1]
        assert top(asked, compiled) <= top(asked, begin)
        smaller += top(asked, compiled) < top(asked, begin)
        goal = (top(asked, compiled) + top(asked, begin)) // 2
        assert top(asked, improve(placer, begin, goal, 300)) <= goal
    assert smaller > 4


def hard() -> Problem:
    """80 buffers that take more than 20,000 nodes."""
    random_ = random.Random(14)
    lives = [(random_.randrange(60), random_.randint(4, 20), random_.randint(1, 40)) for _ in range(80)]
    return Problem(tuple(Buffer(i, size, lower, lower + life) for i, (lower, life, size) in enumerate(lives)))


def test_a_search_ends_when_its_time_is_up() -> None:
    t = tables(hard())
    load = int(max((t.sections * t.padded).sum(1)))
    asked = []
    result = search(t, load, rankings(t)[0], 1 << 20, lambda: bool(asked.append(1)) or len(asked) == 2)
    assert result.offsets is None and not result.complete and result.nodes == 511


def test_what_interrupts_a_search_is_raised() -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    t = tables(hard())
    load = int(max((t.sections * t.padded).sum(1)))
    with pytest.raises(KeyboardInterrupt):
        search(t, load, rankings(t)[0], 1 << 20, interrupted)
