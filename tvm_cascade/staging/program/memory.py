"""Memory plan of a staged program: an arena offset for every storage.

Memory is planned over steps, so tensors used by concurrent groups are live for the whole stage and share no bytes.
(`StaticPlanBlockMemory` assumes sequential operators, and would let a group overwrite a tensor another group still
reads.) In a captured program, tensors used only by a single group of a step lie in an arena of that group, planned over
the group's kernels, which run one after another. A processor runs all groups as one function, and the parameters must
not share memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm_cascade.memory import Allocation, Buffer, Problem, allocate, validate
from tvm_cascade.staging.program.program import ALIGNMENT, Program
from tvm_cascade.staging.program.specs import reads, writes

Uses = dict[int, list[int]]  # by storage: times at which it is read or written


@dataclass(frozen=True)
class MemoryPlan:
    """The arena's layout. `problem` has a single buffer per storage, or per group with a separate arena; lifetimes are
    counted in steps.
    """

    offsets: Mapping[int, int]  # bytes from the arena's begin, by storage (`Place.root`)
    problem: Problem
    allocation: Allocation


def plan_memory(program: Program, static: bool = False) -> MemoryPlan:
    """Plan every storage's arena offset. Raises `ValidationError` for a wrong allocation (a bug of this project).

    Graph inputs and outputs are outside the arena unless the plan is `static`: then the arena holds copies of the
    inputs from the start and the outputs until the end, so the program is independent of the caller's addresses.
    """
    graph = program.net.graph
    ends = {program.places[t].root for t in (*graph.inputs, *graph.outputs)}
    life: Uses = {program.places[t].root: [0] for t in graph.inputs} if static else {}
    if static:
        for t in graph.outputs:
            life.setdefault(program.places[t].root, []).append(len(program.steps))
    for time, step in enumerate(program.steps):
        for root in (r for group in step.groups for k in group for r in _used(program, k)):
            life.setdefault(root, []).append(time)
    inner: dict[int, int] = {}  # offsets in the arenas of groups
    arenas: list[tuple[Sequence[int], Buffer]] = []
    for time, uses in _of_single_groups(program, ends) if program.captured else ():
        plan = _allocated(program, uses)
        inner |= plan.offsets
        name = f"group_{len(arenas)}"
        arenas.append((tuple(uses), Buffer(len(arenas), plan.allocation.peak, time, time + 1, ALIGNMENT, name=name)))
    shared = {r: life[r] for r in sorted(life) if r not in inner and (static or r not in ends)}
    return _allocated(program, shared, arenas, inner)


def _used(program: Program, k: int) -> Iterator[int]:
    """Return the storages a kernel reads or writes."""
    spec, graph = program.specs[k], program.net.graph
    return (program.places[t].root for t in (*reads(graph, spec), *writes(graph, spec)))


def _of_single_groups(program: Program, ends: set[int]) -> Iterator[tuple[int, Uses]]:
    """Yield groups of concurrent steps with the storages used only there: the step, and by storage the positions of
    kernels in the group.
    """
    users: dict[int, set[tuple[int, int]]] = {}
    for time, step in enumerate(program.steps):
        for g, group in enumerate(step.groups):
            for root in (r for k in group for r in _used(program, k)):
                users.setdefault(root, set()).add((time, g))
    for time, step in enumerate(program.steps):
        for g, group in enumerate(step.groups if len(step.groups) > 1 else ()):
            uses: Uses = {}
            for at, k in enumerate(group):
                for root in _used(program, k):
                    if users[root] == {(time, g)} and root not in ends:
                        uses.setdefault(root, []).append(at)
            if len(uses) > 1:
                yield time, uses


def _allocated(
    program: Program,
    uses: Uses,
    arenas: Sequence[tuple[Sequence[int], Buffer]] = (),
    inner: Mapping[int, int] | None = None,
) -> MemoryPlan:
    """Allocate storages live from first to last use, and `arenas`, which hold other storages at `inner` offsets."""
    names = program.net.graph.tensors
    buffers = [b for _, b in arenas]
    for root, times in uses.items():
        span = min(times), max(times) + 1
        buffers.append(Buffer(len(buffers), program.bytes_of(root), *span, ALIGNMENT, name=names[root].name))
    problem = Problem(tuple(buffers))
    allocation = allocate(problem)
    validate(problem, allocation)
    offsets = dict(zip(uses, allocation.offsets[len(arenas) :], strict=True))
    for (held, _), base in zip(arenas, allocation.offsets, strict=False):
        offsets |= {root: base + (inner or {})[root] for root in held}
    return MemoryPlan(offsets, problem, allocation)
