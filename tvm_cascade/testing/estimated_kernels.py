"""Kernels of networks with the instructions that are estimated for them: what the emulator's counts are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tvm.ir import IRModule

from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import CascadeError
from tvm_cascade.passes.choose_variants import candidates_of
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.tuning.counting import Task
from tvm_cascade.schedules.tuning.plan_cost import task_instructions
from tvm_cascade.schedules.tuning.rates import Family, shipped

WITHIN = 0.25  # of what is counted,
A_CALL = 40  # or so many instructions, of which entering a kernel, and the loop around its calls, may take all


@dataclass(frozen=True)
class EstimatedKernel:
    """The default kernel of an operator of a network."""

    name: str  # `NETWORK OPERATOR: KIND|TYPE|VARIANT`, where the operator is its position in the network
    instructions: float  # estimated, of one inference
    task: Task


def is_far(estimate: float, counted: int) -> bool:
    """Whether an estimate is further from what is counted than it should be."""
    return abs(estimate - counted) > max(WITHIN * counted, A_CALL)


def estimated_kernels(
    target: KernelTarget, networks: Iterable[tuple[str, IRModule]], refused: bool = False
) -> Iterator[EstimatedKernel]:
    """The kernels of all operators of networks, those of one variant and estimate once; with `refused`, networks that are
    refused are left out."""
    seen: set[tuple[str, float]] = set()
    for name, mod in networks:
        try:
            made = prepare(mod, target)
        except CascadeError:
            if not refused:
                raise
            continue
        for op in made.graph.ops:
            if op.view:
                continue
            candidate = next(iter(candidates_of(made.extracted, op.index, target)), None)
            if candidate is None:  # no kernel of it can be counted alone
                continue
            family = Family.of(op.kind, made.graph.tensors[op.outputs[0]].dtype, candidate.variant)
            estimate = shipped().rate(target, family) * task_instructions(candidate.task, target.core)
            if (family.keys[0], estimate) not in seen:
                seen.add((family.keys[0], estimate))
                yield EstimatedKernel(f"{name} {op.index}: {family.keys[0]}", estimate, candidate.task)
