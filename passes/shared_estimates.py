"""Operators' work, estimated once for all plans with equal execution, and shared by a network's candidates.

A network's plans differ in few segments. An operator's work depends on the segment's execution and on tensor storage,
not on block addresses.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Hashable, Sequence

from tvm_cascade.cascading.plan import Plan, Segment
from tvm_cascade.cores import KernelTarget
from tvm_cascade.cores.work import Work
from tvm_cascade.graph import Op
from tvm_cascade.schedules.driver.places import rows_by_table
from tvm_cascade.schedules.forms.choose import kernels_of_plan
from tvm_cascade.schedules.forms.form import Site
from tvm_cascade.schedules.tuning.plan_cost import PlanCounter, with_fetches
from tvm_cascade.schedules.tuning.written_plan import WrittenPlan


class SharedEstimates:
    """Estimates the work of plans for a core."""

    def __init__(self, target: KernelTarget) -> None:
        self._counter = PlanCounter(target)
        self._known: dict[Hashable, tuple[Work, float]] = {}  # of kernels alone; the cycles of an instruction

    def count(self, plan: Plan, sites: Sequence[Site | None], kinds: Sequence[Hashable]) -> list[Work]:
        """Return the estimated work of an inference, by operator.

        Parameters
        ----------
        sites : Site, optional
            By operator; None for views.
        kinds : Hashable
            By operator, equal for those of equal kernels in any of their forms.
        """
        ways = _ways(plan)
        keys = [None if site is None else (kinds[o], ways[o]) for o, site in enumerate(sites)]
        new = {key: o for o, key in enumerate(keys) if key is not None and key not in self._known}
        if new:
            asked = set(new.values())
            kernels = kernels_of_plan(plan, [site if o in asked else None for o, site in enumerate(sites)])
            works = self._counter.kernels_written(WrittenPlan(plan, kernels, traced=False))
            self._known |= {key: works[o] for key, o in new.items()}
        made = [(Work(0.0, 0.0), 0.0) if key is None else self._known[key] for key in keys]
        return with_fetches(plan, made)


def _ways(plan: Plan) -> list[Hashable]:
    """Return, by operator, everything the work depends on besides kernels: the way of execution, and the tensors'
    storage.
    """
    found: list[Hashable] = [None] * len(plan.graph.ops)
    by_table, streamed = set(rows_by_table(plan)), {t for s in plan.segments for t in s.streamed}
    stored = [(_stored(plan, t), t in by_table, t in streamed) for t in range(len(plan.storages))]
    for segment in plan.segments:
        steps = Tally(segment.trace)
        for o in segment.ops:
            op = plan.graph.ops[o]
            tensors = tuple(stored[t] for t in (*op.inputs, *op.outputs))
            run = (segment.tile, o in segment.accumulating, o in segment.in_place, segment.scratch_bytes)
            found[o] = run, steps[o], len(segment.trace) == 1, tensors, _striped(plan, segment, op)
    return found


def _stored(plan: Plan, tensor: int) -> tuple[Hashable, ...]:
    """Return how a tensor is stored, and the enclosing tensors, innermost first."""
    found = list[Hashable]()
    at: int | None = tensor
    while at is not None:
        s = plan.storages[at]
        ring = s.height, s.granularity, s.pixels, s.pitch, s.columns, s.halo_columns
        found.append((ring, bool(s.row_addresses), s.byte_offset, plan.graph.tensors[at].shape))
        at = s.root
    return tuple(found)


def _striped(plan: Plan, segment: Segment, op: Op) -> Hashable:
    """Return the facts the columns of an operator in stripes depend on; None without stripes."""
    if not segment.stripes:
        return None
    producers = tuple(plan.graph.producer[t] for t in op.inputs)
    return segment, op.index, op.inputs, op.outputs, producers
