"""Dependence analysis for striping: a PrimFunc's stages, their readers, and the slices each iteration computes.

A stage is a block that writes a single element of a single buffer per iteration. A group is a stage (the head) with the
stages only it reads, element for element, such as a convolution's accumulator and requantization. A group's stages are
computed together, pixel by pixel, so only the group's result needs a buffer of several pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_cascade.errors import CascadeError
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.primitives.reach import Reach, reach_of
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, Var, s_tir, tirx


class StripeError(CascadeError):
    """A block without stripes or rolling; `block` names the block."""

    def __init__(self, block: str, reason: str) -> None:
        super().__init__(f"block '{block}': {reason}")
        self.block = block


@dataclass(frozen=True, eq=False)
class Stage:
    """A block that writes a single element per iteration, with loops."""

    name: str
    statement: Stmt | None  # its loops below the root block, if it is the only block in them
    realize: Any  # the SBlockRealize
    buffer: Buffer  # the buffer that it writes

    @property
    def variables(self) -> tuple[Var, ...]:
        return tuple(iv.var for iv in self.realize.block.iter_vars)

    @property
    def extents(self) -> dict[Var, int]:
        return {iv.var: int(iv.dom.extent) for iv in self.realize.block.iter_vars}

    @property
    def target(self) -> tuple[Expr, ...]:
        """Return the indices of the written element."""
        return tuple(tir.stores(self.realize.block.body)[0].indices)

    @property
    def reduces(self) -> bool:
        return any(iv.iter_type == tirx.IterVar.CommReduce for iv in self.realize.block.iter_vars)

    def reads(self, buffer: Buffer | None = None) -> list[Any]:
        """Return the loads (from `buffer`, if given), without loads of the updated element."""
        store = tir.stores(self.realize.block.body)[0]
        loads = [x for x in tir.loads(store.value) if not tir.is_own(x, store)]
        return loads if buffer is None else [x for x in loads if x.source.same_as(buffer)]

    def slice_variable(self, axis: int) -> Var:
        """Return the block variable that indexes an axis of the written buffer. Raises `StripeError` if no single
        variable does.
        """
        index = self.target[axis]
        if not isinstance(index, tirx.Var):
            raise StripeError(self.name, f"axis {axis} of what it writes is no loop of its own")
        return index


@dataclass(frozen=True, eq=False)
class Group:
    """Stages computed together, the head last; the rest in function order."""

    members: tuple[Stage, ...]

    @property
    def head(self) -> Stage:
        return self.members[-1]

    @property
    def name(self) -> str:
        return self.head.name


def stages_of(func: PrimFunc) -> list[Stage]:
    """List the stages below the root block, in order.

    Raises `StripeError` for blocks in blocks, loops with several blocks, and blocks that write several elements.
    """
    root = func.body.block
    stages = []
    for statement in getattr(root.body, "seq", [root.body]):
        realizes = tir.collect(statement, s_tir.SBlockRealize)
        if not realizes:
            raise StripeError(root.name_hint, "statements outside of blocks cannot be striped")
        name = realizes[0].block.name_hint
        if len(realizes) > 1:
            raise StripeError(name, "other blocks stand in its loops already; stripe before other schedules")
        stages.append(stage_of(realizes[0], statement))
    return stages


def stage_of(realize: Any, statement: Stmt | None = None) -> Stage:
    """Make the stage of a block; `statement` is the loop nest, if the block is alone inside."""
    written = tir.stores(realize.block.body)
    if len(written) != 1 or len(realize.block.writes) != 1:
        raise StripeError(realize.block.name_hint, "it writes more than one element an iteration")
    return Stage(realize.block.name_hint, statement, realize, written[0].buffer)


def untouched(stage: Stage) -> bool:
    """Test that a block is unscheduled: a loop over each block variable's whole extent, and no predicate."""
    loops = {f.loop_var: f.extent for f in tir.collect(stage.statement, tirx.For)}
    for value, extent in zip(stage.realize.iter_values, stage.extents.values(), strict=True):
        if isinstance(value, tirx.Var) and tir.int_value(loops.get(value, -1)) == extent:
            continue
        if tir.int_value(value) != 0 or extent != 1:
            return False
    return tir.int_value(stage.realize.predicate) == 1


def grouped(stages: Sequence[Stage], output: Stage) -> list[Group]:
    """Group `stages`, in head order."""
    into: dict[Stage, Stage] = {}
    for stage in stages:
        readers = [s for s in stages if s.reads(stage.buffer) and s is not stage]
        if stage is not output and len(readers) == 1 and _element_for_element(stage, readers[0]):
            into[stage] = readers[0]

    def head_of(stage: Stage) -> Stage:
        while stage in into:
            stage = into[stage]
        return stage

    heads = [s for s in stages if s not in into]
    return [Group(tuple(s for s in stages if head_of(s) is head)) for head in heads]


