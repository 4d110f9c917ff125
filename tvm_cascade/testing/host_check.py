"""Running a plan in this process: its counted build through LLVM, made quickly, between canaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.ir import IRModule

from tvm_cascade import pipeline
from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.emit.host import host_program, run_host
from tvm_cascade.emit.placement import place_io
from tvm_cascade.passes.candidates.candidate import KernelSource, Network, PlannedCandidate
from tvm_cascade.passes.plan_network import lower_integers, plan_lowered
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.tensor_spec import IoSpec, graph_io
from tvm_cascade.testing.quick_build import quick_build


@dataclass(frozen=True)
class PlanRun:
    """What a plan computed of one set of inputs, in the order of the graph's outputs, and what that took."""

    outputs: tuple[np.ndarray, ...]
    executed_macs: int
    arena_high_water: int  # bytes


def plan_prepared(mod: IRModule, prepared: PreparedGraph, options: PlanOptions) -> PlannedCandidate:
    """The best plan of a module that is prepared already, as `plan_network` finds it, for options of the planner's own."""
    kernels = KernelSource(prepared.core)
    kernels.prices.add(prepared)
    return plan_lowered(Network(lower_integers(mod), prepared, replace(options, price=kernels.prices), kernels))


def run_calls(
    prepared: PreparedGraph, plan: Plan, io: IoSpec, feeds: Sequence[Sequence[np.ndarray]]
) -> list[tuple[np.ndarray, ...]]:
    """The outputs of a sequence of calls of `plan`, whose states, which `io` declares, are clear before the first."""
    program = host_program(pipeline.lower(prepared, plan, counted=True), place_io(plan, io), quick_build)
    calls = [dict(zip((s.name for s in program.inputs), feed, strict=True)) for feed in feeds]
    return [tuple(made[s.name] for s in program.outputs) for made in run_host(program, calls).outputs]


def run_plan(
    prepared: PreparedGraph, plan: Plan, feeds: Sequence[np.ndarray], build: Callable[[Any], Any] = quick_build
) -> PlanRun:
    """Run `plan` on one array per graph input; `host.optimised` builds it as users get it.

    Raises `ValidationError` where anything was written outside of the arena.
    """
    program = host_program(pipeline.lower(prepared, plan, counted=True), place_io(plan, graph_io(plan.graph)), build)
    result = run_host(program, [{p.name: feed.reshape(p.shape) for p, feed in zip(program.inputs, feeds, strict=True)}])
    outputs = tuple(result.outputs[0][p.name] for p in program.outputs)
    return PlanRun(outputs, result.executed_macs, result.arena_high_water)
