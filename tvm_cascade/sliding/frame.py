"""The plan of a frame: the rows kept from frame to frame, and the rows computed.

Demand goes backwards: outputs need all rows, an operator's rows need the rows in their windows. Needed rows that an
earlier frame had are kept as state, with all rows between them and the newest: a row enters at the end of the interior
when computed, and moves up by the shift every period. The remaining rows are computed, as are the entering rows. A
tensor read once, row for row, is computed with its reader and never kept. If rows move up every frame, an integer sum
over all rows is kept too: entering rows are added, and leaving rows subtracted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tvm_cascade.graph import IDENTITY, ITEM_BYTES
from tvm_cascade.sliding.interior import Reach, interiors
from tvm_cascade.sliding.network import Rows, SlidingNetwork, Step, merged, read_rows, without


@dataclass(frozen=True, slots=True)
class SeriesPlan:
    """A frame's work for a tensor with rows."""

    computed: tuple[Rows, ...]  # ascending; of the network's input: the new rows
    stored: bool = False  # whether its rows are put together for several readers; else each reader has its own
    kept: Rows = (0, 0)  # rows that lie in the state; empty: none
    period: int = 1  # frames back to the one whose rows they are
    shift: int = 0  # rows that they were further down there

    @property
    def moves(self) -> bool:
        """Return True if the rows found by readers move up in the state itself."""
        return self.period == 1 and self.kept[0] < self.kept[1]

    @property
    def held(self) -> Rows:
        """Return the rows of a frame held in the state: the kept rows, and if they move every frame the adjacent
        computed rows.

        Readers then find all rows in the state.
        """
        if not self.moves:
            return self.kept
        return next(r for r in merged([self.kept, *self.computed]) if r[0] <= self.kept[0] < r[1])

    @property
    def state_rows(self) -> int:
        """Count the rows in the state: the rows held for each frame in the period."""
        return self.period * (self.held[1] - self.held[0])

    @property
    def entering(self) -> Rows:
        """Return the rows found by the next period in place of the kept rows."""
        return self.kept[0] + self.shift, self.kept[1] + self.shift

    @property
    def rows(self) -> int:
        """Count the computed rows."""
        return sum(end - first for first, end in self.computed)


class Refusal(NamedTuple):
    """Why no row of an earlier frame is used again."""

    reason: str
    operators: tuple[str, ...] = ()  # that end it


ALL = SeriesPlan(((0, 1),))

_OF_A_TOTAL = 21  # additions, for an element of a running sum, that cost what it does beside its own


