"""Two memories: the hot buffers inside, the rest outside, as brute force would have it."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.memory import Allocation, Buffer, Problem, allocate, validate
from tvm_cascade.memory.pools import Placement, Pool, place_in_pools

SRAM, PSRAM = Pool("sram", 24, 1.0), Pool("psram", 200, 10.0)


def cheapest(problem: Problem, pools: tuple[Pool, ...], accessed: dict[int, int]) -> float:
    best = float("inf")
    for choice in product(range(len(pools)), repeat=len(problem.buffers)):
        cost = sum(pools[p].cost * accessed[b.id] for p, b in zip(choice, problem.buffers, strict=True))
        if cost < best and all(fits(problem, choice, p, pool) for p, pool in enumerate(pools)):
            best = cost
    return best


def fits(problem: Problem, choice: tuple[int, ...], p: int, pool: Pool) -> bool:
    held = tuple(b for b, c in zip(problem.buffers, choice, strict=True) if c == p)
    return allocate(Problem(held)).peak <= pool.capacity


def check(problem: Problem, pools: tuple[Pool, ...], found: Placement) -> None:
    for p, pool in enumerate(pools):
        held = [(b, o) for b, o, c in zip(problem.buffers, found.offsets, found.pools, strict=True) if c == p]
        part = Problem(tuple(b for b, _ in held), pool.capacity)
        validate(part, Allocation(tuple(o for _, o in held), found.peaks[p], 0, False))


@pytest.mark.parametrize("seed", range(60))
def test_equals_brute_force(seed: int) -> None:
    random = Random(seed)
    buffers = []
    for i in range(random.randrange(2, 8)):
        first = random.randrange(4)
        buffers.append(Buffer(i, random.randrange(2, 15), first, first + random.randrange(1, 4)))
    problem, accessed = Problem(tuple(buffers)), {b.id: random.randrange(1, 50) for b in buffers}
    found = place_in_pools(problem, (SRAM, PSRAM), accessed)
    check(problem, (SRAM, PSRAM), found)
    assert found.optimal and found.cost == cheapest(problem, (SRAM, PSRAM), accessed)


def test_the_hot_buffer_is_inside() -> None:
    problem = Problem((Buffer(0, 20, 0, 2), Buffer(1, 20, 0, 2)))
    assert place_in_pools(problem, (SRAM, PSRAM), {0: 5, 1: 50}).pools == (1, 0)


def test_what_fits_nowhere_is_said() -> None:
    with pytest.raises(InfeasibleError, match="needs 300 bytes, 224 available"):
        place_in_pools(Problem((Buffer(0, 300, 0, 1),)), (SRAM, PSRAM), {})
