"""Accumulating kernels: a reduction over a whole input, consumed in parts as they are computed.

A global pool or a dense layer behind a cascade reads all of its input, which the planner would have to keep whole.
Split into calls, the reduction needs only an accumulator for each output, in RAM between calls:

    before: acc[c] = 0; for ry, rx: acc[c] += x[ry, rx, c]     after, for elements [begin, end) of x:
            out[c] = requantize(acc[c])                        if begin == 0: acc = 0
                                                               for p in [begin / C, end / C): acc[c] += x[p * C + c]
                                                               if end == all: out[c] = requantize(acc[c])

Applies if a single reduction reads the input, each loop indexing a single axis, and nothing else reads the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import tvm

from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, Var, for_range, i32, ir, sym, tirx
from tvm_cascade.schedules.tir.flatten import Pointer as Target
from tvm_cascade.schedules.tir.flatten import pointer, row_major, to_pointers, to_scratch
from tvm_cascade.schedules.tir.staging import NotRowwiseError, inlined, stage


@dataclass(frozen=True)
class Accumulating:
    """A kernel for elements `[begin, end)` of the flattened input.

    Parameters (`kernel.params`): `x0`, pointer to element `begin`; a pointer per constant; `scratch` if
    `kernel.scratch_bytes > 0`; `acc`, pointer to the accumulator, 8-byte aligned; a pointer per output, to the whole
    tensor; `begin`, `end`. The call with begin 0 resets the accumulator, the call with end `elements` writes the
    outputs.
    """

    kernel: RowKernel
    accumulator_bytes: int
    granule: int  # elements; begin and end must be multiples of it
    elements: int  # of the whole input


@dataclass(frozen=True)
class _Reduction:
    """The block around the input's loads: update, initial value, and the index variables."""

    realize: Any  # the SBlockRealize
    store: Any  # the update of the accumulator
    initial: Expr  # the accumulator's first value
    along: tuple[Var, ...]  # block variables that index the input, in the order of its axes, those of extent 1 left out
    others: tuple[Var, ...]  # the other block variables of extent above 1
    extents: Mapping[Var, int]


def accumulate_kernel(func: PrimFunc, constants: Sequence[np.ndarray]) -> Accumulating | str:
    """Build the accumulating kernel of an operator with a single activation input, or return why there is none.

    Parameters of `func`: the activation, constants, outputs.
    """
    made = _accumulating(func, len(constants))
    return made if isinstance(made, str) else replace(made, kernel=replace(made.kernel, constants=tuple(constants)))


@lru_cache(maxsize=64)  # operators of one shape share a function
def _accumulating(func: PrimFunc, constants: int) -> Accumulating | str:
    try:
        return _build(inlined(func), constants)
    except NotRowwiseError as why:
        return str(why)


def _find(func: PrimFunc) -> _Reduction:
    x = func.params[0]
    readers = [r for r in tir.leaf_blocks(func) if any(v.source.same_as(x) for v in tir.loads(r.block.body))]
    if len(readers) != 1 or readers[0].block.init is None:
        raise NotRowwiseError("the input is not read by one reduction alone")
    block = readers[0].block
    store = tir.stores(block.body)[0]
    extents = {iv.var: int(iv.dom.extent) for iv in block.iter_vars}
    unit = {v: i32(0) for v, e in extents.items() if e == 1}
    store = tir.substitute(store, unit)
    if any(v.source not in func.params and not tir.is_own(v, store) for v in tir.loads(store.value)):
        raise NotRowwiseError("the reduction reads another stage")
    analyzer = sym.Analyzer()
    reads = {
        tuple(str(analyzer.simplify(i)) for i in v.indices): v for v in tir.loads(store.value) if v.source.same_as(x)
    }
    if len(reads) != 1 or tir.collect(store.value, ir.Call):
        raise NotRowwiseError("the input is read at several indices or under a condition")
    along: list[Var] = []
    for index, extent in zip(next(iter(reads.values())).indices, tir.shape_of(x), strict=True):
        index = analyzer.simplify(index)
        if extent == 1:
            continue
        if not isinstance(index, tirx.Var) or extents.get(index) != extent or index in along:
            raise NotRowwiseError("the input's elements are not each read once")
        along.append(index)
    others = tuple(v for v, e in extents.items() if e > 1 and v not in along)
    initial = tir.substitute(tir.stores(block.init)[0].value, unit)
    return _Reduction(readers[0], store, initial, tuple(along), others, extents)


def _build(func: PrimFunc, constants: int) -> Accumulating:
    found = _find(func)
    x, acc = func.params[0], found.store.buffer
    if acc in func.params or not found.along:
        raise NotRowwiseError("the operator has no accumulator of its own")
    reduced = {iv.var for iv in found.realize.block.iter_vars if iv.iter_type == tirx.IterVar.CommReduce}
    kept = 0  # how many trailing axes of the input are not reduced: a pixel's channels
    while kept < len(found.along) and found.along[-1 - kept] not in reduced:
        kept += 1
    if kept == len(found.along) or any(v not in reduced for v in found.along[: len(found.along) - kept]):
        raise NotRowwiseError("the reduction does not run over the input's leading axes")
    parts = _Parts(func, found, constants)
    granule = prod(found.extents[v] for v in found.along[len(found.along) - kept :]) if kept else 1
    elements = prod(tir.shape_of(x))
    update = parts.update(kept, granule)
    final, declarations, scratch, scratch_bytes = parts.finish()
    body = tirx.SeqStmt([update, tirx.IfThenElse(parts.end >= elements, final, None)])
    params, roles = parts.parameters(scratch, scratch_bytes)
    made = tir.kernel_function("accumulate", params, [*parts.declarations, *declarations, body])
    made = tirx.transform.StmtSimplify()(tvm.IRModule({"accumulate": made}))["accumulate"]
    kernel = RowKernel(made, (), scratch_bytes, roles)
    return Accumulating(kernel, prod(tir.shape_of(acc)) * ITEM_BYTES[tir.dtype_of(acc)], granule, elements)


