"""Loop fusion by schedule primitives: moves a PrimFunc's stages into its output's loops, for a row kernel.

    before: for n, y, x, c: pad[..] = if inside: x[..]            after: for y (row), x, f:
            for n, y, x, f, ry, rx, rc: acc[..] += pad[..] * w            acc = 0
            for n, y, x, f: out[..] = requantize(acc[..])                 for ry, rx, rc: acc += (if inside: x[..]) * w
                                                                          out[..] = requantize(acc)

Stages that only move data (padding, casts) are inlined. Every other stage moves into the consumers' deepest loop that
computes nothing twice; the buffer shrinks to the live part, for instance to a scalar for a convolution's accumulator.
An operator with stages outside the row loop, to avoid recomputation, runs whole.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tvm

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Expr, PrimFunc, Var, s_tir, tirx
from tvm_cascade.schedules.tir.narrowing import narrow_indices

ROW = "row"  # annotation of the row loop
COLUMN = "column"  # annotation of the column loop, where `outer` includes the column axis


class NotRowwiseError(Exception):
    """An operator that cannot be computed output row by output row; the message is the reason."""


def stage(func: PrimFunc, outer: tuple[tuple[int, ...], ...] | None) -> PrimFunc:
    """Schedule and lower `func` down to loops over multi-dimensional buffers.

    `outer[i]` are output i's axes with the outermost loops: the row axis, or the row and column axes. They are
    annotated `row` and `column`. With None the operator is scheduled to run whole. Raises `NotRowwiseError` if a stage
    has to be computed outside these loops.
    """
    sch, root, finals = _started(func)
    if outer is not None:
        for block, axes in zip(finals, outer, strict=True):
            _outermost(sch, block, axes)
    for block in reversed(sch.get_child_blocks(root)):
        if not _is_final(sch, block, finals):
            _move_down(sch, block, len(outer[0]) if outer else 0)
    for block in list(sch.get_child_blocks(root)):
        if sch.get(block).init is not None:
            _split_initialisation(sch, block)
    return lower_blocks(sch.mod)["main"]


def inlined(func: PrimFunc) -> PrimFunc:
    """Inline the stages in `func` that only move data, and let no reduction write an output."""
    return _prepared(func)[0]


@lru_cache(maxsize=16)  # the row kernel, the pixel kernel and the accumulating one of an operator begin alike
def _prepared(func: PrimFunc) -> tuple[PrimFunc, tuple[str, ...]]:
    """Return `inlined`'s result, and the names of blocks that write the outputs."""
    func = narrow_indices(func)
    sch = _schedule(func)
    root = sch.get_sblock("root")
    finals = _finals(sch, root, tir.outputs_of(func))
    for block in list(sch.get_child_blocks(root)):
        if not _is_final(sch, block, finals) and moves_data(sch, block):
            sch.compute_inline(block)
    return sch.mod["main"], tuple(str(sch.get(f).name_hint) for f in finals)


def _started(func: PrimFunc) -> tuple[Any, Any, list[Any]]:
    func, finals = _prepared(func)
    sch = _schedule(func)
    return sch, sch.get_sblock("root"), [sch.get_sblock(name) for name in finals]


def _schedule(func: PrimFunc) -> Any:
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    sch.work_on("main")
    return sch


def _finals(sch: Any, root: Any, outputs: tuple[Var, ...]) -> list[Any]:
    """Find the block that writes each output; a reduction, or a block with further readers, gets a local buffer and a
    copy.
    """
    finals: list[Any] = []
    for output in outputs:
        block = next(b for b in sch.get_child_blocks(root) if _writes(sch, b, output))
        if sch.get(block).init is not None or _read_elsewhere(sch, root, block, output):
            sch.cache_write(block, 0, "global")
            block = next(b for b in sch.get_child_blocks(root) if _writes(sch, b, output))
        finals.append(block)
    return finals


def _writes(sch: Any, block: Any, buffer: Var) -> bool:
    return any(region.source.same_as(buffer) for region in sch.get(block).writes)


def _read_elsewhere(sch: Any, root: Any, block: Any, buffer: Var) -> bool:
    others = (b for b in sch.get_child_blocks(root) if not sch.get(b).same_as(sch.get(block)))
    return any(region.source.same_as(buffer) for b in others for region in sch.get(b).reads)


def _is_final(sch: Any, block: Any, finals: list[Any]) -> bool:
    return any(sch.get(block).same_as(sch.get(f)) for f in finals)


def moves_data(sch: Any, block: Any) -> bool:
    """Test that a block only moves elements (padding, slices, casts, constants added), so inlining costs nothing."""
    node = sch.get(block)
    stores = tir.stores(node.body)
    return (
        node.init is None and len(stores) == 1 and len(tir.loads(stores[0].value)) <= 1 and is_movement(stores[0].value)
    )


