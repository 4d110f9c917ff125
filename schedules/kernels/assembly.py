"""Assembly of generic kernels: schedules an operator, extracts the loops for an output part, adds parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import tvm

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.kernels.output_scratch import in_outputs
from tvm_cascade.schedules.kernels.spec import IGNORES_NAN, ignores_nan
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, Var, ir, sequence, sym, tirx, tvm_ffi
from tvm_cascade.schedules.tir.flatten import Pointer, Slots, pointer, row_major, to_pointers, to_scratch, window_start
from tvm_cascade.schedules.tir.fusing import fuse_loops
from tvm_cascade.schedules.tir.padding import conditions_to_bounds
from tvm_cascade.schedules.tir.splitting import split_conditions
from tvm_cascade.schedules.tir.staging import ROW, NotRowwiseError, stage


class Assembly:
    """Builder for a row kernel, or for a kernel for the whole operator if `access` is not row-wise."""

    tells_strides = False  # whether inputs whose rows are contiguous get stride parameters, too

    def __init__(self, access: RowAccess) -> None:
        self.access = access
        self.rowwise = access.rowwise
        self.params: list[Var] = []
        self.roles: list[Param] = []
        self.declarations: list[Stmt] = []
        self.starts: list[Stmt] = []  # statements before the loops
        self.pointers: dict[Buffer, Pointer] = {}
        self.analyzer = sym.Analyzer()
        self.y = tirx.Var("y", "int32")

    def scalar(self, name: str, role: Role, index: int = 0) -> Var:
        return self.add(tirx.Var(name, "int32"), role, index)

    def add(self, var: Var, role: Role, index: int = 0) -> Var:
        self.params.append(var)
        self.roles.append(Param(role, index, "int32"))
        return var

    def tensor(self, name: str, role: Role, index: int, source: Buffer) -> tuple[Var, Buffer]:
        handle, flat = pointer(name, tir.dtype_of(source), prod(tir.shape_of(source)))
        self.params.append(handle)
        self.roles.append(Param(role, index, tir.dtype_of(source)))
        self.declarations.append(tirx.DeclBuffer(flat, data=handle))
        return handle, flat

    def outer(self) -> tuple[tuple[int, ...], ...] | None:
        """Return for each output the axes looped over by the driver, not the kernel; None if the operator runs whole."""
        return tuple((a,) for a in self.access.output_axes if a is not None) if self.rowwise else None

    def staged(self, func: PrimFunc) -> PrimFunc:
        """Lower the operator to loops over multi-dimensional buffers, with the loops over `outer()` axes annotated."""
        return stage(func, self.outer())

    def input(self, i: int, source: Buffer) -> None:
        handle, flat = self.tensor(f"x{i}", Role.INPUT, i, source)
        slot, height = self.scalar(f"x{i}_slot", Role.SLOT, i), self.scalar(f"x{i}_height", Role.SLOTS, i)
        shape, axis, window = tir.shape_of(source), self.access.input_axes[i], self.access.windows[i]
        contiguous = axis is None or prod(shape[:axis]) == 1
        if axis is None or window is None or (window.stride == 0 and contiguous and not self.tells_strides):
            self.pointers[source] = Pointer(handle, flat, row_major(shape))
            return
        plane = row = None
        if self.tells_strides or not contiguous:
            plane = self.scalar(f"x{i}_plane", Role.PLANE, i)
            row = self.scalar(f"x{i}_row", Role.ROW_STRIDE, i)
        base = tirx.decl_buffer((1,), "int32", f"x{i}_base") if window.padding > 0 else None
        slots = Slots(window_start(window, self.y), slot, height, base, plane, row)
        self.starts += slots.set_base()
        self.pointers[source] = Pointer(handle, flat, slots.indexer(shape, axis, self.analyzer))

    def output(self, i: int, target: Buffer) -> None:
        name = "out" if i == 0 else f"out{i}"
        handle, flat = self.tensor(name, Role.OUTPUT, i, target)
        shape, axis = tir.shape_of(target), self.access.output_axes[i]
        if not self.rowwise or axis is None:
            self.pointers[target] = Pointer(handle, flat, row_major(shape))
            return
        contiguous = prod(shape[:axis]) == 1
        plane = None if contiguous else self.scalar(f"{name}_plane", Role.OUTPUT_PLANE, i)

        def index(indices: Sequence[Expr]) -> Expr:
            after = row_major(shape[axis + 1 :])(indices[axis + 1 :])
            return after if plane is None else row_major(shape[:axis])(indices[:axis]) * plane + after

        self.pointers[target] = Pointer(handle, flat, index)

    def position(self) -> None:
        """Add the last parameters, which select the part of the output to compute."""
        self.add(self.y, Role.Y)

    def cut(self, lowered: PrimFunc, outputs: Sequence[Buffer]) -> Stmt:
        """Extract the kernel's statements: the row loops' bodies, or everything if the operator runs whole."""
        if not self.rowwise:
            return lowered.body
        loops = [f for f in tir.collect(lowered.body, tirx.For) if ROW in f.annotations]
        if len(tir.stores(lowered.body)) != sum(len(tir.stores(f.body)) for f in loops) or not loops:
            raise NotRowwiseError("some of the operator is computed outside of its row loops")
        rows = {tir.shape_of(o)[a] for o, a in zip(outputs, self.access.output_axes, strict=True) if a is not None}
        self.analyzer.bind(self.y, ir.Range(0, rows.pop()))
        bodies = [tir.substitute(f.body, {f.loop_var: self.y}) for f in loops]
        for output, axis in zip(outputs, self.access.output_axes, strict=True):
            own = (s for b in bodies for s in tir.stores(b) if s.buffer.same_as(output))
            if not all(self.analyzer.can_prove_equal(s.indices[axis], self.y) for s in own):
                raise NotRowwiseError("an output row is not written by its own iteration")
        return sequence(bodies)


def build(func: PrimFunc, constants: Sequence[np.ndarray], made: Assembly, name: str) -> RowKernel:
    """Schedule an operator, extract the kernel and turn buffers into pointers.

    Raises `NotRowwiseError` if the operator cannot be computed in the parts required by `made`.
    """
    lowered = split_conditions(conditions_to_bounds(made.staged(func)))
    lowered = tirx.transform.StmtSimplify()(tvm.IRModule({"main": lowered}))["main"]
    outputs = tir.outputs_of(lowered)
    activations = len(made.access.windows)
    body = in_outputs(made.cut(lowered, outputs), lowered.params[:activations], outputs)
    for i, source in enumerate(lowered.params[:activations]):
        made.input(i, source)
    for i, source in enumerate(lowered.params[activations : len(lowered.params) - len(outputs)]):
        handle, flat = made.tensor(f"c{i}", Role.CONSTANT, i, source)
        made.pointers[source] = Pointer(handle, flat, row_major(tir.shape_of(source)))
    body = to_pointers(body, made.pointers, made.analyzer)
    body, declarations, scratch, scratch_bytes = to_scratch(body, made.analyzer)
    if scratch_bytes:
        made.params.append(scratch)
        made.roles.append(Param(Role.SCRATCH, 0, "int8"))
        made.declarations += declarations
    for i, target in enumerate(outputs):
        made.output(i, target)
    body = to_pointers(body, {o: made.pointers[o] for o in outputs}, made.analyzer)
    made.position()
    body = fuse_loops(_lazy(body))
    kernel = tir.kernel_function(name, made.params, [*made.declarations, *made.starts, body])
    kernel = tirx.transform.StmtSimplify()(tvm.IRModule({name: kernel}))[name]
    kernel = kernel.with_attr(IGNORES_NAN, 1) if ignores_nan(func) else kernel
    reason = None if made.rowwise else made.access.opaque
    roles = tuple(made.roles)
    return RowKernel(kernel, tuple(constants), scratch_bytes, roles, not made.rowwise, reason)


def build_if_possible(
    func: PrimFunc, constants: Sequence[np.ndarray], form: type[Assembly], access: RowAccess, name: str
) -> RowKernel | str:
    """Return the result of `build_kernel`, or the reason why the operator cannot be computed in these parts."""
    try:
        return build_kernel(func, constants, form, access, name)
    except NotRowwiseError as why:
        return str(why)


def build_kernel(
    func: PrimFunc, constants: Sequence[np.ndarray], form: type[Assembly], access: RowAccess, name: str
) -> RowKernel:
    """Build the kernel by `form(access)`. Raises `NotRowwiseError` if it cannot compute the operator in parts."""
    return replace(_built(func, form, access, name), constants=tuple(constants))


@lru_cache(maxsize=512)  # operators of one shape share a function, and equivalent networks most operators
def _built(func: PrimFunc, form: type[Assembly], access: RowAccess, name: str) -> RowKernel:
    return build(func, (), form(access), name)


def _lazy(body: Stmt) -> Stmt:
    """Turn selects over loads into branches: LLVM loads both sides of a select, and one side may be out of bounds."""

    def branch(node: Any) -> Any:
        sides = [node.true_value, node.false_value]
        return tirx.if_then_else(node.condition, *sides) if tir.collect(sides, ir.TensorLoad) else node

    return tvm_ffi.structural_map(body, (tirx.Select, branch), order="post")
