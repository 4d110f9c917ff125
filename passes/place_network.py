"""`plan_in_memories`: the choice of a network's plan, and of a memory for each block, on a machine with several
memories.

Candidate plans come from the planner under caps: the smallest, with the smallest steps or not, the cheapest within the
fastest memory, within the two fastest and so on, by whole rows, and layer by layer; and plans with a separate address
per row, which lie whole in a single memory: the smallest, and one within the fastest memory. Each is placed
(`memory.pools`) by the bytes its kernels read and write (`schedules.tuning.traffic`), and the best is taken: by `bytes`
the plan with the fewest bytes; by `time` the plan with the fewest bytes, within 1 %, whose cycles, arithmetic and
accesses together, hardly exceed the fewest (`WITHIN_CAP`). What the best plan by `time` reads from slow memory more
than once is read through copies in a second round (`passes.staged_reads`). By `time` cuts, tiles, rings and placement
are then searched together, for fewer cycles than the best so far (`passes.timed_plans`). Then copies that lie in slow
memory themselves are left out, tensors that the best plan reads more than once get copies, and the network is searched
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

import numpy as np

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cascading.memories import apart, blocks, in_memories, joined
from tvm_cascade.cascading.timing import WITHIN_CAP
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.machine import Ram, require_size
from tvm_cascade.memory import PlacedPlan, Placement, PlacementProblem, Problem, place
from tvm_cascade.memory.validate_placement import validate_placement
from tvm_cascade.passes.candidates.candidate import PlannedCandidate
from tvm_cascade.passes.copied_weights import CopiedWeights, streamed_bytes, weight_reads
from tvm_cascade.passes.staged_reads import copy_of
from tvm_cascade.passes.timed_plans import timed_plans
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.tuning.counters import Counters
from tvm_cascade.schedules.tuning.traffic import TrafficCounter
from tvm_cascade.schedules.tuning.written_plan import WrittenPlan
from tvm_cascade.search_monitor import SearchStopped, monitor

Progress = Callable[[str], None]
# of a request, whether rows may have addresses of their own, and the tensors that are read through copies
Planner = Callable[[PlanRequest, bool, frozenset[str]], PlannedCandidate]
_ARENA = (Ram("", None, 0.0),)  # where no memory is named: it answers at once
_COPYING = 1.0  # cycles in which a byte is copied, beside its accesses
_ANY = 1e6  # a factor of instructions that no plan exceeds: cycles decide
_CHANGES = 3  # of copies, after each of which the network is searched again, at most
_SMALL = 1.01  # of the fewest bytes: plans that take hardly more are compared by cycles
_WORTH = 0.99  # part of the cycles that such a search leaves, at most, where a further search follows


@dataclass(frozen=True)
class _Placed:
    """A planned network in memories: cycles for arithmetic and accesses, and bytes."""

    found: PlannedCandidate
    cycles: float
    placement: Placement
    problem: PlacementProblem
    rereads: frozenset[str] = frozenset()  # tensors in slow memory whose rows a copy would save cycles of
    staged: frozenset[str] = frozenset()  # tensors that are read through copies
    useless: frozenset[str] = frozenset()  # of these, tensors whose copy lies in no faster memory


def placed(request: PlanRequest, options: PlanOptions, planned: Planner, progress: Progress) -> PlannedCandidate:
    """Plan a request with named memories, or RAM for copied weights."""
    if request.weights == "stream":
        return _streamed(request, options, planned, progress)
    if request.memory:
        return plan_in_memories(request, options, planned, progress)
    return with_copies(planned(request, True, frozenset()), request)


def plan_in_memories(
    request: PlanRequest, options: PlanOptions, planned: Planner, progress: Progress
) -> PlannedCandidate:
    """Search the best plan in the memories of `request`, among the plans that `planned` gives for requests without
    memories.

    If a limit (`search_monitor`) strikes, return the best so far.

    Raises
    ------
    InfeasibleError
        No plan has a placement; the error comes from the plan that lacks the fewest bytes.
    UsageError
        A memory without a size.
    """
    for ram in request.memory:
        require_size(ram)
    found: list[_Placed] = []
    known: list[Plan] = []
    counters = Counters()
    least_bytes = dict[bool, int]()  # by whether rows may have addresses, a bound of all plans
    error: InfeasibleError | None = None
    staged = frozenset[str]()
    for asked, addressed in _rounds(request):
        if (found or error is not None) and monitor().over():
            break
        if asked is None:
            staged = _best(found, request.objective).rereads if found else staged
            if not staged:
                break
            least_bytes.clear()
            progress(f"in memories: {len(staged)} tensors read from slow memory through copies")
            continue
        if asked.sram is not None and int(asked.sram) < least_bytes.get(addressed, 0):
            continue  # no plan keeps that cap
        try:
            candidate = planned(asked, addressed, staged)
            least_bytes.setdefault(addressed, candidate.plan.bound)  # that of the first request, which has no cap
            if candidate.plan in known:
                continue
            known.append(candidate.plan)
            found.append(_placed(candidate, request, counters, staged))
        except InfeasibleError as why:
            lacks = why if asked.sram is None else None  # a cap was tried that no plan keeps
            error = min((e for e in (error, lacks) if e is not None), key=_lack, default=None)
            continue
        except SearchStopped:
            break
        progress(f"in memories: {round(found[-1].cycles)} cycles, {found[-1].placement.bytes} bytes")
    if not found:
        raise error or SearchStopped
    graphs = dict.fromkeys(p.found.prepared.graph for p in (min(found, key=_cycles), *found))
    bound = _jointly(found, tuple(graphs), request, options, counters, progress)
    if bound is not None and not monitor().over():
        bound = min(bound, _with_changed_copies(found, request, options, planned, counters, progress))
    best = _best(found, request.objective)
    least = min(plan.bound for plan in known)  # of a narrower request it would be above what others found
    placements = tuple(
        PlacedPlan(p.placement, p.problem, p.cycles) for p in (best, *(p for p in found if p is not best))
    )
    return replace(best.found, plan=replace(best.found.plan, bound=least), placements=placements, least_cycles=bound)


def _best(found: Sequence[_Placed], objective: str) -> _Placed:
    """Return by `bytes` the plan with the fewest bytes; by `time` the fastest with hardly more than the fewest
    bytes, among plans with hardly more than the fewest cycles.
    """
    if objective != "time":
        return min(found, key=lambda placed: (placed.placement.bytes, placed.cycles))
    most = WITHIN_CAP * min(placed.cycles for placed in found)
    fast = [placed for placed in found if placed.cycles <= most]
    small = _SMALL * min(placed.placement.bytes for placed in fast)
    return min((p for p in fast if p.placement.bytes <= small), key=lambda p: (p.cycles, p.placement.bytes))


def _cycles(placed: _Placed) -> float:
    return placed.cycles


def _jointly(
    found: list[_Placed],
    graphs: Sequence[Graph],
    request: PlanRequest,
    options: PlanOptions,
    counters: Counters,
    progress: Progress,
    ceiling: float = inf,
) -> float | None:
    """Add the joint search's plans of some graphs to `found`; return a bound in cycles on all, None if nothing was
    searched.

    Plans of `ceiling` cycles or more are not looked for; without it, of as many as the fastest plan takes.
    """
    if request.objective != "time" or request.layerwise:
        return None
    start, bound = min(found, key=_cycles), inf
    for graph in graphs:
        known = next(p for p in (start, *found) if p.found.prepared.graph == graph)

        def placed(plan: Plan, known: _Placed = known) -> float:
            try:
                found.append(_placed(replace(known.found, plan=plan), request, counters, known.staged))
            except InfeasibleError:
                return inf
            return found[-1].cycles

        try:
            most = min(p.cycles for p in found) if ceiling == inf else ceiling
            least = timed_plans(known.found, request, options, most, counters, placed)
        except SearchStopped:
            return None
        bound = min(bound, least)
    best = min(p.cycles for p in found)
    progress(f"searched with memories: {round(best)} cycles, {round(start.cycles)} before")
    return min(bound, best)


def _with_changed_copies(
    found: list[_Placed],
    request: PlanRequest,
    options: PlanOptions,
    planned: Planner,
    counters: Counters,
    progress: Progress,
) -> float:
    """Search the network without the best plan's useless copies, and with copies of what it still reads again and again,
    as long as that takes 1 % fewer cycles; return a bound in cycles on the plans that were added to `found`.

    A copy that was left out is not made again.
    """
    bound, useless = inf, set[str]()
    for _ in range(_CHANGES):
        best = _best(found, request.objective)
        useless |= best.useless
        for staged in (best.staged - useless, (best.staged | best.rereads) - useless):
            if any(p.staged == staged for p in found) or monitor().over():
                continue
            progress(f"in memories: {len(staged)} tensors read from slow memory through copies")
            try:
                candidate = planned(replace(request, memory=(), sram=None, ram=None), False, staged)
                found.append(_placed(candidate, request, counters, staged))
            except (InfeasibleError, SearchStopped):
                continue
            graph = candidate.prepared.graph
            searched = _jointly(found, (graph,), request, options, counters, progress, best.cycles)
            bound = bound if searched is None else min(bound, searched)
        if _best(found, request.objective).cycles > _WORTH * best.cycles:
            break
    return bound


def _lack(error: InfeasibleError) -> int:
    return error.needed - error.available


def _rounds(request: PlanRequest) -> Iterator[tuple[PlanRequest | None, bool]]:
    """Yield the requests. By `time`, yield None and the requests again, for a network with copies of slow tensors."""
    yield from _requests(request)
    if request.objective == "time" and not request.layerwise and len(request.memory) > 1:
        yield None, False
        yield from _requests(request)


def _requests(request: PlanRequest) -> Iterator[tuple[PlanRequest, bool]]:
    """Yield requests without memories for plans to place, each with a flag that allows separate row addresses."""
    plain = replace(request, memory=(), sram=None, ram=None)
    yield plain, False
    if plain.layerwise:
        return
    yield plain, True
    yield replace(plain, max_time=_ANY), False
    sizes = accumulate(ram.capacity or 0 for ram in request.memory)
    caps = tuple(size if request.sram is None else min(size, int(request.sram)) for size in sizes)
    yield replace(plain, sram=caps[0]), True
    for cap in dict.fromkeys(caps):
        yield replace(plain, sram=cap), False
    if request.granularity == "auto":
        yield replace(plain, granularity="row"), False
    if not request.stream_input:
        yield replace(plain, layerwise=True), False


def _placed(
    found: PlannedCandidate, request: PlanRequest, counters: Counters, staged: frozenset[str] = frozenset()
) -> _Placed:
    """Place a planned network in the request's memories; raise `InfeasibleError` if it does not fit.

    `staged` are the tensors that it reads through copies.
    """
    plan, prepared = found.plan, found.prepared
    kernels = prepared.kernels_of(plan)
    counter, traffic = counters.of(prepared.core)
    written = WrittenPlan(apart(plan), kernels)
    counted = traffic.count_written(written)
    moved, directed = counted.sum(axis=1), counted.sum(axis=0)
    position = {b.name: k for k, b in enumerate(blocks(plan).buffers)}
    pairs = tuple((position[a], position[b]) for a, b in joined(plan))
    accessed = tuple(float(n) for n in moved.sum(axis=0))
    weights = weight_reads(plan, prepared, request, traffic)
    problem = None if weights is None or not (request.ram_weights or request.prefetch) else weights.problem
    most = None if request.sram is None else int(request.sram)
    asked = PlacementProblem(blocks(plan), request.memory, accessed, pairs, request.objective, problem, most)
    try:
        placement = place(asked)
    except InfeasibleError as error:
        named = [_named(plan, block) for block in error.culprits]
        raise InfeasibleError(error.needed, error.available, named, error.remedy) from None
    validate_placement(asked, placement)
    lies = np.array(placement.chosen, np.int64)
    waited = [moved[:, lies == m].sum(axis=1) * ram.cycles_per_byte for m, ram in enumerate(request.memory)]
    waits = tuple(tuple(float(n) for n in own) for own in zip(*waited, strict=True))
    work = counter.count_written(written)
    made = in_memories(plan, request.memory, placement.chosen, placement.offsets)
    copied = (
        found.copied if problem is None or weights is None else weights.chosen(placement.copies, request.memory, plan)
    )
    cycles = (
        sum(w.cycles for w in work)
        + sum(map(sum, waits))
        + sum(copied.waits)
        + (0.0 if weights is None else weights.wait)
    )
    sums = [directed[:, lies == m].sum(axis=1) for m in range(len(request.memory))]
    by_memory = tuple((round(float(read)), round(float(write))) for read, write in sums)
    found = replace(found, plan=made, waits=waits, copied=copied, traffic=by_memory)
    rereads, useless = _rereads(plan, request, placement, directed[0]), _useless(plan, request, placement)
    return _Placed(found, cycles, placement, asked, rereads - {copy_of(t) for t in staged}, staged, staged & useless)


def _rereads(plan: Plan, request: PlanRequest, placement: Placement, read: np.ndarray) -> frozenset[str]:
    """Return the names of tensors in slow memories for which a copy of rows in the fastest memory would save cycles.

    `read` are bytes by block; a copied byte takes an access of either memory and `_COPYING` cycles.
    """
    names, fast = set[str](), request.memory[0].cycles_per_byte
    for k, block in enumerate(blocks(plan).buffers):
        slow, (kind, _, index) = request.memory[placement.chosen[k]].cycles_per_byte, block.name.partition(" ")
        if kind != "tensor" or slow <= fast or (request.stream_input and int(index) in plan.graph.inputs):
            continue
        if float(read[k]) * (slow - fast) > block.size * (slow + fast + _COPYING):
            names.add(plan.graph.tensors[int(index)].name)
    return frozenset(names)


def _useless(plan: Plan, request: PlanRequest, placement: Placement) -> frozenset[str]:
    """Return the names of copied tensors whose copy lies in no faster memory than the tensor."""
    costs = [request.memory[m].cycles_per_byte for m in placement.chosen]
    of_tensor = {
        int(block.name.partition(" ")[2]): cost
        for block, cost in zip(blocks(plan).buffers, costs, strict=True)
        if block.name.startswith("tensor ")
    }
    tensors, roots = plan.graph.tensors, plan.graph.roots
    return frozenset(
        tensors[source].name
        for op in plan.graph.ops
        if op.kind == "copy"
        for source, copy in [(op.inputs[0], op.outputs[0])]
        if of_tensor.get(roots[copy].tensor, 0.0) >= of_tensor.get(roots[source].tensor, inf)
    )


def _streamed(request: PlanRequest, options: PlanOptions, planned: Planner, progress: Progress) -> PlannedCandidate:
    """Plan a network whose weights are read segment by segment into two buffers.

    A cascade needs the weights of all its layers at once: the plan layer by layer is taken where its arena and buffers
    together are smaller.
    """
    tried = [request, *([] if request.layerwise or request.stream_input else [replace(request, layerwise=True)])]
    found: list[PlannedCandidate] = []
    error: InfeasibleError | None = None
    for asked in tried:
        try:
            one = placed(replace(asked, weights="linked"), options, planned, progress)
        except InfeasibleError as why:
            error = error or why
            continue
        found.append(replace(one, copied=CopiedWeights(bytes=streamed_bytes(one.plan, one.prepared))))
    if not found:
        assert error is not None
        raise error
    return min(found, key=lambda one: one.plan.peak + one.copied.bytes)


def with_copies(found: PlannedCandidate, request: PlanRequest) -> PlannedCandidate:
    """Add copied weights, beside the arena, to a plan in a single arena."""
    if not (request.ram_weights or request.prefetch):
        return found
    reads = weight_reads(found.plan, found.prepared, request, TrafficCounter(found.prepared.core))
    if reads is None:
        return found
    placed = place(PlacementProblem(Problem(()), _ARENA, (), weights=reads.problem))
    return replace(found, copied=reads.chosen(placed.copies, _ARENA, found.plan))


def _named(plan: Plan, block: str) -> str:
    """Name a block for users: by the tensor inside, if any."""
    kind, _, index = block.partition(" ")
    return plan.graph.tensors[int(index)].name if kind == "tensor" else block
