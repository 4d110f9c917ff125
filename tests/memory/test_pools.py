"""Several memories: the hot buffers inside, the rest outside, as brute force would have it."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest

from tvm_cascade.errors import InfeasibleError, ValidationError
from tvm_cascade.machine import Ram
from tvm_cascade.memory import Buffer, OffsetConstraint, PlacementProblem, Problem, allocate, milp, place
from tvm_cascade.memory.conflicts import conflicts
from tvm_cascade.memory.validate_placement import validate_placement
from tvm_cascade.memory.weights import Weight, WeightCopies, WeightProblem

SRAM, PSRAM = Ram("sram", 24, 1.0), Ram("psram", 60, 10.0)


def drawn(random: Random, objective: str, most: int | None = None) -> PlacementProblem:
    buffers = []
    for i in range(random.randrange(2, 7)):
        first = random.randrange(4)
        buffers.append(Buffer(i, random.randrange(2, 15), first, first + random.randrange(1, 4)))
    pairs = [
        OffsetConstraint(a.id, b.id, random.randrange(-4, 6))
        for a in buffers
        for b in buffers
        if a.upper == b.lower + 1 and a.lower < b.lower and random.random() < 0.5
    ]
    joined = [(0, len(buffers) - 1)] if random.random() < 0.3 else []
    accessed = tuple(float(random.randrange(1, 50)) for _ in buffers)
    return PlacementProblem(
        Problem(tuple(buffers), None, tuple(pairs)), (SRAM, PSRAM), accessed, tuple(joined), objective, most=most
    )


def least(asked: PlacementProblem) -> float | None:
    """The least objective of all assignments that `allocate` lays out."""
    best: float | None = None
    for chosen in product(range(2), repeat=len(asked.problem.buffers)):
        if any(chosen[a] != chosen[b] for a, b in asked.joined):
            continue
        peaks = [peak(asked.problem, [i for i, c in enumerate(chosen) if c == m]) for m in range(2)]
        cycles = sum(asked.memories[c].cycles_per_byte * a for c, a in zip(chosen, asked.accessed, strict=True))
        value = cycles if asked.objective == "time" else float(sum(peaks))
        fits = all(p <= (ram.capacity or 0) for p, ram in zip(peaks, asked.memories, strict=True))
        if fits and (asked.most is None or sum(peaks) <= asked.most):
            best = value if best is None else min(best, value)
    return best


def peak(problem: Problem, held: list[int]) -> int:
    buffers = tuple(problem.buffers[i] for i in held)
    ids = {b.id for b in buffers}
    pairs = tuple(f for f in problem.offset_constraints if f.reader in ids and f.writer in ids)
    return allocate(Problem(buffers, None, pairs)).peak


@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize("most", [None, 30])
@pytest.mark.parametrize("seed", range(40))
def test_equals_brute_force(seed: int, objective: str, most: int | None) -> None:
    asked = drawn(Random(seed), objective, most)
    expected = least(asked)
    if expected is None:
        with pytest.raises(InfeasibleError, match=r"\d+ bytes missing"):
            place(asked)
        return
    found = place(asked)
    validate_placement(asked, found)
    assert (found.cycles if objective == "time" else found.bytes) == expected


@pytest.mark.parametrize("seed", range(20))
def test_conflicts_have_no_layout_and_nothing_to_spare(seed: int) -> None:
    random = Random(seed)
    problem = drawn(random, "time").problem
    capacity = random.randrange(8, 24)
    found = conflicts(problem, capacity)
    if peak(problem, list(range(len(problem.buffers)))) <= capacity:
        assert not found
    for held in found:
        assert peak(problem, held) > capacity
        assert all(peak(problem, [k for k in held if k != i]) <= capacity for i in held)


def test_what_was_proven_impossible_is_not_proven_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever buffers and steps are called: plans that are placed share most of their segments."""
    sizes, asked = (6, 9, 6, 5, 8), list[Problem]()
    monkeypatch.setattr(milp, "impossible", lambda problem, *_: bool(asked.append(problem)))

    def chain(first: int, steps: int) -> Problem:
        """Each is written while the one before it is read, and begins at least 2 bytes below it."""
        buffers = tuple(
            Buffer(first + k, n, steps * k + first, steps * (k + 2) + first, name=f"{first} {k}")
            for k, n in enumerate(sizes)
        )
        return Problem(buffers, None, tuple(OffsetConstraint(a.id, b.id, 2) for a, b in pairwise(buffers)))

    assert not conflicts(chain(0, 1), 12) and asked
    before = len(asked)
    assert not conflicts(chain(40, 3), 12) and len(asked) == before
    assert not conflicts(chain(0, 1), 11) and len(asked) > before


def test_a_chain_of_outputs_behind_their_inputs_is_placed_at_best() -> None:
    """Each of ten outputs begins 8 bytes before its input: two fit together, three do not, though every step's bytes do."""
    buffers = tuple(Buffer(i, 40, i, i + 2, 4) for i in range(10))
    follows = tuple(OffsetConstraint(i, i + 1, 8) for i in range(9))
    asked = PlacementProblem(
        Problem(buffers, None, follows), (Ram("fast", 48, 1.0), Ram("slow", 400, 4.0)), (10.0,) * 10
    )
    found = place(asked)
    validate_placement(asked, found)
    assert found.optimal and found.chosen.count(0) == 7


def test_the_hot_buffer_is_inside() -> None:
    problem = Problem((Buffer(0, 20, 0, 2), Buffer(1, 20, 0, 2)))
    found = place(PlacementProblem(problem, (SRAM, PSRAM), (5.0, 50.0)))
    assert found.chosen == (1, 0) and found.cycles == 50 + 50 and found.optimal


