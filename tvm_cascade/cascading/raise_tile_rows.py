"""Multi-row tiles: steps of several rows, with kernels that read the weights once for all rows, if the arena has room.

A one-row kernel reads all weights of the layer for every row. If an operator can compute several rows in one step
(`KernelFootprints.multi_row`), the segment may use tiles with so many rows, and larger rings. A plan is first made in
steps of one row; here the segments are split, and then given higher tiles, as far as the arena stays within the cap, or
within the plan's own size without a cap. An operator's gain is estimated (`cores.step_model`): weight loads saved, less
the cost of looking up row addresses again for every block of channels. If kernels are known (`PlanOptions.price`),
segments with more instructions in these tiles get steps of a single row back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import SHORT_SEARCH, Figures, Layout, assemble
from tvm_cascade.cascading.geometry import has_rows
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.layerwise import smaller
from tvm_cascade.cascading.layout_search import LARGE
from tvm_cascade.cascading.options import PlanOptions, Price
from tvm_cascade.cascading.plan import Plan, Segment
from tvm_cascade.cascading.search_cache import plain_costs
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.timing import instructions
from tvm_cascade.cores.step_model import StepModel
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import ROW, Graph, Tile
from tvm_cascade.memory import AllocateOptions
from tvm_cascade.search_monitor import monitor

_TILE_ROWS = (8, 6, 4, 3, 2)  # rows of a step that are tried, in addition to the whole map in one step
_TRIES, _TRIES_IN_LARGE = 100, 4  # limit on arenas that are allocated
# arena searches that may fail, where heuristics do not reproduce the plan's own arena: then nothing more is tried, as heuristics
# find none of the others either
_SEARCHES = 4


def raise_tile_rows(plan: Plan, options: PlanOptions) -> Plan:
    """Return `plan` with multi-row tiles if they save instructions and the arena has room.

    The result is no larger than the cap or, without one, than `plan`, and takes no more instructions. A plan in
    stripes, with row addresses or with such tiles is returned as it is, and so is any plan for a target with unknown
    instruction costs (`options.steps` is None). A limit ends the search with the best plan so far.
    """
    able = any(op.kernels.multi_row for op in plan.graph.ops)
    scattered = any(s.row_addresses for s in plan.storages)
    done = any(s.stripes or s.tile.rows > 1 for s in plan.segments)
    if options.steps is None or not able or scattered or done:
        return plan
    raised = _RaiseTileRows(plan, options, options.steps).plan
    taken, before = instructions(raised, options), instructions(plan, options)
    return plan if taken is not None and before is not None and taken > before else replace(raised, finer=plan.finer)


@dataclass(frozen=True, slots=True)
class _TiledSegment:
    """A segment: operators and the step's tile."""

    ops: tuple[int, ...]
    tile: Tile = ROW


