"""The stages of an operator, read from the PrimFunc: which output parts can be computed alone, and at what work.

A stage is a block that computes one buffer. The answers agree with the scheduled kernel's (`schedules.tir.staging`), in
a fraction of the time; None or False stands for "not known here: build the kernel".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Var, ir, s_tir, sym, tirx
from tvm_cascade.schedules.tir.macs import is_mac, iterations_where
from tvm_cascade.schedules.tir.padding import skipped_conditions
from tvm_cascade.schedules.tir.staging import is_movement


@dataclass(frozen=True, eq=False)
class Stage:
    """A block with a single store, in loops over all values of the axes."""

    extents: Mapping[Var, int]  # of its axes, in loop order
    store: Any
    initial: Any  # the store that starts a reduction; None for other stages

    @property
    def buffer(self) -> Buffer:
        return self.store.buffer

    @property
    def moves(self) -> bool:
        """Return True if the stage only moves elements: `staging` then inlines the stage."""
        value = self.store.value
        return self.initial is None and len(tir.loads(value)) <= 1 and is_movement(value)

    def reads(self, buffer: Buffer) -> list[Any]:
        """Return the stage's loads of `buffer`."""
        return [v for v in tir.loads(self.store.value) if v.source.same_as(buffer)]


def stages_of(func: PrimFunc) -> list[Stage] | None:
    """List a PrimFunc's stages in program order; None if it is not a sequence of blocks."""
    root = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    if root is None or root.iter_vars:
        return None
    made = [_stage(nest) for nest in getattr(root.body, "seq", [root.body])]
    found = [s for s in made if s is not None]
    return found if len(found) == len(made) and len({s.buffer for s in found}) == len(found) else None


def _stage(nest: Any) -> Stage | None:
    loops: dict[Var, int] = {}
    while isinstance(nest, tirx.For):
        extent = tir.int_value(nest.extent)
        if extent is None or tir.int_value(nest.min) != 0:
            return None
        loops[nest.loop_var] = extent
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize) or tir.int_value(nest.predicate) != 1:
        return None
    block, extents = nest.block, {}
    if len(block.iter_vars) != len(loops) or block.alloc_buffers or block.match_buffers:
        return None
    for axis, value, (loop, extent) in zip(block.iter_vars, nest.iter_values, loops.items(), strict=True):
        if not value.same_as(loop) or tir.int_value(axis.dom.extent) != extent:
            return None
        extents[axis.var] = extent
    starts = [] if block.init is None else [block.init]
    if not all(isinstance(s, tirx.BufferStore) for s in (block.body, *starts)) or any(map(tir.loads, starts)):
        return None
    return Stage(extents, block.body, block.init)


def computes_parts(stages: Sequence[Stage], params: Sequence[Buffer], axes: Sequence[int | None]) -> bool:
    """Test that no stage computes anything twice if the loops over `axes` of the only output stand outermost.

    This is certain if each stage's part for an output row (or pixel) is a row (or pixel) of its own buffer, read by
    plain loop variables. False: not certain.
    """
    final = stages[-1]
    if [s for s in stages if _is_any(s.buffer, params)] != [final]:
        return False
    spatial = [v for v in final.extents if any(v.same_as(i) for i in final.store.indices)]
    if not _same(final.store.indices, spatial) or (final.initial is None and len(spatial) != len(final.extents)):
        return False
    outer: dict[Buffer, tuple[Var, ...]] = {final.buffer: tuple(spatial[a] for a in axes if a is not None)}
    for k in range(len(stages) - 2, -1, -1):
        stage = stages[k]
        users = [(outer.get(s.buffer), s, v) for s in stages[k + 1 :] for v in s.reads(stage.buffer)]
        places = {None if own is None else _places(own, user, load) for own, user, load in users}
        at = places.pop() if len(places) == 1 else None
        if at is not None and all(isinstance(i, tirx.Var) for i in stage.store.indices):
            outer[stage.buffer] = tuple(stage.store.indices[a] for a in at)
        elif not stage.moves or any(not _is_any(v.source, params) for v in tir.loads(stage.store.value)):
            return False
    return True


def _places(outer: tuple[Var, ...], user: Stage, load: Any) -> tuple[int, ...] | None:
    """Return a buffer's axes read by `user` at the variables `outer`, provided that every remaining axis is read in
    full.
    """
    found: list[int] = []
    for var in outer:
        at = [k for k, i in enumerate(load.indices) if i.same_as(var)]
        if len(at) != 1:
            return None
        found += at
    others: list[Var] = []
    for k, (index, extent) in enumerate(zip(load.indices, tir.shape_of(load.source), strict=True)):
        if k in found or extent == 1:
            continue
        if user.extents.get(index if isinstance(index, tirx.Var) else None) != extent or _is_any(index, others):
            return None
        others.append(index)
    return tuple(found)


def macs_of_stages(stages: Sequence[Stage], params: Sequence[Buffer]) -> int:
    """Count an operator's multiply-accumulates, without padding if the kernel skips padding."""
    movers = {s.buffer: s for s in stages if s.moves and not _is_any(s.buffer, params)}
    return sum(_macs(stage, movers) for stage in stages)


def _macs(stage: Stage, movers: Mapping[Buffer, Stage]) -> int:
    if stage.initial is None:
        return 0
    store = _inlined(stage.store, movers)
    if not is_mac(store):
        return 0
    analyzer = sym.Analyzer()
    for var, extent in stage.extents.items():
        analyzer.bind(var, ir.Range(0, extent))
    # joins the conditions of padding within padding, and drops those that are always met
    value, *indices = map(analyzer.simplify, (store.value, *store.indices))
    if not tir.collect(value, tirx.Mul):
        return 0  # no weight meets the input: the steps of a dilation step over it
    return iterations_where(stage.extents, skipped_conditions(tirx.BufferStore(store.buffer, value, indices)))


def _inlined(store: Any, movers: Mapping[Buffer, Stage]) -> Any:
    """Replace the loads of moved data in a stage's store by the moving stages' loads."""

    def moved(load: Any) -> Expr:
        mover = movers.get(load.source)
        if mover is None:
            return load
        pairs = zip(mover.store.indices, load.indices, strict=True)
        at = {place: index for place, index in pairs if isinstance(place, tirx.Var)}
        return tir.substitute(_inlined(mover.store, movers).value, at)

    value = tir.replace(store.value, ir.TensorLoad, moved)
    return tirx.BufferStore(store.buffer, value, store.indices)


def _same(indices: Sequence[Expr], variables: Sequence[Var]) -> bool:
    return len(indices) == len(variables) and all(i.same_as(v) for i, v in zip(indices, variables, strict=True))


def _is_any(node: Any, among: Sequence[Any]) -> bool:
    return any(node.same_as(other) for other in among)
