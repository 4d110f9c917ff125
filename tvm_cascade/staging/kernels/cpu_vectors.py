"""Vectors in the loops of kernels for CPUs that read and write elements in order.

LLVM unrolls short loops first. What it vectorizes then is the loop around, whose elements lie a row apart: it gathers and
scatters single elements, which takes a processor several times as long.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.tir import dtype_of, int_value, replace, scalar, shape_of, substitute, sym
from tvm_cascade.staging.kernels.blocks import Schedule
from tvm_cascade.staging.kernels.cpu_compute import LANES


def in_vectors(func: PrimFunc) -> PrimFunc:
    """Vectorize a kernel's innermost loops over whole vectors of float32 elements in order."""
    loops: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
    analyzer = _analyzer(loops)

    def in_lanes(loop: Any) -> Any:
        size = int_value(loop.extent)
        is_serial = loop.kind == tirx.ForKind.SERIAL and not loop.annotations
        if size is None or size % LANES or not is_serial or not _is_plain(loop.body):
            return loop
        if not _in_order(analyzer, [loop], loop.body)[0]:
            return loop
        if size == LANES:
            return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.VECTORIZED, loop.body)
        vector, lane = (scalar(f"{loop.loop_var.name}_{k}", dtype_of(loop.loop_var)) for k in range(2))
        body = substitute(loop.body, {loop.loop_var: loop.min + vector * LANES + lane})
        inner = tirx.For(lane, 0, LANES, tirx.ForKind.VECTORIZED, body)
        return tirx.For(vector, 0, size // LANES, tirx.ForKind.SERIAL, inner)

    body = replace(func.body, tirx.For, in_lanes)
    return func if body.same_as(func.body) else func.with_body(body)


def fuse_in_order(sch: Schedule, block: Any) -> list[Any]:
    """Fuse, in place, the innermost loops of a block that together go through elements in order; return its loops."""
    loops = sch.get_loops(block)
    nodes = [sch.get(loop) for loop in loops]
    plain = nodes and _is_plain(nodes[-1].body)
    count = _in_order(_analyzer(nodes), nodes, nodes[-1].body).count(True) if plain else 0
    return [*loops[: len(loops) - count], sch.fuse(*loops[len(loops) - count :])] if count > 1 else loops


def _is_plain(realize: Any) -> bool:
    """Test whether a statement is a block that stores a float32 element made of such, without condition, reduction or call."""
    if not isinstance(realize, s_tir.SBlockRealize):
        return False
    block = realize.block
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None or int_value(realize.predicate) != 1:
        return False
    calls: list[Any] = []
    tvm_ffi.structural_walk(block.body, (tvm.ir.Call, calls.append))
    return not calls and all(_is_static_float32(buffer) for buffer, _ in _accesses(block))


def _is_static_float32(buffer: Any) -> bool:
    return dtype_of(buffer) == "float32" and all(int_value(size) is not None for size in buffer.ty.shape)


def _accesses(block: Any) -> list[tuple[Any, Any]]:
    """Return buffer and indices of the element that a block stores, then of those that it reads."""
    loads: list[Any] = []
    tvm_ffi.structural_walk(block.body.value, (tvm.ir.TensorLoad, loads.append))
    return [(block.body.buffer, block.body.indices), *((load.source, load.indices) for load in loads)]


def _analyzer(loops: Sequence[Any]) -> Any:
    """Make an analyzer that knows the ranges of loops."""
    analyzer = sym.Analyzer()
    for loop in loops:
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    return analyzer


def _in_order(analyzer: Any, nodes: Sequence[Any], realize: Any) -> list[bool]:
    """Tell for each loop around a block whether it and the loops inside it store elements in order, as one loop would.

    Each tensor that the block reads lies in the same order, or gives one element to all these steps.
    """
    values = {v.var: value for v, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    buffers, indices = zip(*_accesses(realize.block), strict=True)
    places = [analyzer.simplify(substitute(_place(*access), values)) for access in zip(buffers, indices, strict=True)]
    stored, to = buffers[0], places[0]
    if not all(analyzer.can_prove_equal(p, to) for b, p in zip(buffers, places, strict=True) if b.same_as(stored)):
        return [False] * len(nodes)  # a step reads what another one stores
    found: list[bool] = []
    moves: list[bool] = []  # of each tensor, whether the loops inside go through its elements
    done = 1  # elements that the loops inside store
    for node in reversed(nodes):
        size = int_value(node.extent)
        if size != 1:
            following = {node.loop_var: node.loop_var + 1}
            steps = [int_value(analyzer.simplify(substitute(place, following) - place)) for place in places]
            moves = moves or [step != 0 for step in steps]
            fits = [step == (done if moving else 0) for step, moving in zip(steps, moves, strict=True)]
            if size is None or not moves[0] or not all(fits):
                break
            done *= size
        found.append(True)
    return [False] * (len(nodes) - len(found)) + found


def _place(buffer: Any, indices: Sequence[Any]) -> Any:
    """Return the number of an element in its buffer."""
    place = 0
    for size, index in zip(shape_of(buffer), indices, strict=True):
        place = place * size + index
    return place