def is_movement(value: Expr) -> bool:
    """Test that a value is an element, or a choice of elements, with only casts and constants added."""
    if tir.is_if_then_else(value):
        return is_movement(value.args[1]) and is_movement(value.args[2])
    if isinstance(value, tirx.Cast):
        return is_movement(value.value)
    if isinstance(value, (tirx.Add, tirx.Sub)):
        return any(_is_constant(e) for e in (value.a, value.b)) and all(is_movement(e) for e in (value.a, value.b))
    return _is_constant(value) or isinstance(value, tvm.ir.TensorLoad)


def _is_constant(value: Expr) -> bool:
    return isinstance(value, (tirx.IntImm, tirx.FloatImm))


def _outermost(sch: Any, block: Any, axes: tuple[int, ...]) -> None:
    loops = _loops_of_axes(sch, block, axes)
    every = sch.get_loops(block)
    if any(not sch.get(a).same_as(sch.get(b)) for a, b in zip(loops, every, strict=False)):
        chosen = [sch.get(loop) for loop in loops]
        sch.reorder(*loops, *(loop for loop in every if not any(sch.get(loop).same_as(c) for c in chosen)))
    for loop, annotation in zip(loops, (ROW, COLUMN), strict=False):
        sch.annotate(loop, annotation, 1)


def _loops_of_axes(sch: Any, block: Any, axes: tuple[int, ...]) -> list[Any]:
    """Return the loops around a block over axes of its output.

    The block has a loop for each axis, or writes whole parts of the output, one per loop step. Raises `NotRowwiseError`
    if an axis has no loop.
    """
    loops = sch.get_loops(block)
    written = tir.stores(sch.get(block).body)
    if len(written) == 1 and len(loops) == len(written[0].indices):
        return [loops[a] for a in axes]
    bound = {v: value for v, value in _bindings(sch, block)}
    found: list[Any] = []
    for axis in axes:
        indices = {store.indices[axis] if axis < len(store.indices) else None for store in written}
        value = bound.get(next(iter(indices))) if len(indices) == 1 else None
        found += [loop for loop in loops if value is not None and sch.get(loop).loop_var.same_as(value)]
    if len(found) != len(axes):
        raise NotRowwiseError("the output's loops are not its axes")
    return found


def _trips(sch: Any, block: Any) -> int | None:
    """Return how often a block runs, None if a loop's extent is not constant."""
    count = 1
    for loop in sch.get_loops(block):
        extent = tir.int_value(sch.get(loop).extent)
        if extent is None:
            return None
        count *= extent
    return count


def _move_down(sch: Any, block: Any, outer: int) -> None:
    """Move a stage into the consumers' deepest common loop without recomputation, within the `outer` loops."""
    consumers = sch.get_consumers(block)
    if not consumers:  # simplification may have replaced all reads by a constant
        if outer:
            raise NotRowwiseError("a stage that nothing reads")
        return
    paths = [sch.get_loops(c) for c in consumers]
    shared = 0
    while all(len(p) > shared and sch.get(p[shared]).same_as(sch.get(paths[0][shared])) for p in paths):
        shared += 1
    before = _trips(sch, block)
    name = sch.get(block).name_hint
    for depth in range(shared - 1, max(outer - 1, 0) - 1, -1):
        trial = sch.copy()
        target = trial.get_loops(trial.get_sblock(sch.get(consumers[0]).name_hint))[depth]
        moved = trial.get_sblock(name)
        try:
            trial.compute_at(moved, target)
        except s_tir.ScheduleError:
            continue
        if _trips(trial, moved) == before:
            sch.compute_at(block, paths[0][depth])
            return
    if outer:
        unit = "row by row" if outer == 1 else "pixel by pixel"
        raise NotRowwiseError(f"{name} cannot be computed {unit} without computing parts of it twice")


def _split_initialisation(sch: Any, block: Any) -> None:
    """Move a block's reduction loops innermost and the initialisation before them."""
    node = sch.get(block)
    reduced = {iv.var for iv in node.iter_vars if iv.iter_type == tirx.IterVar.CommReduce}
    bindings = _bindings(sch, block)
    inner = {v for iter_var, value in bindings if iter_var in reduced for v in tir.collect(value, tirx.Var)}
    loops = sch.get_loops(block)
    reduction = [k for k, loop in enumerate(loops) if sch.get(loop).loop_var in inner]
    if not reduction:
        return
    late = [loops[k] for k in range(reduction[0], len(loops)) if k not in reduction]
    if late:
        sch.reorder(*late, *(loops[k] for k in reduction))
        loops = sch.get_loops(block)
        reduction = [k for k, loop in enumerate(loops) if sch.get(loop).loop_var in inner]
    sch.decompose_reduction(block, loops[reduction[0]])


def _bindings(sch: Any, block: Any) -> list[tuple[Var, Expr]]:
    node = sch.get(block)
    realize = next(r for r in tir.collect(sch.mod["main"].body, s_tir.SBlockRealize) if r.block.same_as(node))
    return [(iv.var, v) for iv, v in zip(node.iter_vars, realize.iter_values, strict=True)]


def lower_blocks(mod: Any) -> Any:
    passes = s_tir.transform
    return tvm.transform.Sequential(
        [
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.CompactBufferAllocation(),
            passes.LowerOpaqueBlock(),
            tirx.transform.StmtSimplify(),
        ]
    )(mod)
