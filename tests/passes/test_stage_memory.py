"""Memory of staged programs: no order in which concurrent groups may run destroys what is read; groups reuse their own memory."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import random
from dataclasses import replace

import numpy as np
import pytest

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, Schedule, Stage, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.join_networks import join_networks
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.concat import write_in_place
from tvm_cascade.staging.program.cuda import emit_cuda
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.memory import plan_memory
from tvm_cascade.staging.program.program import Program, plan_program
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.staging.program.specs import reads, writes
from tvm_cascade.testing.builder import Net

H200 = AnalyticCost(find_device("h200"))
APART = Options(r=1)  # few stages are searched: the one of both networks is the cheapest


def network(seed: int):
    """Branches that meet in a concat, views in the midst and at the end, and a residual."""
    net = Net("float32", "NHWC", seed=seed)
    x = net.input((1, 8, 8, 8), "x")
    a = net.conv(net.conv(x, 8, 1, activation="relu"), 16, 3, activation="relu")
    b = net.conv(net.max_pool(x, 3, 1, 1), 16, 1)
    y = net.concat([a, b])
    for _ in range(seed % 3 + 1):
        y = net.add(net.conv(y, 32, 3, activation="relu"), y, "relu")
    rows = net.matmul(net.reshape(y, (1, 64, 32)), net.reshape(y, (1, 32, 64)))
    return net.finish([net.dense(net.flatten(net.global_pool(y)), 10), net.softmax(rows)])


def joint(*seeds: int):
    net = stage_graph(join_networks({f"n{k}": network(seed) for k, seed in enumerate(seeds)}))
    return net, unit_graph(net.graph, "fused")


def survives(program: Program, static: bool, rng: random.Random) -> bool:
    """Whether every kernel finds what it reads, for a random order of each step's kernels that its groups admit: a simulation
    that writes the name of a storage to its bytes. It knows no lifetimes."""
    plan, graph = plan_memory(program, static), program.net.graph
    bytes_of: dict[int, int] = {}
    outside = {p.root for p in program.places} - set(plan.offsets)

    def span(t: int) -> range:
        root = program.places[t].root
        if t in program.slices:  # a part that is no run of bytes: all of them
            return range(plan.offsets[root], plan.offsets[root] + program.bytes_of(root))
        begin = plan.offsets[root] + program.places[t].offset
        return range(begin, begin + graph.tensors[t].bytes)

    def write(t: int) -> None:
        if program.places[t].root not in outside:
            bytes_of.update(dict.fromkeys(span(t), program.places[t].root))

    def intact(t: int) -> bool:
        root = program.places[t].root
        return root in outside or all(bytes_of.get(at) == root for at in span(t))

    if static:
        for t in graph.inputs:
            write(t)
    for step in program.steps:
        left = [list(group) for group in step.groups]
        while left := [group for group in left if group]:
            spec = program.specs[rng.choice(left).pop(0)]
            if not all(intact(t) for t in reads(graph, spec)):
                return False
            for t in writes(graph, spec):
                write(t)
    return all(intact(t) for t in graph.outputs)


def random_stages(net, units, rng: random.Random) -> Schedule:
    """A schedule of stages that take what is ready, with what follows it, for as long as they like."""
    done: set[int] = set()
    stages = []
    left = list(range(len(units.units)))
    while left:
        taken: list[int] = []
        for v in left:
            if rng.random() < 0.8 and all(u in done or u in taken for u in units.predecessors[v]):
                taken.append(v)
        groups: list[list[int]] = []
        for v in taken:
            joined = [g for g in groups if set(g) & set(units.predecessors[v])]
            groups = [g for g in groups if g not in joined] + [sorted({v}.union(*joined))]
        done |= set(taken)
        left = [v for v in left if v not in done]
        ops = [tuple(i for v in group for i in units.units[v].ops) for group in sorted(groups)]
        stages += [Stage("concurrent", tuple(ops))] if ops else []
    return Schedule(tuple(stages), 0.0)


@pytest.mark.parametrize("captured", [True, False])
def test_random_stages_keep_what_is_read(captured):
    rng = random.Random(3)
    reused = 0
    for trial in range(12):
        net, units = joint(trial, trial + 1)
        program = plan_program(net, units, random_stages(net, units, rng), captured)
        program = write_in_place(program)
        assert all(survives(program, captured, rng) for _ in range(4))
        plan = plan_memory(program, captured)
        reused += len(plan.offsets) > len(plan.problem.buffers)
    assert (reused > 0) == captured


def test_the_simulation_sees_memory_that_is_shared_too_early():
    """With lifetimes of kernels in place of stages, some order of the groups destroys what another one reads."""
    net, units = joint(1, 2)
    found = schedule(net.graph, H200, APART).schedule
    assert len(found.stages) == 1
    program = plan_program(net, units, found, True)
    one_by_one = [replace(program.steps[0], groups=((k,),)) for group in program.steps[0].groups for k in group]
    unsafe = plan_memory(replace(program, steps=tuple(one_by_one)), True)
    rng = random.Random(0)
    assert all(survives(program, True, rng) for _ in range(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.plan_memory", lambda _program, _static: unsafe)
        assert not all(survives(program, True, rng) for _ in range(8))


def test_networks_that_nothing_connects_share_a_stage_and_need_their_own_peaks(graph_builtins):
    """One stage whose groups are the networks; its arena holds what each needs alone, no more, and views cost no kernels."""
    net, units = joint(0, 1, 2)
    found = schedule(net.graph, H200, APART).schedule
    assert [len(stage.groups) for stage in found.stages] == [3]
    program = write_in_place(plan_program(net, units, found, captured=True))
    alone, kernels = 0, 0
    for seed in range(3):
        single, its_units = joint(seed)
        order = schedule(single.graph, H200, Options(variant="sequential")).schedule
        its_program = write_in_place(plan_program(single, its_units, order, captured=True))
        alone += plan_memory(its_program, static=True).allocation.peak
        kernels += len(its_program.specs)
    assert len(program.specs) == kernels
    ends = {program.places[t].root for t in (*net.graph.inputs, *net.graph.outputs)}
    # what an input's bytes may serve for, once it is read, is seen by plans over kernels alone
    assert plan_memory(program, static=True).allocation.peak <= alone + sum(program.bytes_of(r) + 256 for r in ends)
    data = [np.random.default_rng(k).standard_normal((1, 8, 8, 8)).astype("float32") for k in range(3)]
    built = build_kernels(net, program.specs, False, program.slices)
    results = Session(compile_stages(emit_cuda(program, built, "cuda", True, device="cpu:0"))).run(*data)
    expected = Session(compile_stages(lower_stages(net, units, found, LowerOptions()))).run(*data)
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("asked", "apart"), [({}, True), ({"s": 1}, False), ({"variant": "merge"}, False)])
def test_limits_of_a_stage_of_networks(asked, apart):
    """`s` bounds its groups, a variant without concurrent stages has none; `r` bounds what is searched, not this stage."""
    net, _ = joint(0, 1)
    found = schedule(net.graph, H200, replace(APART, **asked))
    assert (len(found.schedule.stages) == 1) == apart
    assert found.schedule.bound_ms <= found.schedule.cost_ms
