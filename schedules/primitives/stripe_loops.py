"""Code generation for striped blocks' loops, from the stage groups found by `schedules.primitives.striping`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.primitives.striping import Group, Reader, Span, Stage, reaches, spans, warm_up
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, Var, i32, ir, s_tir, sym, tirx

STRIPE = "stripe"  # annotation of a loop over stripes: [slices of a stripe, axis of the output]
BlockOf = Callable[[Stage], Any]


@dataclass(frozen=True)
class Cut:
    """An axis along which the output is cut into stripes: the loop, and each group's slices in the loop."""

    loop: Var
    size: int  # slices of a stripe
    axis: int  # of the last group's result
    axes: Mapping[Group, int]  # of every group's result
    readers: Mapping[Group, Sequence[Reader]]
    spans: Mapping[Group, Span]
    iterations: range  # iteration 0 is the first that computes output slices; warm-up iterations are negative

    @classmethod
    def of(cls, groups: Sequence[Group], axis: int, size: int, loop: Var, rolled: Sequence[Group] = ()) -> Cut:
        axes, readers = reaches(groups, axis)
        by_group = spans(groups, axes, readers, size, rolled)
        extent = tir.shape_of(groups[-1].head.buffer)[axis]
        return cls(loop, size, axis, axes, readers, by_group, range(-warm_up(by_group, rolled), -(-extent // size)))

    def slice(self, group: Group, inner: Var) -> Expr:
        """Return the slice of a group computed by iteration `inner` of the group's loop, inside the loop over stripes."""
        span = self.spans[group]
        first = span.start + span.period * self.iterations.start
        return sym.Analyzer().simplify(self.loop * span.period + inner + first)

    def guards(self, group: Group, value: Expr) -> list[Expr]:
        """Return the conditions under which slice `value` lies inside the tensor; none if it always does."""
        span = self.spans[group]
        low = span.period * self.iterations.start + span.start
        high = span.period * (self.iterations.stop - 1) + span.stop
        return ([value >= 0] if low < 0 else []) + ([value < span.extent] if high > span.extent else [])


def striped(groups: Sequence[Group], cuts: Sequence[Cut], block_of: BlockOf, rolled: Collection[Group] = ()) -> Stmt:
    """Wrap all groups in the loops over stripes; the first cut's loop is innermost."""
    nests = [_rolled_nest(g, cuts, block_of) if g in rolled else _nest(g, cuts, block_of) for g in groups]
    body = tir.sequence(nests)
    for cut in cuts:
        mark = {STRIPE: [i32(cut.size), i32(cut.axis)]}
        body = tirx.For(cut.loop, i32(0), i32(len(cut.iterations)), tirx.ForKind.SERIAL, body, None, mark)
    return body


def _nest(group: Group, cuts: Sequence[Cut], block_of: BlockOf, fixed: Mapping[Var, Expr] | None = None) -> Stmt:
    """Write a group's loops: over the head's pixels, and inside them the stages in turn.

    Head variables mapped to values by `fixed` have no loops.
    """
    head = group.head
    axes = [cut.axes[group] for cut in cuts]
    pixel = head.target[: max(*axes, axes[0] + 1) + 1] if len(group.members) > 1 else head.variables
    loops = {v: tirx.Var(_loop_name(v), "int32") for v in head.variables if v in pixel and v not in (fixed or {})}
    extents, values = head.extents, {**loops, **(fixed or {})}
    guards: list[Expr] = []
    for cut in cuts:
        variable = head.slice_variable(cut.axes[group])
        if variable in loops:
            extents[variable] = cut.spans[group].length
            values[variable] = cut.slice(group, loops[variable])
            guards += cut.guards(group, values[variable])
    indices = [values.get(v) for v in head.target]
    body = [_at(stage, indices, _all(guards), block_of) for stage in group.members[:-1]]
    body.append(_realized(head, values, _all(guards), block_of))
    return _looped(tir.sequence(body), [(loop, extents[v]) for v, loop in loops.items()])


def _at(stage: Stage, indices: Sequence[Expr | None], predicate: Expr, block_of: BlockOf) -> Stmt:
    """Write a stage inside the pixel loops, at indices `indices`, with a separate loop along each axis that is None."""
    known = {v: value for v, value in zip(stage.target, indices, strict=True) if value is not None}
    return _realized(stage, known, predicate, block_of)


def _realized(stage: Stage, known: Mapping[Var, Expr], predicate: Expr, block_of: BlockOf) -> Stmt:
    """Wrap a stage's block in loops over its variables; variables in `known` have these values and no loops."""
    own = {v: tirx.Var(_loop_name(v), "int32") for v in stage.variables if v not in known}
    inner = s_tir.SBlockRealize([known.get(v, own.get(v)) for v in stage.variables], predicate, block_of(stage))
    return _looped(inner, [(loop, stage.extents[v]) for v, loop in own.items()])


def _rolled_nest(group: Group, cuts: Sequence[Cut], block_of: BlockOf) -> Stmt:
    """Write a rolled group's loops: a loop over blocks that compute a row each.

    The row is an opaque axis of such a block. Thus TVM treats rows as dependent and allocates the ring outside the
    loops over stripes, while the blocks inside can still be scheduled.
    """
    cut, head = cuts[0], group.head
    loop, row = tirx.Var(_loop_name(head.slice_variable(cut.axes[group])), "int32"), tirx.Var("v_row", "int32")
    fixed = {head.slice_variable(cut.axes[group]): row}
    value, span = cut.slice(group, loop), cut.spans[group]
    axis = tirx.IterVar(ir.Range(0, span.extent), row, tirx.IterVar.Opaque)
    written = [s.buffer for s in group.members]
    reads = {r.source: _whole(r) for s in group.members for r in block_of(s).reads if r.source not in written}
    writes = [_whole(r) for r in block_of(head).writes]
    block = s_tir.SBlock([axis], list(reads.values()), writes, f"{head.name}_row", _nest(group, cuts, block_of, fixed))
    realize = s_tir.SBlockRealize([value], _all(cut.guards(group, value)), block)
    return _looped(realize, [(loop, span.length)])


def _whole(region: Any) -> Any:
    return tirx.BufferRegion(region.source, [ir.Range(0, d) for d in tir.shape_of(region.source)])


def _all(conditions: Sequence[Expr]) -> Expr:
    return reduce(tirx.And, conditions) if conditions else tirx.const(True, "bool")


def _looped(body: Stmt, loops: Sequence[tuple[Var, int]]) -> Stmt:
    for var, extent in reversed(loops):
        body = tir.for_range(var, extent, body)
    return body


def _loop_name(variable: Var) -> str:
    return variable.name.removeprefix("v_")


def with_statements(
    func: PrimFunc, statements: Sequence[Stmt], buffers: Mapping[Buffer, Buffer] | None = None
) -> PrimFunc:
    """Return `func` with `statements` as the root block's body, and allocated buffers exchanged by `buffers`."""
    root = func.body.block
    own = [(buffers or {}).get(b, b) for b in root.alloc_buffers]
    body = statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, own, [], root.annotations)
    realize = s_tir.SBlockRealize([], func.body.predicate, block)
    return tirx.PrimFunc(func.params, realize, func.ret_type, attrs=func.attrs)