class _Parts:
    """Builder of an accumulating kernel: its pointer parameters, the update, and the final statement."""

    def __init__(self, func: PrimFunc, found: _Reduction, constants: int) -> None:
        self.func, self.found = func, found
        self.begin, self.end = tirx.Var("begin", "int32"), tirx.Var("end", "int32")
        self.analyzer = sym.Analyzer()
        self.outputs = tir.outputs_of(func)
        self.acc = found.store.buffer
        listed = [("x0", Role.INPUT, 0, func.params[0])]
        listed += [(f"c{i}", Role.CONSTANT, i, p) for i, p in enumerate(func.params[1 : 1 + constants])]
        listed += [("acc", Role.ACCUMULATOR, 0, self.acc)]
        listed += [("out" if i == 0 else f"out{i}", Role.OUTPUT, i, o) for i, o in enumerate(self.outputs)]
        self.targets: dict[Buffer, Target] = {}
        self.declarations: list[Stmt] = []
        self.pointers: list[tuple[Var, Param]] = []
        for title, role, index, buffer in listed:
            handle, flat = pointer(title, tir.dtype_of(buffer), prod(tir.shape_of(buffer)))
            self.targets[buffer] = Target(handle, flat, row_major(tir.shape_of(buffer)))
            self.declarations.append(tirx.DeclBuffer(flat, data=handle))
            self.pointers.append((handle, Param(role, index, tir.dtype_of(buffer))))

    def update(self, kept: int, granule: int) -> Stmt:
        """Write the statement that adds elements `[begin, end)`: a local sum for each accumulator."""
        found = self.found
        split = len(found.along) - kept
        leading, inner = found.along[:split], found.along[split:]
        step = tirx.Var("p", "int32")
        position = step + (self.begin if granule == 1 else tirx.truncdiv(self.begin, i32(granule)))
        mapping = _unravel(position, leading, found.extents)
        local = tirx.decl_buffer((1,), tir.dtype_of(self.acc), "sum")
        x = self.func.params[0]
        at = step * granule + row_major([found.extents[v] for v in inner])(list(inner)) if inner else step

        def swap(load: Any) -> Any:
            if load.source.same_as(x):
                return tirx.BufferLoad(self.targets[x].buffer, [at])
            return tirx.BufferLoad(local, [i32(0)]) if load.source.same_as(self.acc) else load

        value = tir.replace(found.store.value, ir.TensorLoad, swap)
        value = self._pointed(tirx.BufferStore(local, tir.substitute(value, mapping), [i32(0)]))
        count = self.end - self.begin if granule == 1 else tirx.truncdiv(self.end - self.begin, i32(granule))
        loop = for_range(step, count, value)
        element = tirx.BufferLoad(self.acc, found.store.indices)
        start = tirx.if_then_else(self.begin > 0, element, found.initial)
        first = self._pointed(tirx.BufferStore(local, start, [i32(0)]))
        last = self._pointed(tirx.BufferStore(self.acc, tirx.BufferLoad(local, [i32(0)]), found.store.indices))
        nest: Stmt = tirx.SeqStmt([tirx.AllocBuffer(local), first, loop, last])
        for var in reversed((*found.others, *inner)):
            nest = for_range(var, found.extents[var], nest)
        return nest

    def _pointed(self, stmt: Stmt) -> Stmt:
        return to_pointers(stmt, self.targets, self.analyzer)

    def finish(self) -> tuple[Stmt, list[Stmt], Var, int]:
        """Write the stages after the reduction, for the whole output; return also declarations, scratch pointer and
        scratch bytes.
        """
        rest = self._rest()
        lowered = stage(rest, None)
        renamed = dict(zip(lowered.params, rest.params, strict=True))
        targets = {p: self.targets[renamed[p]] for p in lowered.params if renamed[p] in self.targets}
        body = to_pointers(lowered.body, targets, self.analyzer)
        return to_scratch(body, self.analyzer)

    def _rest(self) -> PrimFunc:
        """Remove the reduction from the function; the accumulator becomes the first parameter."""
        rest = tir.without_blocks(self.func, [self.found.realize], [self.acc, *self.func.params[1:]])
        if rest is None:
            raise NotRowwiseError("nothing follows the reduction")
        return rest

    def parameters(self, scratch: Var, scratch_bytes: int) -> tuple[list[Var], tuple[Param, ...]]:
        listed = list(self.pointers)
        if scratch_bytes:
            at = next(k for k, (_, param) in enumerate(listed) if param.role is Role.ACCUMULATOR)
            listed.insert(at, (scratch, Param(Role.SCRATCH, 0, "int8")))
        listed += [(self.begin, Param(Role.BEGIN, 0, "int32")), (self.end, Param(Role.END, 0, "int32"))]
        return [var for var, _ in listed], tuple(param for _, param in listed)


def _unravel(position: Expr, axes: Sequence[Var], extents: Mapping[Var, int]) -> dict[Var, Expr]:
    """Compute an element's index along each of `axes` from the row-major position."""
    found: dict[Var, Expr] = {}
    below = prod(extents[v] for v in axes)
    for k, var in enumerate(axes):
        below //= extents[var]
        index = position if below == 1 else tirx.truncdiv(position, i32(below))
        found[var] = index if k == 0 else tirx.truncmod(index, i32(extents[var]))
    return found
