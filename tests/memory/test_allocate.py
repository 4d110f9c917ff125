"""The allocator against brute force, published cases and its own validator."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from tvm_cascade.errors import InfeasibleError, UsageError, ValidationError
from tvm_cascade.memory import (
    AllocateOptions,
    Allocation,
    Buffer,
    OffsetConstraint,
    Problem,
    allocate,
    max_live,
    milp,
    validate,
)
from tvm_cascade.memory.bounds import max_live_step
from tvm_cascade.memory.fit import Fit, top
from tvm_cascade.testing.searches.placement import place_in_order, surroundings


def lives(*rows: tuple[int, int, int], capacity: int | None = None) -> Problem:
    """Rows of (size, first, last), last step included."""
    return Problem(tuple(Buffer(i, s, a, b + 1) for i, (s, a, b) in enumerate(rows)), capacity)


TFLM_ONE = lives((10, 0, 1), (20, 1, 2), (30, 2, 3), (40, 3, 4), (50, 0, 1))
TFLM_TWO = lives((100, 0, 1), (50, 2, 3), (20, 1, 2))


@pytest.mark.parametrize(("problem", "greedy"), [(TFLM_ONE, 90), (TFLM_TWO, 120)])
def test_first_fit_by_size_is_tflms_planner(problem: Problem, greedy: int) -> None:
    order = sorted(range(len(problem.buffers)), key=lambda i: -problem.buffers[i].size)
    around = surroundings(problem)
    offsets = place_in_order(problem, order, Fit.FIRST, around)
    assert offsets is not None and top(problem, offsets) == greedy
    assert place_in_order(problem, order, Fit.FIRST, around, greedy) == offsets
    assert place_in_order(problem, order, Fit.FIRST, around, greedy - 1) is None


@pytest.mark.parametrize(("problem", "best"), [(TFLM_ONE, 80), (TFLM_TWO, 120)])
def test_tflms_cases_are_solved_to_optimality(problem: Problem, best: int) -> None:
    found = allocate(problem)
    validate(problem, found)
    assert (found.peak, found.bound, found.optimal) == (best, best, True)


def random_problem(seed: int) -> Problem:
    random = Random(seed)
    alignment = random.choice((1, 1, 4, None))
    buffers = []
    for i in range(random.randrange(1, 7)):
        first = random.randrange(0, 5)
        last = first + random.randrange(1, 5)
        buffers.append(Buffer(i, random.randrange(1, 12), first, last, alignment or random.choice((1, 2, 4))))
    if random.random() < 0.3:
        b = buffers[0]
        buffers[0] = Buffer(0, b.size, b.lower, b.upper, b.alignment, b.alignment * random.randrange(0, 4))
    return Problem(tuple(buffers))


@pytest.mark.parametrize("block", range(4))
def test_equals_brute_force(block: int) -> None:
    """Some order placed first-fit is optimal: sort the buffers of an optimal layout, pushed down, by offset."""
    above_bound = 0
    for seed in range(block * 250, block * 250 + 250):
        problem = random_problem(seed)
        around = surroundings(problem)
        orders = permutations(range(len(problem.buffers)))
        best = min(top(problem, place_in_order(problem, o, Fit.FIRST, around) or ()) for o in orders)
        found = allocate(problem)
        validate(problem, found)
        assert (found.peak, found.optimal) == (best, True), seed
        above_bound += best > max_live(problem)
    assert above_bound > 10


def test_a_capacity_stops_the_search_and_proves_its_absence() -> None:
    problem = lives((4, 0, 2), (4, 3, 8), (4, 0, 8), (4, 9, 20), capacity=8)
    assert allocate(problem).peak <= 8
    with pytest.raises(
        InfeasibleError,
        match="needs 8 bytes, 7 available, 1 bytes missing; peak at buffer 0, buffer 2; these live together",
    ):
        allocate(Problem(problem.buffers, 7))


def test_infeasible_above_the_live_bound_is_proven() -> None:
    seed = next(s for s in range(400) if allocate(random_problem(s)).peak > max_live(random_problem(s)))
    problem = random_problem(seed)
    best = allocate(problem).peak
    with pytest.raises(InfeasibleError, match=f"needs {best} bytes, {best - 1} available"):
        allocate(Problem(problem.buffers, best - 1))


def test_followers_share_bytes() -> None:
    reader, writer = Buffer(0, 100, 0, 2), Buffer(1, 80, 1, 3)
    apart = allocate(Problem((reader, writer)))
    behind = allocate(Problem((reader, writer), offset_constraints=(OffsetConstraint(0, 1, 16),)))
    validate(Problem((reader, writer), offset_constraints=(OffsetConstraint(0, 1, 16),)), behind)
    assert (apart.peak, behind.peak, behind.optimal) == (180, 116, True)


@pytest.mark.parametrize("seed", range(40))
def test_follow_problems_are_valid_and_never_worse_than_apart(seed: int) -> None:
    random = Random(seed)
    buffers = tuple(Buffer(i, random.randrange(4, 40), i, i + random.randrange(2, 5)) for i in range(8))
    pairs = [(i, i + 1) for i in range(7) if buffers[i].upper == i + 2]
    problem = Problem(
        buffers, offset_constraints=tuple(OffsetConstraint(r, w, random.randrange(-4, 9)) for r, w in pairs)
    )
    found = allocate(problem)
    validate(problem, found)
    assert found.peak <= allocate(Problem(buffers), optimise=False).peak


def test_pinned_buffers_stay() -> None:
    problem = Problem((Buffer(0, 16, 0, 4, offset=8), Buffer(1, 8, 0, 4), Buffer(2, 12, 1, 2)))
    found = allocate(problem)
    validate(problem, found)
    assert found.offsets == (8, 0, 24)


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ((Buffer(0, 4, 2, 2),), "lives not empty"),
        ((Buffer(0, -1, 0, 2),), "sizes are at least 0"),
        ((Buffer(0, 4, 0, 2, 4, 6),), "pinned at 6, which its alignment 4 forbids"),
        ((Buffer(0, 4, 0, 2), Buffer(0, 4, 0, 2)), "listed twice"),
        ((Buffer(0, 4, 0, 2, offset=0), Buffer(1, 4, 0, 2, offset=2)), "pinned onto each other"),
    ],
)
def test_bad_buffers_are_refused(buffers: tuple[Buffer, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        allocate(Problem(buffers))


def test_the_same_problem_gives_the_same_layout() -> None:
    random = Random(5)
    buffers = tuple(
        Buffer(i, random.randrange(1, 900), a, a + random.randrange(1, 9))
        for i in range(60)
        for a in [random.randrange(30)]
    )
    found = [allocate(Problem(buffers), options=AllocateOptions(nodes=3_000)) for _ in range(2)]
    validate(Problem(buffers), found[0])
    assert found[0].offsets == found[1].offsets


def test_nothing_to_allocate() -> None:
    assert allocate(Problem(())).peak == 0


def lowest_by_trying(problem: Problem, below: int) -> int:
    """Least peak over all offsets, at most `below`."""
    best = below
    n = len(problem.buffers)

    def descend(i: int, offsets: tuple[int, ...], peak: int) -> None:
        nonlocal best
        if i == n:
            best = min(best, peak)
            return
        buffers = problem.buffers[: i + 1]
        follows = tuple(f for f in problem.offset_constraints if max(f.reader, f.writer) <= i)
        for o in range(max(0, best - buffers[i].size)):
            top_ = max(peak, o + buffers[i].size)
            try:
                validate(Problem(buffers, None, follows), Allocation((*offsets, o), top_, 0, False))
            except ValidationError:
                continue
            descend(i + 1, (*offsets, o), top_)

    descend(0, (), 0)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_followers_equal_brute_force(seed: int) -> None:
    random = Random(seed)
    lives_ = [(first, first + random.randrange(1, 4)) for first in (random.randrange(3) for _ in range(4))]
    buffers = tuple(Buffer(i, random.randrange(1, 6), *life, seed % 3 + 1) for i, life in enumerate(lives_))
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4) if random.random() < 0.4]
    problem = Problem(buffers, None, tuple(OffsetConstraint(i, j, random.randrange(-3, 4)) for i, j in pairs))
    found = allocate(problem)
    validate(problem, found)
    assert found.peak == lowest_by_trying(problem, found.peak)
    assert found.optimal or buffers[0].alignment > 1  # the integer program rounds all sizes up
    assert max_live(problem) <= found.peak


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_of_one_reader_and_its_writers_is_no_more_than_brute_force(seed: int) -> None:
    random = Random(seed)
    buffers = tuple(Buffer(i, random.randrange(2, 5), 0, 1) for i in range(4))
    pairs = [(0, w) for w in (1, 2, 3)] + [p for p in ((1, 2), (1, 3), (2, 3)) if random.random() < 0.2]
    problem = Problem(buffers, None, tuple(OffsetConstraint(r, w, random.randrange(-2, 3)) for r, w in pairs))
    found = allocate(problem)
    assert max_live(problem) <= found.peak == lowest_by_trying(problem, found.peak)


def test_of_several_writers_one_shares_bytes_with_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rings of a cascade over its dying input: the bound is met, so that no integer program is solved."""
    monkeypatch.setattr(milp, "run_milp", None)
    rings = [Buffer(i, size, 0, 1, 8) for i, size in enumerate((320, 960, 320, 960, 320), 1)]
    buffers = (Buffer(0, 490, 0, 1, 8), *rings, Buffer(6, 64, 0, 2, 8), Buffer(7, 40, 0, 1, 8))
    follows = tuple(OffsetConstraint(0, w, d) for w, d in enumerate((300, 900, 280, 880, 260, -490), 1))
    found = allocate(Problem(buffers, None, follows))
    assert (found.peak, found.optimal) == (490 + 2880 + 40 - 80, True)
    with pytest.raises(InfeasibleError, match="these live together"):
        allocate(Problem(buffers, 3296, follows))


