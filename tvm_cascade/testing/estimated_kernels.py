"""Kernels of networks with the instructions that are estimated for them: what the emulator's counts are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tvm.ir import IRModule

from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import CascadeError
from tvm_cascade.passes.choose_variants import candidates_of
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.kernels.kernel import Param, Role
from tvm_cascade.schedules.tuning.counting import Task
from tvm_cascade.schedules.tuning.instructions import Counter, Function
from tvm_cascade.schedules.tuning.rates import Family, shipped

WITHIN = 0.25  # of what is counted,
A_CALL = 40  # or so many instructions, of which entering a kernel, and the loop around its calls, may take all
_STEPS = 60  # that narrow down the best rate


@dataclass(frozen=True)
class EstimatedKernel:
    """The default kernel of an operator of a network."""

    name: str  # `NETWORK OPERATOR: KIND|TYPE|VARIANT`, where the operator is its position in the network
    instructions: float  # estimated, of one inference
    task: Task


def tolerance(counted: int) -> float:
    """Instructions by which an estimate may differ from what is counted."""
    return max(WITHIN * counted, A_CALL)


def is_far(estimate: float, counted: int) -> bool:
    """Whether an estimate is further from what is counted than it should be."""
    return abs(estimate - counted) > tolerance(counted)


def best_rate(counted: Sequence[tuple[float, int]]) -> float:
    """The rate by which most estimates are within the bounds of what is counted; of these, the one of least largest error in
    parts of its bound. `counted` are what is read from the code of kernels, and their counts."""
    bounds = [(read, count, tolerance(count)) for read, count in counted]
    ends = sorted({(count + sign * most) / read for read, count, most in bounds for sign in (-1, 1)})
    rates = [r for r in (*ends, *((a + b) / 2 for a, b in pairwise(ends))) if r > 0]

    def error(rate: float, sample: tuple[float, int, float]) -> float:
        read, count, most = sample
        return abs(rate * read - count) / most

    inside = max((([s for s in bounds if error(r, s) <= 1 + 1e-9]) for r in rates), key=len)
    low, high = 0.0, max(count / read for read, count, _ in bounds)
    for _ in range(_STEPS):  # the largest error is convex in the rate
        a, b = low + (high - low) / 3, high - (high - low) / 3
        worse = max(error(a, s) for s in inside) > max(error(b, s) for s in inside)
        low, high = (a, high) if worse else (low, b)
    return (low + high) / 2


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
            estimate = shipped().rate(target, family) * task_instructions(candidate.task, target)
            if (family.keys[0], estimate) not in seen:
                seen.add((family.keys[0], estimate))
                yield EstimatedKernel(f"{name} {op.index}: {family.keys[0]}", estimate, candidate.task)


def task_instructions(task: Task, target: KernelTarget) -> float:
    """Count the instructions of a kernel's calls in an inference, without a rate: the quantity `runs.count` counts for
    the task.
    """
    function = Function(Counter.of(target), task.kernel.func)

    def value(p: Param, y: int) -> int | None:
        if p.role is Role.Y:
            return y
        if p.role is Role.SLOTS:
            return task.inputs[p.index].rows
        feed = task.inputs[p.index] if p.role is Role.SLOT else None
        return None if feed is None else (y * feed.stride - feed.padding) % max(feed.rows, 1)

    params = task.kernel.params
    each = 6.0 + len(params)  # of the loop around the call
    return sum(function.count([value(p, y) for p in params]) + each for y in range(task.calls))
