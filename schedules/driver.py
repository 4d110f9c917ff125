"""The driver of a plan: one function that calls the row kernels in the order the plan's traces give.

It is TIR like the kernels, so the C and the LLVM back end print the same program. A segment of one operator is a loop over
its rows. A segment of several replays its trace, a table of operator numbers that lies in flash beside the weights: code
size does not grow with rows or stripes. Row counters live in the arena; a ring's slot is a remainder once per kernel call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, GlobalVar, IRModule, PointerType, PrimType
from tvm.tirx import BufferStore, Evaluate, For, IfThenElse, PrimFunc, SeqStmt

from tvm_cascade.cascading.plan import Plan, Segment
from tvm_cascade.graph import ITEM_BYTES, Op, Tensor, Window
from tvm_cascade.schedules.row_kernel import Param, Role, RowKernel
from tvm_cascade.schedules.streaming import HOST_FETCH, host_fetch, streamed_inputs

STATUS_OK = 0


@dataclass(frozen=True, slots=True)
class FlashItem:
    """A constant in the flash image: `offset` and `size` in bytes."""

    label: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class Lowered:
    """A plan as functions over two pointers, the arena and the flash image.

    `mod` holds the private row kernels and `invoke(int8* arena, int8* flash[, int8* context, int32* status][, int64* macs])`.
    With streamed inputs `context` goes to their source, and `status` receives the first answer of it that is not 0.
    Kernels other than those that were planned may need more scratch than the arena has: `spare_bytes` behind it.
    """

    plan: Plan
    mod: IRModule
    invoke: str
    flash: bytes
    flash_items: tuple[FlashItem, ...]
    kernels: tuple[str, ...]  # by operator, "" for views
    counted: bool = False
    spare_bytes: int = 0


@dataclass
class _Flash:
    """Constants laid out one behind the other, equal ones once."""

    data: bytearray = field(default_factory=bytearray)
    items: list[FlashItem] = field(default_factory=list)
    known: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def add(self, label: str, array: np.ndarray) -> int:
        raw = np.ascontiguousarray(array).tobytes()
        align = 8 if array.dtype.itemsize == 8 else 4
        if (raw, align) in self.known:
            return self.known[raw, align]
        self.data.extend(b"\0" * (-len(self.data) % align))
        offset = len(self.data)
        self.data.extend(raw)
        self.items.append(FlashItem(label, str(array.dtype), tuple(array.shape), offset, len(raw)))
        self.known[raw, align] = offset
        return offset


def _i32(value: int) -> tvm.ir.PrimExpr:
    return tirx.const(value, "int32")


class _Memory:
    """Typed views of the arena and of flash inside one function."""

    def __init__(self, arena_bytes: int, flash_bytes: int) -> None:
        self.arena = tirx.Var("arena", PointerType(PrimType("int8")))
        self.flash = tirx.Var("flash", PointerType(PrimType("int8")))
        self.context = tirx.Var("context", PointerType(PrimType("int8")))
        self.sizes = {"arena": max(arena_bytes, 8), "flash": max(flash_bytes, 8)}
        self.views: dict[tuple[str, str], tirx.Var] = {}

    def view(self, where: str, dtype: str) -> tirx.Var:
        key = (where, dtype)
        if key not in self.views:
            handle = self.arena if where == "arena" else self.flash
            count = -(-self.sizes[where] // ITEM_BYTES[dtype])
            self.views[key] = tirx.decl_buffer((count,), dtype, f"{where}_{dtype}", data=handle)
        return self.views[key]

    def address(self, where: str, dtype: str, byte_offset: tvm.ir.PrimExpr | int) -> tvm.ir.PrimExpr:
        """Pointer to `byte_offset`, which is a multiple of the type's size."""
        item = ITEM_BYTES[dtype]
        index = _i32(byte_offset // item) if isinstance(byte_offset, int) else byte_offset
        return tirx.address_of(self.view(where, dtype)[index])

    def declarations(self) -> list[tirx.Stmt]:
        return [
            tirx.DeclBuffer(view, data=self.arena if where == "arena" else self.flash)
            for (where, _), view in self.views.items()
        ]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor's rows are: byte offset of slot 0, slots, bytes of a slot."""

    offset: int
    height: int
    row_bytes: int
    dtype: str


def _places(plan: Plan) -> list[_Place]:
    return [
        _Place(place_of(plan, t.index), plan.storages[t.index].height, t.row_bytes, t.dtype) for t in plan.graph.tensors
    ]


def _strides(tensor: Tensor, place: _Place) -> tuple[int, int]:
    """Elements from plane to plane and from row to row: a ring keeps the rows of all planes together."""
    row = place.row_bytes // ITEM_BYTES[place.dtype]
    if tensor.row_axis is None:
        return row, row
    across = prod(tensor.shape[tensor.row_axis + 1 :])
    whole = place.height >= tensor.rows
    return (across * tensor.rows, across) if whole and row != across else (across, row)


def place_of(plan: Plan, tensor: int) -> int:
    """Byte offset of a tensor in the arena, through its views."""
    storage, shift = plan.storages[tensor], 0
    while storage.root is not None:
        shift += storage.byte_offset
        storage = plan.storages[storage.root]
    return plan.allocation.offsets[plan.buffers.index(f"tensor {storage.tensor}")] + shift


class _Driver:
    def __init__(
        self, plan: Plan, kernels: Sequence[RowKernel | None], names: Sequence[str], counted: bool, fetch: str | None
    ) -> None:
        self.plan = plan
        self.fetch = fetch
        self.streamed = streamed_inputs(plan)
        self.status_pointer = tirx.Var("status", PointerType(PrimType("int32")))
        self.status = tirx.decl_buffer((1,), "int32", "status_data", data=self.status_pointer)
        self.kernels = kernels
        self.names = names
        self.flash = _Flash()
        self.segment_of = {o: k for k, s in enumerate(plan.segments) for o in s.ops}
        self.constants = [self._constants(op) for op in plan.graph.ops]
        self.traces = [self._trace(k, s) for k, s in enumerate(plan.segments)]
        self.places = _places(plan)
        self.offsets = dict(zip(plan.buffers, plan.allocation.offsets, strict=True))
        self.spare = -(-plan.peak // 8) * 8
        over = [k.scratch_bytes for op, k in self._running() if k.scratch_bytes > plan.segments[self.segment_of[op.index]].scratch_bytes]
        self.spare_bytes = self.spare - plan.peak + max(over) if over else 0
        self.memory = _Memory(plan.peak + self.spare_bytes, len(self.flash.data))
        self.globals = {n: GlobalVar(n) for n in (*names, HOST_FETCH) if n}
        self.macs = tirx.Var("macs", PointerType(PrimType("int64"))) if counted else None

    def _running(self) -> list[tuple[Op, RowKernel]]:
        return [(op, k) for op, k in zip(self.plan.graph.ops, self.kernels, strict=True) if k is not None]

    def _constants(self, op: Op) -> tuple[int, ...]:
        kernel = self.kernels[op.index]
        if kernel is None:
            return ()
        return tuple(self.flash.add(f"{op.name} {i}", c) for i, c in enumerate(kernel.constants))

    def _trace(self, index: int, segment: Segment) -> int:
        if len(segment.trace) == 0 or len(set(segment.trace)) < 2:
            return -1
        local = {op: k for k, op in enumerate(dict.fromkeys(segment.trace))}
        dtype = "uint8" if len(local) <= 256 else "uint16"
        return self.flash.add(f"trace {index}", np.array([local[o] for o in segment.trace], dtype))

    def _slot(self, window: Window | None, row: tvm.ir.PrimExpr, place: _Place, rows: int) -> tvm.ir.PrimExpr:
        if window is None or window.stride == 0:
            return _i32(0)
        first = row * window.stride
        if window.denominator > 1:
            first = tirx.truncdiv(first, _i32(window.denominator))
        if place.height >= rows and window.padding == 0:
            return first
        shift = -(-window.padding // place.height) * place.height - window.padding
        return tirx.truncmod(first + shift, _i32(place.height))

    def call(self, op: Op, row: tvm.ir.PrimExpr, segment: int) -> tirx.Stmt:
        """One row of `op` (all rows, with a whole kernel)."""
        kernel = self.kernels[op.index]
        assert kernel is not None
        args = [self._argument(op, kernel, param, row, segment) for param in kernel.params]
        if self.macs is not None:
            args.append(self.macs)
        return Evaluate(Call(self.globals[self.names[op.index]], args, ret_ty="int32"))

    def _argument(self, op: Op, kernel: RowKernel, param: Param, row: tvm.ir.PrimExpr, segment: int) -> tvm.ir.PrimExpr:
        if param.role is Role.Y:
            return row
        if param.role is Role.SCRATCH:
            planned = self.plan.segments[segment].scratch_bytes
            fits = kernel.scratch_bytes <= planned
            return self.memory.address("arena", "int8", self.offsets[f"scratch {segment}"] if fits else self.spare)
        if param.role is Role.CONSTANT:
            return self.memory.address("flash", param.dtype, self.constants[op.index][param.index])
        if param.role in (Role.OUTPUT, Role.OUTPUT_PLANE):
            return self._output(op.outputs[param.index], kernel, param, row)
        t = op.inputs[param.index]
        place, tensor = self.places[t], self.plan.graph.tensors[t]
        if param.role is Role.INPUT:
            return self.memory.address("arena", place.dtype, place.offset)
        if param.role is Role.HEIGHT:
            return _i32(place.height)
        if param.role is Role.SLOT:
            window = op.windows[param.index] if op.windows and not kernel.whole else None
            return self._slot(window, row, place, tensor.rows)
        plane, stride = _strides(tensor, place)
        return _i32(plane if param.role is Role.PLANE else stride)

    def _output(self, t: int, kernel: RowKernel, param: Param, row: tvm.ir.PrimExpr) -> tvm.ir.PrimExpr:
        place, tensor = self.places[t], self.plan.graph.tensors[t]
        plane, stride = _strides(tensor, place)
        if param.role is Role.OUTPUT_PLANE:
            return _i32(plane)
        if kernel.whole:
            return self.memory.address("arena", place.dtype, place.offset)
        slot = row if place.height >= tensor.rows else tirx.truncmod(row, _i32(place.height))
        return self.memory.address("arena", place.dtype, place.offset // ITEM_BYTES[place.dtype] + slot * stride)

    def segment(self, index: int, segment: Segment) -> list[tirx.Stmt]:
        order = list(dict.fromkeys(segment.trace))
        if not order:
            return []
        if self.traces[index] < 0 and order[0] < 0:
            rows, row = segment.trace.count(order[0]), tirx.Var(f"row_of_input_{-1 - order[0]}", "int32")
            body = self._unless_failed(self._source(-1 - order[0], row))
            return [For(row, 0, rows, tirx.ForKind.SERIAL, body)]
        if self.traces[index] < 0:
            return [self._whole(self.plan.graph.ops[order[0]], index)]
        state = self.memory.view("arena", "int32")
        first = self.offsets[f"state {index}"] // 4
        zero = tirx.Var(f"k{index}", "int32")
        clear = For(zero, 0, len(order), tirx.ForKind.SERIAL, BufferStore(state, _i32(0), [zero + first]))
        step = tirx.Var(f"step{index}", "int32")
        dtype = "uint8" if len(order) <= 256 else "uint16"
        table = self.memory.view("flash", dtype)
        which = tirx.Var(f"which{index}", "int32")
        fetch = tirx.Bind(which, table[step + self.traces[index] // ITEM_BYTES[dtype]].astype("int32"))
        chain: tirx.Stmt = self._advance(order[-1], first + len(order) - 1, index)
        for k in range(len(order) - 2, -1, -1):
            body = self._advance(order[k], first + k, index)
            chain = IfThenElse(tirx.EQ(which, _i32(k)), body, chain)
        replay = For(step, 0, len(segment.trace), tirx.ForKind.SERIAL, SeqStmt([fetch, chain]))
        return [clear, replay]

    def _advance(self, actor: int, counter: int, segment: int) -> tirx.Stmt:
        """The next row of an operator, or of the source of a streamed input."""
        state = self.memory.view("arena", "int32")
        row = tirx.Var(f"row_{actor}" if actor >= 0 else f"row_of_input_{-1 - actor}", "int32")
        bump = BufferStore(state, row + 1, [_i32(counter)])
        step = self._source(-1 - actor, row) if actor < 0 else self.call(self.plan.graph.ops[actor], row, segment)
        return self._unless_failed(SeqStmt([tirx.Bind(row, state[_i32(counter)]), step, bump]))

    def _unless_failed(self, body: tirx.Stmt) -> tirx.Stmt:
        """`body`, skipped once a source has failed (nothing can fail where no input is streamed)."""
        if not self.streamed:
            return body
        return IfThenElse(tirx.EQ(self.status[_i32(0)], _i32(STATUS_OK)), body, None)

    def _source(self, t: int, row: tvm.ir.PrimExpr) -> tirx.Stmt:
        """Ask the caller for a row; what the caller answers, if not 0, ends the run."""
        place, tensor = self.places[t], self.plan.graph.tensors[t]
        slot = row if place.height >= tensor.rows else tirx.truncmod(row, _i32(place.height))
        to = self.memory.address("arena", "int8", place.offset + slot * place.row_bytes)
        which = _i32(self.plan.graph.inputs.index(t))
        args = [self.memory.context, which, row, to]
        if self.fetch is None:
            call = Call(self.globals[HOST_FETCH], args, ret_ty="int32")
        else:
            call = tirx.call_extern("int32", self.fetch, *args)
        return BufferStore(self.status, call, [_i32(0)])

    def _whole(self, op: Op, segment: int) -> tirx.Stmt:
        rows = self.plan.segments[segment].trace.count(op.index)
        if rows == 1:
            return self._unless_failed(self.call(op, _i32(0), segment))
        row = tirx.Var(f"row_{op.index}", "int32")
        body = self._unless_failed(self.call(op, row, segment))
        return For(row, 0, rows, tirx.ForKind.SERIAL, body)

    def build(self, name: str) -> PrimFunc:
        body = [s for k, segment in enumerate(self.plan.segments) for s in self.segment(k, segment)]
        params = [self.memory.arena, self.memory.flash]
        params += [self.memory.context, self.status_pointer] if self.streamed else []
        params += [self.macs] if self.macs is not None else []
        begin: list[tirx.Stmt] = []
        if self.streamed:
            begin = [
                tirx.DeclBuffer(self.status, data=self.status_pointer),
                BufferStore(self.status, _i32(STATUS_OK), [_i32(0)]),
            ]
        # the LLVM back end returns constants only: what can fail goes through the status pointer
        stmts = [*self.memory.declarations(), *begin, *body, tirx.Return(_i32(STATUS_OK))]
        attrs = tvm.ir.make_node("ir.DictAttrs", **{})
        return PrimFunc(params, SeqStmt(stmts), PrimType("int32"), attrs=attrs).with_attr("tirx.is_driver", name)


def lower_plan(
    plan: Plan,
    kernels: Sequence[RowKernel | None],
    *,
    name: str = "invoke",
    transform: Callable[[PrimFunc], PrimFunc] | None = None,
    counted: bool = False,
    fetch: str | None = None,
) -> Lowered:
    """Turn a plan and the row kernels of its operators (None for views) into functions.

    `transform` is applied to every kernel (the counting of multiply-accumulates, for one); with `counted` the kernels
    and the driver take a last parameter `int64* macs`. Rows of streamed inputs come from the C function `fetch(context,
    input, row, destination)`; None takes them from whole inputs that lie one behind the other at `context`.
    """
    functions: dict[str, PrimFunc] = {}
    by_hash: dict[int, list[str]] = {}
    names: list[str] = []
    for op, kernel in zip(plan.graph.ops, kernels, strict=True):
        if kernel is None:
            names.append("")
            continue
        func = kernel.func if transform is None else transform(kernel.func)
        if any(plan.storages[t].root is not None for t in op.outputs):
            func = func.without_attr("tirx.noalias")
        func = func.without_attr("global_symbol")
        names.append(_share(func, op.kind, functions, by_hash))
    driver = _Driver(plan, kernels, names, counted, fetch)
    invoke = driver.build(name)
    if streamed_inputs(plan) and fetch is None:
        functions[HOST_FETCH] = host_fetch(plan)
    mod = IRModule({driver.globals[n]: functions[n] for n in functions} | {GlobalVar(name): invoke})
    return Lowered(plan, mod, name, bytes(driver.flash.data), tuple(driver.flash.items), tuple(names), counted, driver.spare_bytes)


def _share(func: PrimFunc, kind: str, functions: dict[str, PrimFunc], by_hash: dict[int, list[str]]) -> str:
    """The name of a function equal to `func`: equal shapes share a kernel."""
    digest = tvm_ffi.structural_hash(func)
    for name in by_hash.get(digest, ()):
        if tvm_ffi.structural_equal(functions[name], func):
            return name
    stem = "".join(c if c.isalnum() and c.isascii() else "_" for c in kind) or "op"
    name = f"{stem}_{len(functions)}"
    functions[name] = func
    by_hash.setdefault(digest, []).append(name)
    return name
