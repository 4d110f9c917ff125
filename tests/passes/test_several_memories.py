"""Plans whose blocks lie in several memories compute what they do in one arena."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import tvm

from tvm_cascade import pipeline
from tvm_cascade.cascading import Plan, validate
from tvm_cascade.cascading.memories import apart, in_memories, joined
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import ValidationError
from tvm_cascade.machine import Ram
from tvm_cascade.memory import Problem, allocate
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.random_dags import Planned, ways
from tvm_cascade.testing.transposed_branches import random_run, transposed_branches

WAYS = ("min", "rows", "streamed, 2x work", "3x work", "layerwise", "joined, rows")
RAMS = tuple(Ram(name) for name in ("fast", "middle", "slow"))


def network() -> tvm.IRModule:
    """A transpose, branches joined along the channels, a mean."""
    net, y = transposed_branches()
    return net.finish([net.conv(y, 4, 1), net.global_pool(net.conv(y, 8, 3))])


def scattered(plan: Plan, random: Random) -> Plan:
    """The plan with its blocks in memories drawn at random, as far as they may part."""
    buffers = plan.problem.buffers
    chosen = {b.name: random.randrange(len(RAMS)) for b in buffers}
    for a, b in joined(plan) * len(buffers):
        chosen[b] = chosen[a] = min(chosen[a], chosen[b])
    offsets: dict[str, int] = {}
    for m in range(len(RAMS)):
        held = tuple(b for b in buffers if chosen[b.name] == m)
        ids = {b.id for b in held}
        pairs = tuple(f for f in plan.problem.offset_constraints if f.reader in ids and f.writer in ids)
        found = allocate(Problem(held, None, pairs), optimise=False)
        offsets |= {b.name: o for b, o in zip(held, found.offsets, strict=True)}
    return in_memories(plan, RAMS, [chosen[b.name] for b in buffers], [offsets[b.name] for b in buffers])


@pytest.fixture(scope="module")
def planned() -> dict[str, Planned]:
    mod = network()
    able = ways(mod, pipeline.prepare(mod, KernelTarget()))
    return {name: able[name]() for name in WAYS}


@pytest.fixture(scope="module")
def expected() -> tuple[np.ndarray, list[np.ndarray]]:
    return random_run(network())


@pytest.mark.parametrize("way", WAYS)
def test_blocks_may_lie_in_any_memory(
    planned: dict[str, Planned], expected: tuple[np.ndarray, list[np.ndarray]], way: str
) -> None:
    prepared, plan = planned[way]
    x, outputs = expected
    moved = scattered(plan, Random(way))
    assert len({moved.memory_at(a).ram.name for a in moved.allocation.offsets}) == len(RAMS)
    assert moved.peak == sum(use.bytes for use in moved.memories) >= plan.bound
    validate(moved)
    run = run_plan(prepared, moved, [x])
    assert all(np.array_equal(a, b) for a, b in zip(run.outputs, outputs, strict=True))


def test_blocks_that_may_not_part_are_named(planned: dict[str, Planned]) -> None:
    """Row tables and the rings that they lead into: only in plans that go by pixels, on cores with fast kernels."""
    assert not joined(planned["rows"][1]) and not joined(planned["layerwise"][1])


def test_every_block_apart(planned: dict[str, Planned]) -> None:
    plan = planned["min"][1]
    alone = apart(plan)
    assert [use.ram.name for use in alone.memories] == [b.name for b in plan.problem.buffers]
    assert alone.peak == sum(b.size for b in plan.problem.buffers)


def test_wrong_memories_are_refused(planned: dict[str, Planned]) -> None:
    moved = scattered(planned["rows"][1], Random(1))
    first, *rest = moved.placed
    small = replace(first, ram=replace(first.ram, capacity=first.bytes - 1))
    with pytest.raises(ValidationError, match=r"fast takes \d+ bytes, of"):
        validate(replace(moved, placed=(small, *rest)))
    with pytest.raises(ValidationError, match="inside of the memory before it"):
        validate(replace(moved, placed=(first, replace(rest[0], start=8), *rest[1:])))
    with pytest.raises(ValidationError, match="does not lie inside of one memory"):
        validate(replace(moved, placed=(replace(first, bytes=first.bytes - 8), *rest)))
