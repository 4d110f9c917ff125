"""Row kernels: one output row of an operator as a function of pointers, cut out of the operator's own PrimFunc.

The operator is scheduled so that its row loop is outermost (`schedules.staging`), padding becomes loop bounds
(`schedules.padding`), the body of the row loop becomes the kernel and its buffers become pointers
(`schedules.flatten`). A driver calls the kernels of a cascade in any order that a plan asks for. The kernels know no
ring heights, so operators of one shape share a kernel whatever the plan.

A kernel is a private PrimFunc that returns int32 0. Its parameters, in order (`RowKernel.params` lists them):

- per activation input i: `x{i}`, pointer to slot 0 of its storage; `x{i}_slot`, the slot of the window's first row,
  `first(y) mod height`; `x{i}_height`, the slots of the storage. An input that is read whole has slot 0. Where the rows
  of a tensor are not contiguous (NCHW: the row axis is not the first with more than one element) follow `x{i}_plane`
  and `x{i}_row`, the element strides between planes and between slots;
- a pointer per constant;
- `scratch`, int8*, aligned to 8 bytes, where `scratch_bytes > 0`;
- per output: a pointer to the first element of its row y, and `out{i}_plane` where its rows are not contiguous;
- `y`, the output row. A whole-operator kernel ignores it: the pointers are then those of whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import numpy as np
import tvm

from tvm_cascade.schedules.access import RowAccess
from tvm_cascade.schedules.flatten import (
    Pointer,
    Slots,
    pointer,
    row_major,
    to_pointers,
    to_scratch,
    window_start,
)
from tvm_cascade.schedules.padding import conditions_to_bounds
from tvm_cascade.schedules.staging import ROW, NotRowwiseError, stage
from tvm_cascade.schedules.tir import (
    Buffer,
    Expr,
    PrimFunc,
    Stmt,
    Var,
    collect,
    dtype_of,
    ir,
    outputs_of,
    shape_of,
    stores,
    substitute,
    sym,
    tirx,
)


class Role(Enum):
    """What the driver passes for a parameter."""

    INPUT = "input"  # pointer to slot 0 of the storage of activation `index`
    SLOT = "slot"  # int32, slot of the window's first row
    HEIGHT = "height"  # int32, slots of the storage
    PLANE = "plane"  # int32, elements from one plane of the storage to the next
    ROW_STRIDE = "row_stride"  # int32, elements from one slot of the storage to the next
    CONSTANT = "constant"  # pointer to `constants[index]`
    SCRATCH = "scratch"  # int8 pointer to `scratch_bytes` bytes
    OUTPUT = "output"  # pointer to row y of output `index`
    OUTPUT_PLANE = "output_plane"  # int32, elements from one plane of the output's storage to the next
    Y = "y"  # int32, the output row


@dataclass(frozen=True, slots=True)
class Param:
    role: Role
    index: int  # of the activation, constant or output; 0 for scratch and y
    dtype: str  # element type of a pointer, else "int32"

    @property
    def is_pointer(self) -> bool:
        return self.role in (Role.INPUT, Role.CONSTANT, Role.SCRATCH, Role.OUTPUT)


@dataclass(frozen=True)
class RowKernel:
    """A row kernel (or, with `whole`, a kernel of the whole operator) and what to pass to it."""

    func: PrimFunc
    constants: tuple[np.ndarray, ...]  # in parameter order, possibly repacked for the kernel
    scratch_bytes: int = 0
    params: tuple[Param, ...] = ()
    whole: bool = False  # one call computes every row
    reason: str | None = None  # why it is `whole`, where that was not asked for
    rule: str = "generic"  # the schedule rule that made it


def row_kernel(
    func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, name: str = "row_kernel"
) -> RowKernel:
    """The kernel of one output row of `func`, or of the whole operator where it has no row-wise form.

    Parameters
    ----------
    func
        Parameters in the order: activation inputs (as many as `access.windows`), constants, outputs. Static shapes.
    constants
        Values of the constant parameters, in order.
    """
    reason = access.opaque
    if access.rowwise:
        try:
            return _build(func, constants, access, name)
        except NotRowwiseError as why:
            reason = str(why)
    return whole_kernel(func, constants, len(access.windows), name, reason)


def whole_kernel(
    func: PrimFunc, constants: Sequence[np.ndarray], activations: int, name: str = "kernel", reason: str | None = None
) -> RowKernel:
    """The kernel of a whole operator, by the same parameters: every slot 0, pointers to whole tensors, y ignored."""
    unknown = RowAccess((None,) * activations, (None,) * activations, (None,) * len(outputs_of(func)), reason)
    return _build(func, constants, unknown, name)


def contract_params(
    inputs: Sequence[str], constants: Sequence[str], outputs: Sequence[str], scratch: bool = False
) -> tuple[Param, ...]:
    """Parameters of a kernel whose rows are contiguous, from the element types of its tensors."""
    listed: list[Param] = []
    for i, dtype in enumerate(inputs):
        listed += [Param(Role.INPUT, i, dtype), Param(Role.SLOT, i, "int32"), Param(Role.HEIGHT, i, "int32")]
    listed += [Param(Role.CONSTANT, i, dtype) for i, dtype in enumerate(constants)]
    listed += [Param(Role.SCRATCH, 0, "int8")] if scratch else []
    listed += [Param(Role.OUTPUT, i, dtype) for i, dtype in enumerate(outputs)]
    return (*listed, Param(Role.Y, 0, "int32"))


class _Assembly:
    """Parameters, declarations and statements of a kernel under construction."""

    def __init__(self) -> None:
        self.params: list[Var] = []
        self.roles: list[Param] = []
        self.declarations: list[Stmt] = []
        self.starts: list[Stmt] = []
        self.pointers: dict[Buffer, Pointer] = {}
        self.analyzer = sym.Analyzer()
        self.y = tirx.Var("y", "int32")

    def scalar(self, name: str, role: Role, index: int) -> Var:
        var = tirx.Var(name, "int32")
        self.params.append(var)
        self.roles.append(Param(role, index, "int32"))
        return var

    def tensor(self, name: str, role: Role, index: int, source: Buffer) -> tuple[Var, Buffer]:
        handle, flat = pointer(name, dtype_of(source), prod(shape_of(source)))
        self.params.append(handle)
        self.roles.append(Param(role, index, dtype_of(source)))
        self.declarations.append(tirx.DeclBuffer(flat, data=handle))
        return handle, flat

    def input(self, i: int, source: Buffer, access: RowAccess) -> None:
        handle, flat = self.tensor(f"x{i}", Role.INPUT, i, source)
        slot, height = self.scalar(f"x{i}_slot", Role.SLOT, i), self.scalar(f"x{i}_height", Role.HEIGHT, i)
        shape, axis, window = shape_of(source), access.input_axes[i], access.windows[i]
        if axis is None or window is None or (window.stride == 0 and prod(shape[:axis]) == 1):
            self.pointers[source] = Pointer(handle, flat, row_major(shape))
            return
        plane = row = None
        if prod(shape[:axis]) > 1:
            plane = self.scalar(f"x{i}_plane", Role.PLANE, i)
            row = self.scalar(f"x{i}_row", Role.ROW_STRIDE, i)
        base = tirx.decl_buffer((1,), "int32", f"x{i}_base") if window.padding > 0 else None
        slots = Slots(window_start(window, self.y), slot, height, base, plane, row)
        self.starts += slots.set_base()
        self.pointers[source] = Pointer(handle, flat, slots.indexer(shape, axis, self.analyzer))

    def output(self, i: int, target: Buffer, axis: int | None) -> None:
        name = "out" if i == 0 else f"out{i}"
        handle, flat = self.tensor(name, Role.OUTPUT, i, target)
        shape = shape_of(target)
        if axis is None:
            self.pointers[target] = Pointer(handle, flat, row_major(shape))
            return
        contiguous = prod(shape[:axis]) == 1
        plane = None if contiguous else self.scalar(f"{name}_plane", Role.OUTPUT_PLANE, i)

        def index(indices: Sequence[Expr]) -> Expr:
            after = row_major(shape[axis + 1 :])(indices[axis + 1 :])
            return after if plane is None else row_major(shape[:axis])(indices[:axis]) * plane + after

        self.pointers[target] = Pointer(handle, flat, index)


def _build(func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, name: str) -> RowKernel:
    rowwise = access.rowwise
    lowered = conditions_to_bounds(stage(func, access.output_axes if rowwise else None))
    lowered = tirx.transform.StmtSimplify()(tvm.IRModule({"main": lowered}))["main"]
    outputs = outputs_of(lowered)
    made = _Assembly()
    body = _row_body(lowered, made, outputs, access) if rowwise else lowered.body
    activations = len(access.windows)
    for i, source in enumerate(lowered.params[:activations]):
        made.input(i, source, access)
    for i, source in enumerate(lowered.params[activations : activations + len(constants)]):
        handle, flat = made.tensor(f"c{i}", Role.CONSTANT, i, source)
        made.pointers[source] = Pointer(handle, flat, row_major(shape_of(source)))
    body = to_pointers(body, made.pointers, made.analyzer)
    body, declarations, scratch, scratch_bytes = to_scratch(body, made.analyzer)
    if scratch_bytes:
        made.params.append(scratch)
        made.roles.append(Param(Role.SCRATCH, 0, "int8"))
        made.declarations += declarations
    for i, target in enumerate(outputs):
        made.output(i, target, access.output_axes[i] if rowwise else None)
    body = to_pointers(body, {o: made.pointers[o] for o in outputs}, made.analyzer)
    return _finish(made, body, constants, scratch_bytes, name, access, rowwise)


def _finish(
    made: _Assembly,
    body: Stmt,
    constants: Sequence[np.ndarray],
    scratch_bytes: int,
    name: str,
    access: RowAccess,
    rowwise: bool,
) -> RowKernel:
    made.params.append(made.y)
    made.roles.append(Param(Role.Y, 0, "int32"))
    stmts = tirx.SeqStmt([*made.declarations, *made.starts, body, tirx.Return(tirx.const(0, "int32"))])
    attrs = tvm.ir.make_node("ir.DictAttrs", **{"global_symbol": name, "tirx.noalias": True})
    func = tirx.PrimFunc(made.params, stmts, ir.PrimType("int32"), attrs=attrs)
    func = tirx.transform.StmtSimplify()(tvm.IRModule({name: func}))[name]
    reason = None if rowwise else access.opaque
    return RowKernel(func, tuple(constants), scratch_bytes, tuple(made.roles), not rowwise, reason)


def _row_body(lowered: PrimFunc, made: _Assembly, outputs: Sequence[Buffer], access: RowAccess) -> Stmt:
    """The bodies of the row loops, one per output, over the kernel's own y."""
    loops: list[Any] = [f for f in collect(lowered.body, tirx.For) if ROW in f.annotations]
    if len(stores(lowered.body)) != sum(len(stores(f.body)) for f in loops) or not loops:
        raise NotRowwiseError("some of the operator is computed outside of its row loops")
    rows = {shape_of(o)[a] for o, a in zip(outputs, access.output_axes, strict=True) if a is not None}
    made.analyzer.bind(made.y, ir.Range(0, rows.pop()))
    bodies = [substitute(f.body, {f.loop_var: made.y}) for f in loops]
    for output, axis in zip(outputs, access.output_axes, strict=True):
        for body in bodies:
            for store in (s for s in stores(body) if s.buffer.same_as(output) and axis is not None):
                if not made.analyzer.can_prove_equal(store.indices[axis], made.y):
                    raise NotRowwiseError("an output row is not written by its own iteration")
    return tirx.SeqStmt(bodies) if len(bodies) > 1 else bodies[0]