def test_writers_that_begin_one_behind_the_other_cannot_all_lie_over_their_reader() -> None:
    """Three rings of 768 bytes that may begin at 0, 384 and 768 of it: the first of them lies before it."""
    rings = [Buffer(i, 768, 0, 1, 4) for i in (1, 2, 3)]
    follows = tuple(OffsetConstraint(0, w, d) for w, d in ((1, 0), (2, -384), (3, -768)))
    problem = Problem((Buffer(0, 2304, 0, 1, 4), *rings, Buffer(4, 28, 0, 1, 4)), None, follows)
    assert max_live(problem) == allocate(problem).peak == 2304 + 768 + 28


@pytest.mark.parametrize("seed", range(12))
def test_the_search_knows_followers(seed: int) -> None:
    """Chains as plans make them: every output behind its dying input."""
    random = Random(seed)
    buffers = []
    for i in range(60):
        buffers.append(Buffer(i, 64 * random.randrange(1, 200), i, i + 1 + random.choice((1, 1, 1, 2, 3, 8)), 4))
    pairs = [(i, i + 1) for i in range(59) if buffers[i].upper == i + 2]
    follows = tuple(OffsetConstraint(r, w, random.choice((0, -64, 128, 512))) for r, w in pairs)
    problem = Problem(tuple(buffers), None, follows)
    found = allocate(problem)
    validate(problem, found)
    assert found.peak <= found.bound * 1.01


@pytest.mark.parametrize("seed", range(300))
def test_the_bound_is_that_of_the_first_step_that_needs_most(seed: int) -> None:
    """Against every step by itself: the buffers that are live at it alone."""
    problem = random_problem(seed)
    found, step = max_live_step(problem)
    needed: dict[int, int] = {}
    for t in sorted({b.lower for b in problem.buffers}):
        live = {b.id for b in problem.buffers if b.lower <= t < b.upper}
        kept = tuple(f for f in problem.offset_constraints if {f.reader, f.writer} <= live)
        own = tuple(replace(b, lower=0, upper=1) for b in problem.buffers if b.id in live)
        needed[t] = max_live(Problem(own, offset_constraints=kept))
    assert found == max(needed.values(), default=0)
    assert step == next((t for t, need in needed.items() if need == found > 0), 0)