@dataclass(frozen=True)
class FramePlan:
    """The work of a frame with `hop` new rows."""

    network: SlidingNetwork
    hop: int
    series: tuple[SeriesPlan | None, ...]  # by tensor, `ALL` for those without rows; None: not needed
    reach: Reach
    totals: frozenset[int] = frozenset()  # outputs of operators whose sum over all rows is kept

    @cached_property
    def state_bytes(self) -> int:
        """Count the bytes kept from frame to frame."""
        sizes = ((s.row_bytes, p) for s, p in zip(self.network.series, self.series, strict=True) if p is not None)
        sums = sum(self.network.producer[t].total_bytes for t in self.totals)
        return sums + sum(bytes_ * plan.state_rows for bytes_, plan in sizes)

    @cached_property
    def additions(self) -> int:
        """Count a frame's additions in sums over all rows, if such sums may be kept."""
        steps = (s for s in self.network.steps if s.total_bytes and self.series[s.output] is not None)
        return sum(s.terms * sum(map(len, self._added(s))) for s in steps)

    @property
    def work(self) -> tuple[int, int]:
        """Return the sort key of plans: multiply-accumulates, then additions."""
        return self.macs, self.additions

    def border_of(self, step: Step) -> list[Rows]:
        """Return the rows missing in a running sum: rows dependent on padding."""
        interior, rows = self.reach.interiors[step.inputs[0]], self.network.series[step.inputs[0]].rows or 0
        assert interior is not None
        return [part for part in ((0, interior.first), (interior.end, rows)) if part[0] < part[1]]

    def _added(self, step: Step) -> list[range]:
        """Return the rows a sum adds or subtracts in a frame."""
        own = self.series[step.inputs[0]]
        if step.output not in self.totals or own is None:
            return [range(self.network.series[step.inputs[0]].rows or 0)]
        return [range(2 * own.shift), *(range(*rows) for rows in self.border_of(step))]

    @cached_property
    def macs(self) -> int:
        """Count a frame's multiply-accumulates."""
        return sum(self._macs_of(step) for step in self.network.steps)

    @cached_property
    def whole_macs(self) -> int:
        """Count the whole window's multiply-accumulates."""
        network = self.network
        return sum(network.macs(s) for s in network.steps if self.series[s.output] is not None)

    @cached_property
    def least_macs(self) -> int:
        """Bound a frame's work for any plan that computes a row from the operator's inputs.

        If some rows of an operator existed in an earlier frame, only the new rows count; otherwise all rows count, as
        far as this plan needs them.
        """
        return sum(min(self._least_of(step), self._macs_of(step)) for step in self.network.steps)

    def _macs_of(self, step: Step) -> int:
        plan = self.series[step.output]
        return 0 if plan is None else sum(self.network.macs(step, rows) for rows in plan.computed)

    def _least_of(self, step: Step) -> int:
        rows = self.network.series[step.output].rows
        if rows is None:
            return self.network.macs(step)
        first, end = self.reach.reusable(step.output, self.hop)
        return sum(self.network.macs(step, part) for part in ((0, first), (max(first, end), rows)) if part[0] < part[1])

    def refusal(self) -> Refusal | None:
        """Return the reason why keeping rows does not pay, and the responsible operator; None if an output depends on
        kept rows.

        Only computed tensors read as a whole count: the outputs, and the inputs of means and dense layers.
        """
        network = self.network
        computed = (s.output for s in network.steps if self.series[s.output] is not None and not s.free)
        ends = [t for t in computed if _read_whole(network, t)]
        return None if any(_some(self.reach.reusable(t, self.hop)) for t in ends) else self._ended()

    def _ended(self) -> Refusal:
        """Build the refusal for the first operator behind which no row of an earlier frame is left."""
        network, hop = self.network, self.hop
        if hop >= (network.series[network.input].rows or 0):
            return Refusal(f"a hop of {hop} rows leaves none of the window: give a smaller one")
        behind = _ancestors(network, network.outputs)
        step = next(s for s in network.steps if s.output in behind and not _some(self.reach.reusable(s.output, hop)))
        interior, reason = self.reach.interiors[step.output], self.reach.reasons.get(step.output, "")
        if interior is not None:
            left = interior.end - interior.first
            rows, period = interior.shift(hop), interior.period(hop)
            after = "a frame" if period == 1 else f"{period} frames"
            reason = (
                f"has {left} row{'s' * (left != 1)} without padding, and {rows} new one{'s' * (rows != 1)} in {after}"
            )
            hops = " or a smaller hop" if hop > 1 else ""
            helps = f"valid or causal padding in front of it, smaller strides along time{hops} would leave rows to keep"
        else:
            helps = "let operators in front of the mean or the dense layer slide over time"
        return Refusal(f"{step.name} ends it: it {reason}; {helps}", (step.name,))


def plan_frame(
    network: SlidingNetwork, hop: int, dropped: Collection[int] = (), trimmed: Collection[int] = ()
) -> FramePlan:
    """Plan a frame that keeps every row needed again, except rows of the tensors `dropped`, which are recomputed.

    Of the tensors `trimmed`, only the last rows without a gap are kept, and those in front recomputed. For a dropped
    tensor without rows, recompute the underlying sum.
    """
    reach = interiors(network)
    needed: list[list[Rows]] = [[] for _ in network.series]
    used = set(network.outputs)
    for tensor in network.outputs:
        _need(network, needed, tensor)
    plans: list[SeriesPlan | None] = [None] * len(network.series)
    for step in reversed(network.steps):
        target = step.output
        if target not in used:
            continue
        used.update(step.inputs)
        if network.series[target].rows is None:
            plans[target] = ALL
            for tensor in step.inputs:
                _need(network, needed, tensor)
            continue
        plan = _series_plan(network, reach, hop, target, needed[target], target in dropped, target in trimmed)
        plans[target] = plan
        for position, tensor in enumerate(step.inputs):
            height = network.series[tensor].rows
            if height is not None:
                window = network.window(step, position)
                needed[tensor] += [read_rows(window, rows, height) for rows in plan.computed]
    if network.carrier != network.input:
        needed[network.input] = []
    plans[network.input] = _series_plan(network, reach, hop, network.input, needed[network.input], False)
    made = FramePlan(network, hop, tuple(plans), reach)
    sums = (s for s in network.steps if s.total_bytes and plans[s.output] is not None and s.output not in dropped)
    return replace(made, totals=frozenset(s.output for s in sums if _runs(made, s)))


