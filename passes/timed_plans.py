"""Plans with the fewest cycles in several memories: segment prices, counted in the emitted code, for
`cascading.timed_cuts`.

An operator's cost in a segment depends on the step's tile, on its tensors' storage (whole, or the ring's size) and on
whether it is alone; so segments that agree in these share a count. Plans with unknown costs are written and counted as
placed (`schedules.tuning`).
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.interleaving import BY_ROWS
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.cascading.memories import apart, blocks
from tvm_cascade.cascading.search_cache import searches
from tvm_cascade.cascading.timed_cuts import Asked, Price, TimedCuts
from tvm_cascade.graph import Tile
from tvm_cascade.passes.candidates.candidate import PlannedCandidate
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.forms.choose import kernels_of_plan
from tvm_cascade.schedules.tuning.counters import Counters
from tvm_cascade.schedules.tuning.plan_cost import fetching
from tvm_cascade.schedules.tuning.written_plan import WrittenPlan

_LAYOUTS = 8  # of an order that are placed
_SAME = 1e-9  # part of cycles by which sums differ that were taken in another order
_WORSE = 3  # one after the other that take no fewer cycles than one before, behind which no more are


@dataclass(frozen=True, slots=True)
class _Counted:
    """An operator's cost in a single way of running it."""

    steps: int
    instructions: float  # but those that fetch a step
    cycle: float  # cycles of an instruction
    waits: float  # cycles of reads from flash
    accessed: dict[str, float]  # bytes by block


def timed_plans(
    found: PlannedCandidate,
    request: PlanRequest,
    options: PlanOptions,
    ceiling: float,
    counters: Counters,
    place: Callable[[Plan], float],
) -> float:
    """Search plans of a network that may take fewer than `ceiling` cycles, and pass each to `place`.

    `place` returns a plan's cycles (inf if it does not fit); `found` is any plan of the network. Return a bound in
    cycles on all searched plans. Raises `SearchStopped` if a limit strikes first.
    """
    prices, figures = (
        SegmentPrices(found.prepared, request, counters),
        Figures(found.plan.baseline_peak, found.plan.bound),
    )
    most, bound = None if request.sram is None else int(request.sram), inf
    for search in searches(found.prepared.graph, replace(options, sram=None, max_macs=1.0)):
        best = TimedCuts(search, request.memory, most, prices.of).best(_LAYOUTS, ceiling)
        bound, worse = min(bound, best.bound), 0
        for layout, least in zip(best.layouts, best.cycles, strict=True):
            if least >= ceiling * (1 - _SAME) or worse == _WORSE:
                break
            cycles = place(replace(assemble(search.costs, layout, figures), graph=found.prepared.graph))
            ceiling, worse = min(ceiling, cycles), 0 if cycles < ceiling else worse + 1
    return bound


