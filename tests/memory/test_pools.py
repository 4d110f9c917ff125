"""Several memories: the hot buffers inside, the rest outside, as brute force would have it."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from tvm_cascade.errors import InfeasibleError, ValidationError
from tvm_cascade.machine import Ram
from tvm_cascade.memory import Buffer, OffsetConstraint, PlacementProblem, Problem, allocate, place
from tvm_cascade.memory.validate_placement import validate_placement

SRAM, PSRAM = Ram("sram", 24, 1.0), Ram("psram", 60, 10.0)


def drawn(random: Random, objective: str) -> PlacementProblem:
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
        Problem(tuple(buffers), None, tuple(pairs)), (SRAM, PSRAM), accessed, tuple(joined), objective
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
        if all(p <= (ram.capacity or 0) for p, ram in zip(peaks, asked.memories, strict=True)):
            best = value if best is None else min(best, value)
    return best


def peak(problem: Problem, held: list[int]) -> int:
    buffers = tuple(problem.buffers[i] for i in held)
    ids = {b.id for b in buffers}
    pairs = tuple(f for f in problem.offset_constraints if f.reader in ids and f.writer in ids)
    return allocate(Problem(buffers, None, pairs)).peak


@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize("seed", range(40))
def test_equals_brute_force(seed: int, objective: str) -> None:
    asked = drawn(Random(seed), objective)
    expected = least(asked)
    if expected is None:
        with pytest.raises(InfeasibleError, match=r"\d+ bytes missing"):
            place(asked)
        return
    found = place(asked)
    validate_placement(asked, found)
    assert (found.cycles if objective == "time" else found.bytes) == expected


def test_the_hot_buffer_is_inside() -> None:
    problem = Problem((Buffer(0, 20, 0, 2), Buffer(1, 20, 0, 2)))
    found = place(PlacementProblem(problem, (SRAM, PSRAM), (5.0, 50.0)))
    assert found.chosen == (1, 0) and found.cycles == 50 + 50 and found.optimal


def test_what_is_missing_is_said() -> None:
    problem = Problem((Buffer(0, 20, 0, 2), Buffer(1, 70, 0, 2)))
    with pytest.raises(InfeasibleError, match="10 bytes missing in sram and psram") as error:
        place(PlacementProblem(problem, (SRAM, PSRAM), (5.0, 50.0)))
    assert (error.value.needed, error.value.available) == (94, 84)


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