def _runs(plan: FramePlan, step: Step) -> bool:
    """Test whether the sum of an operator's rows can be kept, and is cheaper than adding all rows."""
    own, interior = plan.series[step.inputs[0]], plan.reach.interiors[step.inputs[0]]
    if own is None or interior is None or not own.moves or own.kept[0] != interior.first:
        return False
    beside = _OF_A_TOTAL * step.total_bytes // ITEM_BYTES["int32"]
    alone, running = (replace(plan, totals=frozenset(t)).additions for t in ((), (step.output,)))
    return running + beside <= alone


def _need(network: SlidingNetwork, needed: list[list[Rows]], tensor: int) -> None:
    rows = network.series[tensor].rows
    if rows is not None:
        needed[tensor].append((0, rows))


def _series_plan(
    network: SlidingNetwork,
    reach: Reach,
    hop: int,
    tensor: int,
    needed: list[Rows],
    dropped: bool,
    trimmed: bool = False,
) -> SeriesPlan:
    given = tensor == network.input
    if not given and tensor != network.carrier and not _is_stored(network, tensor):
        return SeriesPlan(tuple(dict.fromkeys(needed)))
    asked, reusable = merged(needed), reach.reusable(tensor, hop)
    inside = [max(first, reusable[0]) for first, end in asked if max(first, reusable[0]) < min(end, reusable[1])]
    rows = network.series[tensor].rows or 0
    fresh: list[Rows] = [(max(rows - hop, 0), rows)] if given else []
    interior = reach.interiors[tensor]
    if not inside or interior is None or dropped:
        return SeriesPlan(tuple(fresh) if given else asked, True)
    kept, shift = ((max if trimmed else min)(inside), reusable[1]), interior.shift(hop)
    entering = (max(kept[1], kept[0] + shift), kept[1] + shift)
    computed = fresh if given else [*without(asked, kept), entering]
    return SeriesPlan(merged(computed), True, kept, interior.period(hop), shift)


def _is_stored(network: SlidingNetwork, tensor: int) -> bool:
    """Test whether a tensor is worth keeping: it takes work to compute, and is read more than row for row."""
    if network.producer[tensor].free:
        return False
    readers = network.final_readers(tensor)
    sliding = any(network.window(step, k) != IDENTITY for step, k in readers)
    return sliding or len(readers) != 1 or network.is_final(tensor)


def _read_whole(network: SlidingNetwork, tensor: int) -> bool:
    """Test whether an operator reads all rows of a tensor at once, or the tensor is an output."""
    if network.series[tensor].rows is None:
        return False
    if tensor in network.outputs:
        return True
    for step, position in network.readers[tensor]:
        behind = step.free and _read_whole(network, step.output)
        if behind or network.window(step, position).stride == 0:
            return True
    return False


def _ancestors(network: SlidingNetwork, tensors: Collection[int]) -> set[int]:
    found = set(tensors)
    for step in reversed(network.steps):
        if step.output in found:
            found.update(step.inputs)
    return found


def _some(rows: Rows) -> bool:
    return rows[0] < rows[1]


def frame_frontier(network: SlidingNetwork, hop: int) -> list[FramePlan]:
    """Plan frames from the least work to the least state; each plan drops or trims the tensor for which that costs the
    least work per byte.

    The last plan keeps only rows of the input. No plan is better than another in both.
    """
    plans, dropped, trimmed = [plan_frame(network, hop)], frozenset[int](), frozenset[int]()
    while True:
        last = plans[-1]
        kept = [t for t, p in enumerate(last.series) if p is not None and p.state_rows and t != network.carrier]
        choices = [(dropped, trimmed | {t}) for t in kept if t not in trimmed]
        choices += [(dropped | {t}, trimmed) for t in (*kept, *sorted(last.totals))]
        tried = [(plan_frame(network, hop, *choice), choice) for choice in choices]
        smaller = [(p, k) for k, (p, _) in enumerate(tried) if p.state_bytes < last.state_bytes]
        if not smaller:
            return plans
        best, chosen = min(smaller, key=lambda c: (_price(c[0], last), c[1]))
        dropped, trimmed = choices[chosen]
        if best.work <= last.work:
            plans.pop()
        plans.append(best)


def _price(plan: FramePlan, last: FramePlan) -> float:
    """Return a plan's additional multiply-accumulates and additions over `last`, per state byte saved."""
    return (sum(plan.work) - sum(last.work)) / (last.state_bytes - plan.state_bytes)
