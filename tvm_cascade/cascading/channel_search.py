"""Search for the inverted bottlenecks that should use channel tiling, and for the numbers of groups.

Two searches are combined: the graph unchanged, and the graph with every block (`channels.Block`) in the most
groups. Tensors between blocks are the same in both, and a segment's cost does not depend on how the rest is cut. So a
segment that cuts no block in two can take its cost from either, and the best cuts are found over both. In one segment
either all blocks are channel-tiled or none. Tiled blocks then get the fewest groups that do not raise the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.channels import Block, blocks, group_counts, in_groups
from tvm_cascade.cascading.cuts import cuts_within, pareto_cuts, within_reach
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.cascading.lower_bounds import INFEASIBLE
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.plan_graph import plan_graph
from tvm_cascade.cascading.planner import baseline_peak, finest_in_time, search_of
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph

Groups = Mapping[Block, int]
_MOST_PLANS = 4  # about so many trades of a frontier are planned


def asked(options: PlanOptions) -> bool:
    """Test whether the options let channel tiling pay off: tiling repeats work, so plans at 1.00x never do."""
    return options.stripes and options.max_macs > 1.0 and not options.layerwise


class ChannelSearch:
    """The segment costs in two searches of a graph: without channel tiling, and with every block in the most groups."""

    def __init__(self, graph: Graph, options: PlanOptions) -> None:
        self.graph, self.options = graph, options
        self.plain = search_of(graph, options)
        order = self.plain.costs.order
        starts = {o: k for k, o in enumerate(order)}  # only blocks whose operators follow one another
        self.blocks = tuple(b for b in blocks(graph) if order[starts[b.expand] : starts[b.expand] + 3] == b)
        self.finest = _most_groups(graph, self.blocks)
        merged = in_groups(graph, self.finest)
        self.merged = search_of(merged, options, _smallest_step(graph, options))
        inner = {o for b in self.finest for o in (b.expand, b.depthwise)}
        kept = [o for o in range(len(graph.ops)) if o not in inner]
        name = {o: k for k, o in enumerate(kept)}
        wanted = tuple(name[o] for o in order if o in name)
        if self.merged.costs.order != wanted:
            self.merged = Search(self.merged.costs.tables, wanted, self.merged.options, self.merged)
        self.extra = {b: merged.ops[name[b.project]].macs - sum(graph.ops[o].macs for o in b) for b in self.finest}
        self.place: dict[int, int] = {}  # cut positions outside of blocks -> the same cut in the order of `merged`
        at = 0
        for p, o in enumerate((*order, None)):
            if p == 0 or order[p - 1] not in inner:
                self.place[p] = at
            at += o not in inner

    @cached_property
    def ceiling(self) -> int:
        """Return the bytes of the best cuts without channel tiling: segments that need as many are irrelevant."""
        return self.plain.smallest

    def inside(self, i: int, j: int) -> tuple[Block, ...]:
        """List the blocks with all operators in positions [i, j)."""
        place = self.plain.costs.place
        return tuple(b for b in self.finest if i <= place[b.expand] and place[b.project] < j)

    @cached_method
    def forms(self, i: int, j: int) -> list[tuple[int, int, bool]]:
        """List every form of segment [i, j) below `ceiling` bytes.

        Each is (bytes, extra multiply-accumulates, whether the blocks are channel-tiled).
        """
        forms = [(b, extra, False) for b, extra in self.plain.forms(i, j, self.ceiling)]
        extra = sum(self.extra[b] for b in self.inside(i, j))
        if extra and i in self.place and j in self.place:
            merged = self.merged.forms(self.place[i], self.place[j], self.ceiling)
            forms += [(b, extra + more, True) for b, more in merged]
        return forms

    @cached_property
    def _least_bytes(self) -> NDArray[np.int64]:
        """Lower bounds of every segment, with or without channel tiling."""
        least = self.plain.least_bytes.copy()
        at = np.array(sorted(self.place))
        other = self.merged.least_bytes[np.ix_([self.place[p] for p in at], [self.place[p] for p in at])]
        least[np.ix_(at, at)] = np.minimum(least[np.ix_(at, at)], other)
        return np.minimum(least, INFEASIBLE)

    @cached_property
    def trades(self) -> tuple[tuple[int, int], ...]:
        """Compute the best cuts' (bytes live, extra multiply-accumulates), ascending in bytes and descending in work."""
        most = int(self.graph.macs * (self.options.max_macs - 1.0))

        def forms(i: int, j: int) -> list[tuple[int, int]]:
            return [(b, extra) for b, extra, _ in self.forms(i, j)]

        useful = within_reach(self._least_bytes, self.ceiling)
        return pareto_cuts(self.plain.size, forms, useful, most)

    def groups_within(self, cap: int) -> Groups:
        """Return the cuts of least work within `cap` bytes: each tiled block with the fewest groups that fit."""
        useful = within_reach(self._least_bytes, cap + 1)

        def best(i: int, j: int) -> tuple[int, bool, int] | None:
            forms = [(extra, many, b) for b, extra, many in self.forms(i, j) if b <= cap] if useful[i, j] else []
            return min(forms) if forms else None

        def weight(i: int, j: int) -> tuple[int, int] | None:
            form = best(i, j)
            return None if form is None else (form[0], int(form[1]))

        n = self.plain.size
        ends = [i + 1 + np.flatnonzero(useful[i, i + 1 :]) for i in range(n)]
        cuts = cuts_within(n, weight, [(after, np.zeros(len(after), np.int64)) for after in ends], 0)
        chosen: dict[Block, int] = {}
        for i, j in pairwise(cuts or ()):
            form = best(i, j)
            if form is not None and form[1]:
                chosen |= {b: self._fewest(b, cap - form[2]) for b in self.inside(i, j)}
        return chosen

    def _fewest(self, block: Block, spare: int) -> int:
        """Return the fewest groups of a block with fitting scratch.

        A row's scratch may exceed the scratch with the most groups by at most `spare` bytes.
        """
        sizes = {n: _row_scratch(self.graph, block, n) for n in group_counts(self.graph, block)}
        return min(n for n, size in sizes.items() if size <= sizes[self.finest[block]] + spare)


