"""Schedule primitives for manual use on any PrimFunc: `stripe` and `rolling_buffer`.

Arm's RFC "Cascade scheduling" breaks operators into sub-operators on stripes, and asks for buffers that roll if stripes
overlap. `stripe` does the first, `rolling_buffer` the second; they return an ordinary s_tir function, whose blocks may
be scheduled further. Cascades planned by `passes.Cascade` do not use these primitives: there a driver calls row kernels
in a trace's order.

TVM's own `rolling_buffer` takes one buffer of a chain ("should have at least one dimension range that matches a rolling
pattern") and recomputes the sums below. Here the loop over stripes is skewed: in iteration i every rolled block
computes the slices needed by readers and not computed yet, as many as the readers advance by. The block begins as many
iterations before the output as needed, so a ring holds only the slices from the oldest still to be read to the newest:
3 rows for each of a chain of 3x3 convolutions. (If the stages warmed up in turn, the rings would need 8, 7, 6, … rows.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import tvm

from tvm_cascade.errors import UsageError
from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.primitives import striping
from tvm_cascade.schedules.primitives.rings import Rings, lengthened
from tvm_cascade.schedules.primitives.stripe_loops import STRIPE, Cut, striped, with_statements
from tvm_cascade.schedules.primitives.striping import Group, Stage, StripeError
from tvm_cascade.schedules.tir import PrimFunc, Stmt, s_tir, staging, tirx, tvm_ffi
from tvm_cascade.schedules.tir.narrowing import narrow_indices

__all__ = ["StripeError", "buffer_bytes", "rolling_buffer", "stripe"]

Target = TypeVar("Target")  # a PrimFunc or an s_tir.Schedule


def stripe(
    target: Target,
    height: int = 1,
    width: int | None = None,
    *,
    block: str | None = None,
    producers: Sequence[str] | None = None,
    axes: tuple[int, int] = (1, 2),
) -> Target:
    """Compute a block stripe by stripe, and its producers at the loop over the stripes, as `compute_at` does.

    Parameters
    ----------
    target : PrimFunc or s_tir.Schedule
        Of static shapes, its blocks as `te.create_prim_func` or TVMScript made them; it is left as it is. Blocks that
        only move data (padding) are inlined; a block that one reader reads element for element (the accumulator of a
        convolution) is computed pixel by pixel with it.
    height, width : int
        Rows and columns of a stripe; without `width` stripes are as wide as the output. With `width`, the outer loop is
        over columns of stripes, the inner one over the stripes of a column, from top to bottom.
    block : str, optional
        The block that computes the output; by default the last one that writes the last parameter that is written.
    producers : sequence of str, optional
        The blocks to compute at the stripe; by default all that the output needs. The others run before, whole.
    axes : (int, int)
        Axes of the output that `height` and `width` divide; the default is for NHWC.

    Returns
    -------
    A function or a schedule, of the type of `target`. Slices that two stripes need are computed twice; `rolling_buffer`
    avoids that. Lowering shrinks every intermediate to the part that a stripe needs (`buffer_bytes` returns its size).

    Raises
    ------
    StripeError
        A block cannot be striped: all its slices read the same part of a producer, its indices are not linear, or it
        is scheduled already.
    UsageError
        A size or axis out of range, an unknown block, or a function that is striped already.

    Notes
    -----
    rewrite (`stripe(func, 2, axes=(0, 1))`; of `low` 4 rows are alive, of which the next stripe computes two again)::

        for y, x, r in T.grid(10, 8, 3):
            low[y, x] = min(low[y, x], a[y + r, x])
        for y, x, r in T.grid(8, 8, 3):
            high[y, x] = max(high[y, x], low[y + r, x])
        -->
        for yo in range(4):
            for y, x, r in T.grid(4, 8, 3):
                low[yo * 2 + y, x] = min(low[yo * 2 + y, x], a[yo * 2 + y + r, x])
            for y, x, r in T.grid(2, 8, 3):
                high[yo * 2 + y, x] = max(high[yo * 2 + y, x], low[yo * 2 + y + r, x])

    Never unsafe: impossible stripes are refused. Overlapping stripes cost work.
    """
    return _applied(target, lambda func: _stripe(func, height, width, block, producers, axes))


def rolling_buffer(target: Target, *blocks: str) -> Target:
    """Keep the results of blocks in a striped function in ring buffers, so stripes recompute nothing.

    Parameters
    ----------
    target : PrimFunc or s_tir.Schedule
        What `stripe` returned, not scheduled further; it is left as it is.
    blocks : str
        The blocks whose results become rings; by default all blocks of which stripes recompute slices.

    Returns
    -------
    A function or a schedule in which no row of these blocks is computed twice (within one column of stripes). Their
    buffers are rings of as many rows as are live at once; row r is at index `r % height`. Each row of such a block is
    computed by a block `NAME_row`, whose axis is opaque: further schedules apply to the blocks inside it.

    Raises
    ------
    StripeError
        A name is not that of a striped intermediate, or the function was scheduled after `stripe`.

    Notes
    -----
    rewrite (`rolling_buffer(striped, "low")`; a ring of 4 rows, filled a single iteration before the output begins)::

        for yo in range(4):
            for y, x, r in T.grid(4, 8, 3):
                low[yo * 2 + y, x] = min(low[yo * 2 + y, x], a[yo * 2 + y + r, x])
            for y, x, r in T.grid(2, 8, 3):
                high[yo * 2 + y, x] = max(high[yo * 2 + y, x], low[yo * 2 + y + r, x])
        -->
        for yo in range(5):
            for y, x, r in T.grid(2, 8, 3):
                low[(yo * 2 + y) % 4, x] = min(low[(yo * 2 + y) % 4, x], a[yo * 2 + y + r, x])
            for y, x, r in T.grid(2, 8, 3):
                if yo * 2 + y - 2 >= 0:
                    high[yo * 2 + y - 2, x] = max(high[yo * 2 + y - 2, x], low[(yo * 2 + y - 2 + r) % 4, x])

    Unsafe if the loops over stripes are reordered or run in parallel afterwards: each iteration reads results left in
    the ring by earlier iterations.
    """
    return _applied(target, lambda func: _roll(func, blocks))


def buffer_bytes(target: object) -> dict[str, int]:
    """Compute every intermediate's bytes once TVM's lowering has shrunk the buffer to the live part.

    Parameters
    ----------
    target : PrimFunc or s_tir.Schedule
        Of static shapes; it is left as it is.

    Returns
    -------
    Bytes by the name of the buffer; buffers of a single name are added up. Parameters are no intermediates.

    Raises
    ------
    UsageError
        `target` is neither a PrimFunc nor a schedule.

    Notes
    -----
    rewrite (nothing changes; the function is lowered on a copy)::

        buffer_bytes(func)                        # {"low": 80}
        -->
        buffer_bytes(stripe(func, 2, axes=(0, 1)))    # {"low": 32}
    """
    lowered = staging.lower_blocks(tvm.IRModule({"main": narrow_indices(_function(target)[0])}))["main"]
    sizes: dict[str, int] = {}
    for alloc in tir.collect(lowered.body, tirx.AllocBuffer):
        buffer = alloc.buffer
        sizes[buffer.name] = sizes.get(buffer.name, 0) + prod(tir.shape_of(buffer)) * ITEM_BYTES[tir.dtype_of(buffer)]
    return sizes


def _function(target: Any) -> tuple[PrimFunc, str]:
    if isinstance(target, tirx.PrimFunc):
        return target, "main"
    if not isinstance(target, s_tir.Schedule):
        raise UsageError(f"a PrimFunc or an s_tir.Schedule is striped, not a {type(target).__name__}")
    named = target.func_working_on
    gv = named if named is not None else next(iter(target.mod.functions))
    return target.mod[gv], gv.name_hint


def _applied(target: Any, change: Callable[[PrimFunc], PrimFunc]) -> Any:
    func, name = _function(target)
    func = change(narrow_indices(func))
    if isinstance(target, tirx.PrimFunc):
        return func
    mod = target.mod.clone()
    mod[mod.get_global_var(name)] = func
    schedule = s_tir.Schedule(mod)
    schedule.work_on(name)
    return schedule


def _stripe(
    func: PrimFunc,
    height: int,
    width: int | None,
    block: str | None,
    producers: Sequence[str] | None,
    axes: tuple[int, int],
) -> PrimFunc:
    if _stripe_loops(func):
        raise UsageError("the function is striped already")
    output = _output(func, block)
    func = _inlined(func, output)
    stages = striping.stages_of(func)
    last = next(s for s in stages if s.name == output)
    chosen = _chosen(stages, last, producers)
    for stage in chosen:
        if not striping.untouched(stage):
            raise StripeError(stage.name, "it is scheduled already; stripe before other schedules")
    _nobody_else_reads(func, stages, chosen, last)
    groups = striping.grouped(chosen, last)
    shape, cuts = tir.shape_of(last.buffer), []
    for axis, size, name in ((axes[0], height, "yo"), (axes[1], width, "xo")):
        if size is None:
            continue
        if not 0 <= axis < len(shape) or not 1 <= size <= shape[axis]:
            raise UsageError(f"stripes of {size} along axis {axis} of {shape}, which '{output}' writes")
        cuts.append(Cut.of(groups, axis, size, tirx.Var(name, "int32")))
    index = stages.index(last)
    before = [s.statement for s in stages[:index] if s not in chosen]
    after = [s.statement for s in stages[index + 1 :]]
    rings = Rings(groups, cuts)
    return with_statements(func, [*before, striped(groups, cuts, rings.block), *after], rings.buffers)


def _output(func: PrimFunc, block: str | None) -> str:
    stages = striping.stages_of(func)
    if block is not None:
        return _known(block, stages)
    written = tir.outputs_of(func)
    if not written:
        raise UsageError("the function writes none of its parameters")
    return [s.name for s in stages if s.buffer.same_as(written[-1])][-1]


def _known(name: str, stages: Sequence[Stage]) -> str:
    if all(s.name != name for s in stages):
        raise UsageError(f"no block '{name}' among {', '.join(s.name for s in stages)}")
    return name


def _inlined(func: PrimFunc, output: str) -> PrimFunc:
    """Inline pure data-movement blocks into the reading blocks."""
    sch: Any = s_tir.Schedule(tvm.IRModule({"main": func}))
    sch.work_on("main")
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        name, written = sch.get(block).name_hint, [r.source for r in sch.get(block).writes]
        own = not any(b.same_as(p) for b in written for p in func.params)
        if name != output and own and staging.moves_data(sch, block):
            sch.compute_inline(block)
    return sch.mod["main"]


def _chosen(stages: Sequence[Stage], last: Stage, producers: Sequence[str] | None) -> list[Stage]:
    """Choose the blocks to stripe: the output and the blocks it needs, limited to `producers` if given."""
    names = None if producers is None else {_known(p, stages) for p in producers}
    chosen = [last]
    for stage in reversed(stages[: stages.index(last)]):
        if any(s.reads(stage.buffer) for s in chosen) and (names is None or stage.name in names):
            chosen.insert(0, stage)
    for name in producers or ():
        if all(s.name != name for s in chosen):
            raise StripeError(name, f"nothing that is striped reads it, so it cannot be computed for '{last.name}'")
    return chosen


def _nobody_else_reads(func: PrimFunc, stages: Sequence[Stage], chosen: Sequence[Stage], last: Stage) -> None:
    for stage in chosen:
        if stage is last:
            continue
        if any(stage.buffer.same_as(p) for p in func.params):
            raise StripeError(stage.name, "it writes an output of the function, of which stripes need only parts")
        other = next((s for s in stages if s not in chosen and s.reads(stage.buffer)), None)
        if other is not None:
            raise StripeError(stage.name, f"'{other.name}' reads it too and is not striped")


def _stripe_loops(func: PrimFunc) -> list[Any]:
    """List the loops over stripes, innermost first."""
    loops = [f for f in tir.collect(func.body, tirx.For) if STRIPE in f.annotations]
    return sorted(loops, key=lambda f: len(tir.collect(f, tirx.For)))


def _roll(func: PrimFunc, blocks: Sequence[str]) -> PrimFunc:
    loops = _stripe_loops(func)
    if not loops:
        raise UsageError("there are no stripes to roll between: call stripe first")
    realizes = tir.collect(loops[0].body, s_tir.SBlockRealize)
    if any(iv.iter_type == tirx.IterVar.Opaque for r in realizes for iv in r.block.iter_vars):
        raise UsageError("the function has rolling buffers already: name all of them in one call")
    long, whole = lengthened(realizes)
    stages = [striping.stage_of(r) for r in long]
    groups = striping.grouped(stages, stages[-1])
    cuts = []
    for loop in loops:
        size, axis = (tir.int_value(v) or 0 for v in loop.annotations[STRIPE])
        cuts.append(Cut.of(groups, axis, size, loop.loop_var))
    plain = Rings(groups, cuts)
    func = with_statements(func, _statements(func), whole)
    if not tvm_ffi.structural_equal(striped(groups, cuts, plain.block), loops[-1], map_free_vars=True):
        raise StripeError(stages[-1].name, "its stripes were scheduled further; roll first, then schedule")
    rolled = _to_roll(groups, cuts[0], blocks)
    cuts[0] = Cut.of(groups, cuts[0].axis, cuts[0].size, cuts[0].loop, rolled)
    rings = Rings(groups, cuts, rolled)
    rolled_nest = striped(groups, cuts, rings.block, rolled)
    statements = [rolled_nest if s.same_as(loops[-1]) else s for s in _statements(func)]
    return with_statements(func, statements, rings.buffers)


def _statements(func: PrimFunc) -> list[Stmt]:
    body = func.body.block.body
    return list(getattr(body, "seq", [body]))


def _to_roll(groups: Sequence[Group], cut: Cut, names: Sequence[str]) -> list[Group]:
    inner = {g.name: g for g in groups[:-1]}
    for name in names:
        if name not in inner:
            known = ", ".join(inner) or "none"
            raise StripeError(name, f"is no striped intermediate; those are: {known}")
    if names:
        return [inner[n] for n in inner if n in names]
    return [g for g in groups[:-1] if cut.spans[g].length > cut.spans[g].period]