class SegmentPrices:
    """Prices of a network's segments."""

    def __init__(self, prepared: PreparedGraph, request: PlanRequest, counters: Counters) -> None:
        self.prepared = prepared
        copied = request.ram_weights or request.prefetch  # what copies save is not known here
        self.wait = 0.0 if copied else float(request.flash_wait or 0.0)
        self.work, self.traffic = counters.of(prepared.core)
        self.known: dict[object, _Counted] = {}

    def of(self, search: Search, asked: Sequence[Asked]) -> list[Price]:
        """Return the prices of segments."""
        missing: dict[Asked, set[int]] = {}
        claimed = set(self.known)
        for segment in sorted(asked, key=lambda s: s[1] - s[0]):  # short ones are counted sooner
            for o, key in self._keys(search, segment):
                if key not in claimed:
                    claimed.add(key)
                    missing.setdefault(segment, set()).add(o)
        while missing:
            self._count(search, missing)
        return [self._price(search, segment) for segment in asked]

    def _keys(self, search: Search, segment: Asked) -> Iterator[tuple[int, object]]:
        """Yield a segment's operators, each with everything the counts depend on."""
        i, j, interleaving = segment
        costs = search.costs
        tables, held, members = costs.tables, costs.held(i, j, interleaving), costs.members(i, j)
        tile, alone = interleaving.tile, costs.in_place(i, j)
        units = {t: n if n < tables.units(t, tile) else 0 for t, n in held.items()}
        summing = costs.accumulating(i, j)
        for o in members:
            if o >= 0:
                op = tables.graph.ops[o]
                rings = tuple(units.get(tables.roots[t].tensor, 0) for t in (*op.inputs, *op.outputs))
                yield o, (o, tile, len(members) > 1, o in summing, alone == o, rings)

    def _price(self, search: Search, segment: Asked) -> Price:
        i, j, _ = segment
        several = len(search.costs.members(i, j)) > 1
        cycles, accessed = 0.0, dict[str, float]()
        ran = self._ran(search, i, j) if several else ()
        for o, key in self._keys(search, segment):
            own = self.known[key]
            fetched = own.steps * fetching(ran.index(o)) if several else 0.0
            cycles += (own.instructions + fetched) * own.cycle + own.waits
            for block, n in own.accessed.items():
                accessed[block] = accessed.get(block, 0.0) + n
        return Price(cycles, accessed)

    @staticmethod
    def _ran(search: Search, i: int, j: int) -> list[int]:
        """List a segment's operators in the order of their first run, as for whole-map steps."""
        rows = max(t.rows for t in search.costs.tables.graph.tensors)
        return [o for o in search.costs.trace(i, j, Tile(rows)) if o >= 0]

    def _count(self, search: Search, missing: dict[Asked, set[int]]) -> None:
        """Count a plan with as many consecutive missing segments as possible, and remove them from `missing`."""
        cuts, forms, wanted = [0], [], set[int]()
        starts: dict[int, list[Asked]] = {}
        for segment in missing:
            starts.setdefault(segment[0], []).append(segment)
        while cuts[-1] < search.size:
            own = starts.get(cuts[-1])
            if own:
                wanted |= missing.pop(own[0])
            i, j, interleaving = own[0] if own else (cuts[-1], cuts[-1] + 1, BY_ROWS)
            cuts.append(j)
            forms.append(interleaving)
        layout = Layout(tuple(cuts), tuple(forms))
        plan = replace(assemble(search.costs, layout, Figures(0, 0)), graph=self.prepared.graph)
        sites = [self.prepared.site(o) if o in wanted else None for o in range(len(plan.graph.ops))]
        kernels = kernels_of_plan(plan, sites)
        written = WrittenPlan(apart(plan), kernels)
        work, moved = self.work.count_written(written), self.traffic.count_written(written).sum(axis=1)
        flash = self.traffic.count_flash(plan, kernels)[0].sum(axis=1) if self.wait else None
        names = [b.name for b in blocks(plan).buffers]
        for (i, j, interleaving), segment in zip(layout.segments, plan.segments, strict=True):
            steps, trace = Tally(segment.trace), [o for o in dict.fromkeys(segment.trace) if o >= 0]
            several = len(dict.fromkeys(segment.trace)) > 1
            for o, key in self._keys(search, (i, j, interleaving)):
                if o not in wanted:
                    continue
                fetched = steps[o] * fetching(trace.index(o)) if several else 0.0
                n, cycles = work[o].instructions, work[o].cycles
                waits = 0.0 if flash is None else float(flash[o]) * self.wait
                accessed = {self._block(plan, o, b): float(m) for b, m in zip(names, moved[o], strict=True) if m}
                self.known[key] = _Counted(steps[o], n - fetched, cycles / n if n else 0.0, waits, accessed)

    def _block(self, plan: Plan, o: int, name: str) -> str:
        """Return a block's plan-independent name: for a block overwritten by an operator, the input's."""
        kind, _, number = name.partition(" ")
        if kind in ("state", "scratch"):
            return kind
        over = [w for w, block in plan.overwritten if block == name]
        op, roots = plan.graph.ops[o], plan.graph.roots
        own = [f"tensor {roots[t].tensor}" for t in (*op.inputs, *op.outputs)]
        return next((b for b in own if b == name or b in over), f"{kind} {number}")