def _most_groups(graph: Graph, among: Sequence[Block]) -> dict[Block, int]:
    """Return each block's largest group count, a divisor of the channels; blocks with a single group are left out."""
    counts = {b: group_counts(graph, b)[-1] for b in among}
    return {b: n for b, n in counts.items() if n > 1}


def _smallest_step(graph: Graph, options: PlanOptions) -> int:
    """Return the fewest pixels of a step the time limit allows without recompute, with the most groups in every block."""
    return finest_in_time(in_groups(graph, _most_groups(graph, blocks(graph))), options)


def _row_scratch(graph: Graph, block: Block, groups: int) -> int:
    """Compute the scratch bytes for an output row of `block` in `groups` groups."""
    merged = in_groups(graph, {block: groups})
    return next(op.scratch_bytes for op in merged.ops if op.kernels.channel_tiling is not None)


def best_groups(graph: Graph, options: PlanOptions) -> Groups:
    """Choose the blocks worth channel tiling, with their numbers of groups; empty if there are none.

    With a cap (`options.sram`) these are the blocks with least extra work within the cap, else with the smallest peak.
    Only planning the graph tells whether the arena is smaller.
    """
    if not asked(options) or not blocks(graph):
        return {}
    search = ChannelSearch(graph, options)
    within = [t for t in search.trades if options.sram is None or t[0] <= options.sram] or search.trades[:1]
    return search.groups_within(max(options.sram or 0, within[0][0])) if within else {}


def plan_in_groups(graph: Graph, merged: Graph, options: PlanOptions) -> Plan:
    """Plan `merged`, which is `graph` with some blocks replaced by channel-tiled operators.

    The plan states work and baseline relative to `graph`.

    Raises
    ------
    InfeasibleError
        The plan needs more work than `options.max_macs`, or more bytes than `options.sram`.
    """
    factor = options.max_macs * graph.macs / merged.macs
    if factor < 1.0:
        raise InfeasibleError(
            baseline_peak(graph, options.alignment), options.sram or 0, [], "allow more work with --max-macs"
        )
    finest = _smallest_step(graph, options)
    plan = plan_graph(merged, replace(options, max_macs=factor, finest=finest, steps=None, price=None))
    return replace(plan, baseline_macs=graph.macs, baseline_peak=baseline_peak(graph, options.alignment))


def frontier_in_groups(
    graph: Graph, options: PlanOptions, tell: Callable[[Plan], None] = lambda _plan: None
) -> tuple[Plan, ...]:
    """Plans with channel tiling that are smaller than every plan without, by ascending peak and descending work.

    Only a few trades between bytes and work are planned, the smallest among them. `tell` is called with every plan.
    """
    if not asked(options) or not blocks(graph):
        return ()
    options = replace(options, sram=None)
    search = ChannelSearch(graph, options)
    sets = [(size, extra, search.groups_within(size)) for size, extra in search.trades]
    sets = [trade for trade in sets if trade[2]]
    plans = []
    for _, extra, chosen in sets[:: max(1, -(-len(sets) // _MOST_PLANS))]:
        within = replace(options, max_macs=min(options.max_macs, 1.0 + (extra + 1) / graph.macs))
        plans.append(plan_in_groups(graph, in_groups(graph, chosen), within))
        tell(plans[-1])
    return tuple(sorted(plans, key=lambda p: (p.peak, p.macs)))