def test_what_is_missing_is_said() -> None:
    problem = Problem((Buffer(0, 20, 0, 2), Buffer(1, 70, 0, 2)))
    with pytest.raises(InfeasibleError, match="6 bytes missing in sram and psram, 10 more of psram would do") as error:
        place(PlacementProblem(problem, (SRAM, PSRAM), (5.0, 50.0)))
    assert (error.value.needed, error.value.available) == (90, 84)


def test_without_scipy_it_is_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = drawn(Random(3), "time")
    exact = place(asked)
    monkeypatch.setitem(sys.modules, "scipy", None)
    found = place(asked)
    validate_placement(asked, found)
    assert found.cycles >= exact.cycles and not found.optimal


def test_a_wrong_placement_is_refused() -> None:
    problem = Problem((Buffer(0, 20, 0, 2), Buffer(1, 20, 0, 2)))
    asked = PlacementProblem(problem, (SRAM, PSRAM), (5.0, 50.0))
    found = place(asked)
    for wrong, why in (
        (replace(found, chosen=(0, 0)), "share bytes"),
        (replace(found, peaks=(20, 24)), "the peak is"),
        (replace(found, cycles=1.0), "the accesses cost"),
        (replace(found, bound=1e9), "the bound of"),
    ):
        with pytest.raises(ValidationError, match=why):
            validate_placement(asked, wrong)
    with pytest.raises(ValidationError, match="two memories"):
        validate_placement(replace(asked, joined=((0, 1),)), found)


def with_weights(random: Random, flash: float | None) -> PlacementProblem:
    asked = drawn(random, "time")
    weights = tuple(
        Weight(random.randrange(1, 20), float(random.randrange(0, 99)), random.choice((None, 0, 1, 1)))
        for _ in range(4)
    )
    limits = random.choice(((24, 0), (0, 48), (16, 32)))
    return replace(asked, weights=WeightProblem(weights, *limits, flash, 0.5))


def least_with_weights(asked: PlacementProblem) -> float | None:
    """The least cycles, less those saved, of all assignments of buffers and all copies in one memory."""
    best: float | None = None
    assert asked.weights is not None
    count = len(asked.weights.weights)
    for how in product(range(3), repeat=count):
        hot, ahead = (tuple(k for k in range(count) if how[k] == n) for n in (1, 2))
        if any(asked.weights.weights[k].segment is None for k in ahead):
            continue
        for m in range(2):
            copies = WeightCopies(m, hot, ahead)
            held = asked.weights.bytes(copies)
            if (
                held - 2 * asked.weights.half(copies) > asked.weights.hot
                or 2 * asked.weights.half(copies) > asked.weights.prefetched
            ):
                continue
            saved = asked.weights.cycles(copies, asked.memories)
            rams = list(asked.memories)
            rams[m] = replace(rams[m], capacity=((rams[m].capacity or 0) - held) // 8 * 8 if held else rams[m].capacity)
            if (rams[m].capacity or 0) < 0:
                continue
            cycles = least(replace(asked, memories=tuple(rams), weights=None))
            if cycles is not None:
                best = cycles - saved if best is None else min(best, cycles - saved)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_copies_of_weights_compete_with_buffers(seed: int) -> None:
    """Where reads of flash cost 6 cycles a byte, as brute force would have it."""
    asked = with_weights(Random(seed), 6.0)
    expected = least_with_weights(asked)
    if expected is None:
        return
    found = place(asked)
    validate_placement(asked, found)
    reached = found.cycles - found.saved
    assert reached == pytest.approx(expected) if found.optimal else expected <= reached


@pytest.mark.parametrize("seed", range(12))
def test_copies_of_unknown_gain_take_what_buffers_leave(seed: int) -> None:
    asked = with_weights(Random(seed), None)
    expected = least(replace(asked, weights=None))
    if expected is None:
        return
    found = place(asked)
    validate_placement(asked, found)
    assert found.cycles == expected and found.saved <= 0


def test_a_weight_that_is_read_once_is_not_prefetched() -> None:
    """Copied, it would be read once more; read twice, it pays where its memory is fast enough."""
    for reads, expected in ((16.0, ()), (64.0, (0,))):
        weights = WeightProblem((Weight(16, reads, 0),), 0, 64, 6.0, 0.5)
        found = place(PlacementProblem(Problem(()), (SRAM, PSRAM), (), weights=weights))
        assert found.copies.prefetched == ()  # two halves of 16 bytes exceed the 24 of the fast memory
        wide = place(PlacementProblem(Problem(()), (replace(SRAM, capacity=32), PSRAM), (), weights=weights))
        assert wide.copies.prefetched == expected
        assert wide.saved == (reads * 5.0 - 16 * 7.5 if expected else 0.0)


def test_wrong_copies_are_refused() -> None:
    weights = WeightProblem((Weight(8, 90.0), Weight(8, 50.0, 1)), 16, 16, 6.0)
    asked = PlacementProblem(Problem(()), (SRAM, PSRAM), (), weights=weights)
    found = place(asked)
    for copies, why in (
        (WeightCopies(0, (0, 0)), "copied twice"),
        (WeightCopies(0, (), (0,)), "several segments"),
        (WeightCopies(0, (0,), (1,)), "save"),
    ):
        with pytest.raises(ValidationError, match=why):
            validate_placement(asked, replace(found, copies=copies, saved=1.0))
    with pytest.raises(ValidationError, match="exceed what they may take"):
        validate_placement(
            replace(asked, weights=replace(weights, hot=8)), replace(found, copies=WeightCopies(0, (0, 1)))
        )
    with pytest.raises(ValidationError, match="behind the end"):
        validate_placement(replace(asked, memories=(replace(SRAM, capacity=8), PSRAM)), found)