class _RaiseTileRows:
    """The state of the search: `plan` is the best so far, `segments` are its segments."""

    def __init__(self, plan: Plan, options: PlanOptions, model: StepModel) -> None:
        self.plan, self.model, self.graph = plan, model, plan.graph
        self.goal = max(plan.peak, options.sram or 0)
        self.segments = [_TiledSegment(s.ops, Tile(columns=s.tile.columns)) for s in plan.segments]
        order = [o for s in plan.segments for o in s.ops]
        streamed = {t for s in plan.segments for t in s.streamed}
        known = plain_costs(plan.graph, options)
        alike = known.tables.streamed == streamed
        tables = known.tables if alike else AccessTables(plan.graph, streamed, options.accumulators)
        settings = replace(options.settings, overlap=options.overlap and not options.layerwise)
        self.costs = SegmentCosts(tables, order, settings, known if alike else None)
        self.tries = _TRIES if len(plan.graph.ops) <= LARGE else _TRIES_IN_LARGE
        self.searches = 0
        self.searches, self.plan = 0 if self._fits(self.segments) else _SEARCHES, plan
        for k, segment in reversed(list(enumerate(plan.segments))):
            if not self.tries or monitor().over():
                return
            self._take_apart(k, segment)
        self._raise_all()
        if options.price is not None:
            self._lower_slower(plan, options.price)
        if options.sram is None and self.plan.peak > self.plan.allocation.bound and not monitor().over():
            self.plan = smaller(self.plan, self._made(self.segments, True))  # so far any arena within the goal would do

    def _fits(self, segments: list[_TiledSegment]) -> bool:
        """Allocate an arena for these segments; if it is within the goal, replace `plan` and return True."""
        if not self.tries or monitor().over():
            return False
        self.tries -= 1
        try:
            self.plan = self._made(segments, self.searches > 0, SHORT_SEARCH, self.goal)
        except InfeasibleError:
            if self.searches:
                self.searches -= 1
                if not self.searches:
                    self.tries = 0
            return False
        self.segments = segments
        return True

    def _made(
        self,
        segments: list[_TiledSegment],
        optimise: bool,
        effort: AllocateOptions | None = None,
        capacity: int | None = None,
    ) -> Plan:
        """Assemble the plan of these segments; the arena is the first within `capacity`, or the smallest found."""
        cuts = tuple(accumulate((len(s.ops) for s in segments), initial=0))
        layout = Layout(cuts, tuple(Interleaving(s.tile) for s in segments))
        figures = Figures(self.plan.baseline_peak, self.plan.bound)
        return replace(assemble(self.costs, layout, figures, optimise, effort, capacity), graph=self.graph)

    def _cost(self, ops: tuple[int, ...], rows: int) -> int:
        """Compute the live bytes while these operators run as one segment in steps of `rows` rows: the arena's lower
        bound.
        """
        first = self.costs.place[ops[0]]
        return self.costs.exact_cost(first, first + len(ops), Interleaving(Tile(rows)))

    def _take_apart(self, k: int, segment: Segment) -> None:
        """Move the last operators of segment k into separate segments, as many as fit.

        An operator alone needs no ring, so the tiles may be as high as the map.
        """
        ops = segment.ops
        working = [o for o in ops if not self.graph.ops[o].view]
        if segment.tile.by_pixels or segment.streamed or len(working) < 2:
            return
        alone = len(ops)
        while alone and self._cost(ops[alone - 1 : alone], 1) <= self.goal:
            alone -= 1
        for first in range(alone, len(ops)):
            rest = ops[first:]
            if not any(self.graph.ops[o].kernels.multi_row for o in rest):
                return
            if first and self._cost(ops[:first], 1) > self.goal:
                continue
            before = [_TiledSegment(ops[:first])] if first else []
            parts = [*before, *(_TiledSegment((o,)) for o in rest)]
            if self._fits([*self.segments[:k], *parts, *self.segments[k + 1 :]]):
                return

    def _raise_all(self) -> None:
        """Raise the tile rows of all segments to save most; if not all fit, cheapest segments (bytes) first."""
        wanted = {k: rows for k, s in enumerate(self.segments) if (rows := self._tile_rows(s))}
        self._raise(sorted(wanted, key=lambda k: (self._cost(self.segments[k].ops, wanted[k][0][1]), k)), wanted)

    def _lower_slower(self, before: Plan, price: Price) -> None:
        """Give segments that take more instructions than in the plan `before` steps of a single row back."""
        if not any(s.tile.rows > 1 for s in self.segments):
            return
        now, then = price.by_operator(self.plan), price.by_operator(before)
        if now is None or then is None:
            return
        more = [s.tile.rows > 1 and sum(now[o] - then[o] for o in s.ops) > 0 for s in self.segments]
        if any(more):
            self._fits([replace(s, tile=ROW) if slower else s for s, slower in zip(self.segments, more, strict=True)])

    def _raise(self, some: list[int], wanted: Mapping[int, list[tuple[float, int]]]) -> None:
        """Raise the tile rows of the segments `some` together; if they do not fit, first one half and then the rest."""
        single = wanted[some[0]] if len(some) == 1 else ()
        tried = [{some[0]: rows} for _, rows in single] or [{k: wanted[k][0][1] for k in some}]
        for rows in tried if some else ():
            if self._fits([replace(s, tile=Tile(rows[k])) if k in rows else s for k, s in enumerate(self.segments)]):
                return
        if len(some) > 1:
            self._raise(some[: len(some) // 2], wanted)
            self._raise(some[len(some) // 2 :], wanted)

    def _tile_rows(self, segment: _TiledSegment) -> list[tuple[float, int]]:
        """List (instructions saved, tile rows) for each number of tile rows that saves some and may fit, most saved
        first.
        """
        working = [o for o in segment.ops if not self.graph.ops[o].view and has_rows(self.graph, o)]
        if segment.tile.by_pixels or not any(self.graph.ops[o].kernels.multi_row for o in working):
            return []
        made = {self.graph.tensors[self.graph.ops[o].outputs[0]].rows for o in working}
        counts = [n for n in (max(made), *_TILE_ROWS) if n > 1 and not any(rows % min(n, rows) for rows in made)]
        saved = [(sum(_saved(self.graph, o, n, self.model) for o in working), n) for n in dict.fromkeys(counts)]
        fitting = [(w, n) for w, n in saved if w > 0 and self._cost(segment.ops, n) <= self.goal]
        return sorted(fitting, key=lambda choice: (-choice[0], choice[1]))


def _saved(graph: Graph, o: int, tile_rows: int, model: StepModel) -> float:
    """Estimate the instructions an operator saves in tiles of `tile_rows` rows."""
    op = graph.ops[o]
    if not op.kernels.multi_row:
        return 0.0
    out = graph.tensors[op.outputs[0]]
    single, several = (model.multi_row(op, out.rows, out.shape[-1], n) for n in (1, min(tile_rows, out.rows)))
    return single - several