def _element_for_element(stage: Stage, reader: Stage) -> bool:
    if reader.reduces or tir.shape_of(stage.buffer) != tir.shape_of(reader.buffer):
        return False
    same = (list(x.indices) for x in reader.reads(stage.buffer))
    return all(all(a.same_as(b) for a, b in zip(i, reader.target, strict=True)) for i in same) and all(
        isinstance(i, tirx.Var) for i in (*stage.target, *reader.target)
    )


Reader = tuple[Group, Reach]


def reaches(groups: Sequence[Group], axis: int) -> tuple[dict[Group, int], dict[Group, list[Reader]]]:
    """Find for each group the cut axis of the result, and the readers with their reach.

    `axis` is the axis of the last group's result. Raises `StripeError` if the reach of a read is unknown.
    """
    written = {g.head.buffer: g for g in groups}
    axes: dict[Group, int] = {groups[-1]: axis}
    readers: dict[Group, list[Reader]] = {g: [] for g in groups}
    for group in reversed(groups):
        if group not in axes:
            raise StripeError(group.name, "none of the blocks that are striped reads it")
        for stage in group.members:
            for load in stage.reads():
                producer = written.get(load.source)
                if producer is None or producer is group:
                    continue
                cut, reach = _read(stage, load, axes[group], producer)
                if axes.setdefault(producer, cut) != cut:
                    raise StripeError(producer.name, "its readers cut it along different axes")
                readers[producer].append((group, reach))
    return axes, readers


def _read(stage: Stage, load: Any, axis: int, producer: Group) -> tuple[int, Reach]:
    variable = stage.slice_variable(axis)
    cuts = [k for k, index in enumerate(load.indices) if tir.uses(index, variable)]
    leave = f"leave '{producer.name}' and all before it out: producers=(...)"
    if not cuts:
        raise StripeError(stage.name, f"each of its slices reads the same part of '{producer.name}'; {leave}")
    if len(cuts) > 1:
        raise StripeError(stage.name, f"one slice of it reads '{producer.name}' along several axes; {leave}")
    reach = reach_of(load.indices[cuts[0]], variable, stage.extents)
    if reach is None:
        raise StripeError(stage.name, f"the slices of '{producer.name}' that it reads are not understood; {leave}")
    return cuts[0], reach


@dataclass(frozen=True, slots=True)
class Span:
    """The slices that a group computes in iteration i: `[period * i + start, period * i + stop)` within `[0, extent)`."""

    period: int
    start: int
    stop: int
    extent: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    def at(self, i: int) -> range:
        low, high = self.period * i + self.start, self.period * i + self.stop
        return range(min(max(low, 0), self.extent), max(min(high, self.extent), 0))


def spans(
    groups: Sequence[Group],
    axes: Mapping[Group, int],
    readers: Mapping[Group, Sequence[Reader]],
    step: int,
    rolled: Sequence[Group] = (),
) -> dict[Group, Span]:
    """Compute the slices every group computes per iteration, if the last group computes `step` slices.

    A rolled group computes only new slices, as many as the readers advance by; any other group recomputes all slices
    read.
    """
    by_group: dict[Group, Span] = {}
    for group in reversed(groups):
        extent = tir.shape_of(group.head.buffer)[axes[group]]
        if group is groups[-1]:
            by_group[group] = Span(step, 0, step, extent)
            continue
        starts, stops, periods = [], [], set()
        for reader, reach in readers[group]:
            span = by_group[reader]
            if span.period * reach.stride % reach.denominator:
                raise StripeError(
                    reader.name,
                    f"stripes must be multiples of {reach.denominator} slices where it reads '{group.name}'",
                )
            periods.add(span.period * reach.stride // reach.denominator)
            starts.append(reach.lowest(span.start))
            stops.append(reach.highest(span.stop - 1) + 1)
        if len(periods) > 1:
            raise StripeError(group.name, "its readers advance at different rates")
        period = periods.pop()
        by_group[group] = Span(period, max(stops) - period if group in rolled else min(starts), max(stops), extent)
    return by_group


def ring_height(span: Span, readers: Sequence[Reader], all_spans: Mapping[Group, Span], iterations: range) -> int:
    """Find the most slices of a rolled group live at once, by simulating the iterations."""
    oldest, most = span.extent, 1
    for i in reversed(iterations):
        for reader, reach in readers:
            needed = all_spans[reader].at(i)
            if needed:
                oldest = min(oldest, max(reach.lowest(needed.start), 0))
        done = min(max(span.period * i + span.stop, 0), span.extent)
        most = max(most, done - oldest)
    return most


def warm_up(all_spans: Mapping[Group, Span], rolled: Sequence[Group]) -> int:
    """Count the iterations in which rolled groups compute slices before the first output slices."""
    return max((-(-all_spans[g].start // all_spans[g].period) for g in rolled if all_spans[g].start > 0), default=0)
