"""Lowering a plan to TIR: the driver function, which calls the kernels in the order of the plan's traces.

The driver is TIR like the kernels, so the C and the LLVM back end compile the same program. A segment of an operator
becomes a loop over its steps. A segment of several operators replays its trace, compressed to a table of operator numbers
in flash (`schedules.driver.trace`): code size does not grow with rows, pixels or stripes. Step counters are in the arena.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.ir import GlobalVar, IRModule

from tvm_cascade.cascading.plan import Plan, Segment
from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.messages import short_name
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller, Calls
from tvm_cascade.schedules.driver.merge_kernels import MergeChoice, merge_kernels, steps_of
from tvm_cascade.schedules.driver.places import (
    Flash,
    FlashItem,
    Memory,
    overwrites,
    place_of,
    row_table,
    rows_by_table,
    slot_of,
)
from tvm_cascade.schedules.driver.streaming import HOST_FETCH, host_fetch, streamed_inputs
from tvm_cascade.schedules.driver.trace import Program, compress
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, i32, ir, tirx, tvm_ffi
from tvm_cascade.schedules.tir.aliasing import NOALIAS, alike

__all__ = ["FlashItem", "Lowered", "lower_plan", "place_of"]

STATUS_OK = 0


@dataclass(frozen=True)
class Lowered:
    """A plan lowered to a module of TIR functions that work on the plan's memories and the flash image.

    `mod` holds the kernels and `invoke(int8* arena, int8* flash[, int8* context, int32* status][, int64* macs])`, with
    a pointer for every area (`cascading.state_areas`) in place of `arena`. With streamed inputs or a hook, the C
    functions receive `context`, and `status` receives the first result that is not 0. `spare_bytes` must follow the
    last memory: scratch for kernels that need more than the plan reserved.
    """

    plan: Plan
    mod: IRModule
    invoke: str
    flash: bytes
    flash_items: tuple[FlashItem, ...]
    kernels: tuple[tuple[str, ...], ...]  # names of the functions of every operator, none for views
    counted: bool = False  # whether `invoke` counts multiply-accumulates in `macs`
    spare_bytes: int = 0
    hooked: bool = False  # whether a function is called after every step
    table_bytes: int = 0  # of the driver's tables (traces, stripes) at the start of `flash`; constants follow
    segment_call: str | None = None  # a C function that is called with the number of a segment where it begins


@dataclass(frozen=True, slots=True)
class _Trace:
    """The place of a segment's program tables in flash: each first element's index."""

    program: Program
    steps: int  # index into flash viewed as `step_dtype`
    runs: int  # index into flash viewed as `loop_dtype`; three elements a loop: start, length, count
    blocks: int  # as `runs`
    step_dtype: str  # uint8 or uint16
    loop_dtype: str  # uint16 or uint32


class Tables:
    """The driver's tables in flash: the segments' traces and stripes, and tensors' row addresses."""

    def __init__(self, plan: Plan, traced: bool = True) -> None:
        """Write the tables of `plan`; without `traced` those of its segments' traces are left out."""
        self.plan = plan
        self.flash = Flash()
        self.actors = [list(dict.fromkeys(s.trace)) for s in plan.segments]
        self.traces = [self._trace(k, s) if traced else None for k, s in enumerate(plan.segments)]
        self.bounds = [self._stripes(k, s) for k, s in enumerate(plan.segments)]
        self.rows = {t: self._rows(t) for t in rows_by_table(plan)}
        self.bytes = len(self.flash.data)

    def _trace(self, index: int, segment: Segment) -> _Trace | None:
        local = {actor: k for k, actor in enumerate(self.actors[index])}
        if len(local) < 2:
            return None
        program = compress([local[a] for a in segment.trace])
        step_dtype = "uint8" if len(local) <= 256 else "uint16"
        rows = [np.array([[l.start, l.length, l.count] for l in t]) for t in (program.runs, program.blocks)]
        loop_dtype = "uint16" if max(int(r.max()) for r in rows) < 1 << 16 else "uint32"
        steps = self.flash.add(f"trace {index}", np.array(program.steps, step_dtype))
        runs, blocks = (self.flash.add(f"trace {index}, loops", r.astype(loop_dtype)) for r in rows)
        item = np.dtype(loop_dtype).itemsize
        return _Trace(
            program, steps // np.dtype(step_dtype).itemsize, runs // item, blocks // item, step_dtype, loop_dtype
        )

    def _stripes(self, index: int, segment: Segment) -> int | None:
        """Store a segment's table of columns (x0, x1 by stripe and operator) in flash; return the index in the uint16
        view.
        """
        if not segment.stripes:
            return None
        return self.flash.add(f"stripes {index}", np.array(segment.stripes, np.uint16)) // 2

    def _rows(self, tensor: int) -> int:
        """Store a tensor's row addresses in flash; return the index of row 0 in the int32 view."""
        entries, first = row_table(self.plan, tensor)
        return self.flash.add(f"rows {tensor}", entries) // 4 + first


class Driver:
    """Writer for a plan's driver function: `build` the whole, `step` the statements for an operator's step."""

    def __init__(
        self,
        plan: Plan,
        kernels: Sequence[BuiltKernel | None],
        names: Sequence[Sequence[str]],
        counted: bool,
        fetch: str | None,
        hook: str | None,
        segment_call: str | None = None,
        traced: bool = True,
        mark: str | None = None,
    ) -> None:
        """Set up the driver; `traced` puts the segments' traces into flash, without which only `step` works."""
        self.plan, self.kernels, self.fetch, self.segment_call = plan, kernels, fetch, segment_call
        self.streamed = streamed_inputs(plan)
        self.hook, self.mark = hook, mark
        self.can_fail = bool(self.streamed) or hook is not None
        self.done = tirx.decl_buffer((1,), "int32", "done")  # steps, for the hook
        self.status_pointer = tir.pointer_var("status", "int32")
        self.status = tirx.decl_buffer((1,), "int32", "status_data", data=self.status_pointer)
        self.macs = tir.pointer_var("macs", "int64") if counted else None
        self.globals = {n: GlobalVar(n) for n in (*(n for own in names for n in own), HOST_FETCH)}
        tables = Tables(plan, traced)
        self.actors, self.traces, self.bounds = tables.actors, tables.traces, tables.bounds
        self.flash, self.table_bytes = tables.flash, tables.bytes
        constants = [
            [
                [self.flash.add(f"{short_name(op.name)} {i}", c) for i, c in enumerate(v.constants)]
                for v in (k.variants if k else ())
            ]
            for op, k in zip(plan.graph.ops, kernels, strict=True)
        ]
        self.spare_bytes = _spare_bytes(plan, kernels)
        self.memory = Memory(plan, self.spare_bytes, len(self.flash.data))
        functions = [[self.globals[n] for n in own] for own in names]
        entries = max((k.table_entries for k in kernels if k is not None), default=0)
        row_table = tirx.decl_buffer((entries,), "int32", "rows") if entries else None
        self.calls = Calls(plan, functions, constants, self.memory, self.macs, row_table, row_tables=tables.rows)

    def segment(self, index: int) -> list[Stmt]:
        """Write the statements that run segment `index`, in a loop over stripes if there are any."""
        table = self.bounds[index]
        begun: list[Stmt] = []
        if self.segment_call is not None and self.actors[index]:
            begun = [tirx.Evaluate(tirx.call_extern("int32", self.segment_call, i32(index)))]
        if table is None:
            return [*begun, *self._once(index)]
        stripe = self.stripe(index, table)
        count = len(self.plan.segments[index].stripes)
        return [*begun, tir.for_range(stripe, count, tirx.SeqStmt(self._once(index)))]

    def stripe(self, index: int, table: int) -> Var:
        """Make a variable for the current stripe's number in segment `index`, with the columns in `table`."""
        stripe = tirx.Var(f"stripe{index}", "int32")
        self.calls.stripes[index] = (stripe, table)
        return stripe

    def _once(self, index: int) -> list[Stmt]:
        actors, trace = self.actors[index], self.traces[index]
        if not actors:
            return []
        if trace is None:
            return [self._alone(actors[0], index)]
        counters = self.calls.addresses[f"state {index}"]
        zero = tirx.Var(f"k{index}", "int32")
        dtype = f"uint{8 * (self.plan.segments[index].state_bytes // len(actors))}"
        state, at = self.memory.element(counters, dtype, zero)
        clear = tir.for_range(zero, len(actors), tirx.BufferStore(state, tirx.const(0, dtype), [at]))
        which = tirx.Var(f"which{index}", "int32")
        steps = [self._advance(a, self.memory.element(counters, dtype, k), index) for k, a in enumerate(actors)]
        chain = steps[-1]
        for k in range(len(actors) - 2, -1, -1):
            chain = tirx.IfThenElse(tirx.EQ(which, i32(k)), steps[k], chain)
        return [clear, self._replay(index, trace, which, chain)]

    def _replay(self, index: int, trace: _Trace, which: Var, body: Stmt) -> Stmt:
        """Run `body` for every step of a program: by loops over the tables, or a single loop if nothing repeats."""
        steps = self.memory.view("flash", trace.step_dtype)
        program = trace.program
        at = tirx.Var(f"step{index}", "int32")
        if len(program.runs) == len(program.blocks) == 1 and program.runs[0].count == program.blocks[0].count == 1:
            fetch = tirx.Bind(which, steps[at + trace.steps].astype("int32"))
            return tir.for_range(at, len(program.steps), tirx.SeqStmt([fetch, body]))
        fetch = tirx.Bind(which, steps[at].astype("int32"))
        inner = tirx.SeqStmt([fetch, body])
        loops = self.memory.view("flash", trace.loop_dtype)

        def repeated(level: str, again: str, table: int, item: Var, base: int, body: Stmt) -> tuple[Var, Stmt]:
            """Write the loops of a table row: `for again in range(count): for item in range(base + start, ...): body`."""
            row, again_var = tirx.Var(f"{level}{index}", "int32"), tirx.Var(f"{again}{index}", "int32")
            names = [tirx.Var(f"{n}_{level}{index}", "int32") for n in ("start", "length", "count")]
            binds = [tirx.Bind(v, loops[row * 3 + (table + k)].astype("int32")) for k, v in enumerate(names)]
            start, length, count = names
            offset = tirx.Var(f"{item.name}_offset", "int32")
            each = tir.for_range(offset, length, tirx.SeqStmt([tirx.Bind(item, offset + start + base), body]))
            return row, tirx.SeqStmt([*binds, tir.for_range(again_var, count, each)])

        run, inner = repeated("run", "again", trace.runs, at, trace.steps, inner)
        block, inner = repeated("block", "round", trace.blocks, run, 0, inner)
        return tir.for_range(block, len(program.blocks), inner)

    def _advance(self, actor: int, counter: tuple[Var, Expr], segment: int) -> Stmt:
        """Run the next step of an operator, or of a streamed input's source, and increment the step counter.

        `counter` is the memory element with the step count.
        """
        state, at = counter
        step = tirx.Var(f"step_{actor}" if actor >= 0 else f"row_of_input_{-1 - actor}", "int32")
        bump = tirx.BufferStore(state, (step + 1).astype(state.dtype), [at])
        begin = tirx.Bind(step, state[at].astype("int32"))
        return self._unless_failed(tirx.SeqStmt([begin, self.step(actor, step, segment), bump]))

    def step(self, actor: int, step: Expr, segment: int) -> Stmt:
        """Write the statements for a step of operator `actor` (or of the source of streamed input `-1 - actor`) in a
        segment.
        """
        if actor < 0:
            return tirx.BufferStore(self.status, self._source(-1 - actor, step), [i32(0)])
        kernel = self.kernels[actor]
        assert kernel is not None
        body = kernel.step(Caller(self.calls, kernel, self.plan.graph.ops[actor], segment), step)
        if self.mark is None:
            return body
        return tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("int32", self.mark, i32(actor))), body])

    def _source(self, t: int, row: Expr) -> Expr:
        """Ask the caller for a row of a streamed input."""
        place, tensor = self.calls.places[t], self.plan.graph.tensors[t]
        if place.scattered:
            entry = self.memory.view("flash", "int32")[row + self.calls.row_tables[t]]
            to = self.memory.row(t, entry * ITEM_BYTES[tensor.dtype], "int8")
        else:
            to = self.memory.address(place.address, "int8", slot_of(row, place, tensor) * place.row_bytes)
        args = [self.memory.context, i32(self.plan.graph.inputs.index(t)), row, to]
        if self.fetch is None:
            return ir.Call(self.globals[HOST_FETCH], args, ret_ty="int32")
        return tirx.call_extern("int32", self.fetch, *args)

    def _unless_failed(self, body: Stmt) -> Stmt:
        """Return `body` followed by the hook's call, if there is a hook; neither runs once a source or the hook has
        failed.
        """
        if not self.can_fail:
            return body
        if self.hook is not None:
            body = tirx.SeqStmt([body, *self._call_hook(self.hook)])
        return tirx.IfThenElse(tirx.EQ(self.status[i32(0)], i32(STATUS_OK)), body, None)

    def _call_hook(self, hook: str) -> list[Stmt]:
        """Count the step, then, unless the step failed, call the hook; the hook's result becomes the status."""
        zero = i32(0)
        call = tirx.call_extern("int32", hook, self.memory.context, self.done[zero])
        stmts: list[Stmt] = [tirx.BufferStore(self.status, call, [zero])]
        if self.streamed:
            stmts = [tirx.IfThenElse(tirx.EQ(self.status[zero], i32(STATUS_OK)), stmts[0], None)]
        return [tirx.BufferStore(self.done, self.done[zero] + 1, [zero]), *stmts]

    def _alone(self, actor: int, segment: int) -> Stmt:
        steps = len(self.plan.segments[segment].trace)
        if steps == 1:
            return self._unless_failed(self.step(actor, i32(0), segment))
        step = tirx.Var(f"step_{actor}" if actor >= 0 else f"row_of_input_{-1 - actor}", "int32")
        return tir.for_range(step, steps, self._unless_failed(self.step(actor, step, segment)))

    def build(self) -> PrimFunc:
        steps = [s for k in range(len(self.plan.segments)) for s in self.segment(k)]
        params = [*self.memory.bases.values(), self.memory.flash]
        params += [self.memory.context, self.status_pointer] if self.can_fail else []
        params += [self.macs] if self.macs is not None else []
        table = self.calls.row_table
        begin: list[Stmt] = [] if table is None else [tirx.AllocBuffer(table)]
        if self.can_fail:
            begin += [
                tirx.DeclBuffer(self.status, data=self.status_pointer),
                tirx.BufferStore(self.status, i32(STATUS_OK), [i32(0)]),
            ]
        if self.hook is not None:
            begin += [tirx.AllocBuffer(self.done), tirx.BufferStore(self.done, i32(0), [i32(0)])]
        # the LLVM back end can return constants only, so failures are reported through the status pointer
        stmts = [*self.memory.declarations(), *begin, *steps, tirx.Return(i32(STATUS_OK))]
        body = tir.sequence(stmts)  # it has no steps where all operators are views
        return tirx.PrimFunc(params, body, ir.PrimType("int32"), attrs=ir.make_node("ir.DictAttrs", **{NOALIAS: True}))


def _spare_bytes(plan: Plan, kernels: Sequence[BuiltKernel | None]) -> int:
    """Return the bytes behind the last memory for kernels with more scratch than planned for their segment."""
    planned = {o: s.scratch_bytes for s in plan.segments for o in s.ops}
    needed = {o: k.scratch_bytes for o, k in enumerate(kernels) if k}
    over = [b for o, b in needed.items() if b > planned[o]]
    return -plan.allocation.peak % 8 + max(over) if over else 0


def lower_plan(
    plan: Plan,
    kernels: Sequence[BuiltKernel | None],
    *,
    name: str = "invoke",
    transform: Callable[[PrimFunc], PrimFunc] | None = None,
    counted: bool = False,
    fetch: str | None = None,
    hook: str | None = None,
    segment_call: str | None = None,
    mark: str | None = None,
    choice: MergeChoice[str] | None = None,
) -> Lowered:
    """Lower a plan and the kernels of its operators (None for views) to a module with a driver function `name`.

    `schedules.forms.choose` builds the kernels. `transform` is applied to each kernel function, for instance to count
    multiply-accumulates; with `counted` the kernels and the driver take a last parameter `int64* macs`. Rows of
    streamed inputs come from the C function `fetch(context, input, row, destination)`; with None they are copied from
    whole inputs stored one behind another at `context`. With `hook`, the C function `hook(context, done)` is called
    after every step with the number of steps done; the run ends if it returns anything but 0. `segment_call` is a C
    function called at the start of every segment with its number, `mark` one called before every step with the
    operator's number. Kernels that `choice` merges are one (`merge_kernels`).
    """
    functions: dict[str, PrimFunc] = {}
    by_hash: dict[int, list[str]] = {}
    names: list[list[str]] = []
    for op, kernel in zip(plan.graph.ops, kernels, strict=True):
        aliased = any(plan.storages[t].root is not None for t in op.outputs) or overwrites(plan, op)
        names.append([])
        for stem, func in kernel.functions(op.kind) if kernel else ():
            func = func if transform is None else transform(func)
            func = func.without_attr(NOALIAS) if aliased else func
            names[-1].append(_share(func.without_attr("global_symbol"), stem, functions, by_hash))
    driver = Driver(plan, kernels, names, counted, fetch, hook, segment_call, mark=mark)
    invoke = driver.build()
    if driver.streamed and fetch is None:
        functions[HOST_FETCH] = host_fetch(plan)
    mod = IRModule(alike({driver.globals[n]: functions[n] for n in functions} | {GlobalVar(name): invoke}))
    replaced: dict[str, str] = {}
    if choice is not None:
        steps = steps_of(plan)
        calls = Counter(dict.fromkeys(functions, 0))
        for op, own in zip(plan.graph.ops, names, strict=True):
            calls.update(dict.fromkeys(own, steps[op.index]))
        mod, replaced = merge_kernels(mod, name, choice, calls)
    flash = driver.flash
    return Lowered(
        plan,
        mod,
        name,
        bytes(flash.data),
        tuple(flash.items),
        tuple(tuple(replaced.get(n, n) for n in own) for own in names),
        counted,
        driver.spare_bytes,
        hook is not None,
        driver.table_bytes,
        segment_call,
    )


def _share(func: PrimFunc, kind: str, functions: dict[str, PrimFunc], by_hash: dict[int, list[str]]) -> str:
    """Return the name of `func` in `functions`; add it unless an equal function is there: operators with equal shapes
    share a kernel.
    """
    digest = tvm_ffi.structural_hash(func)
    for name in by_hash.get(digest, ()):
        if tvm_ffi.structural_equal(functions[name], func):
            return name
    stem = "".join(c if c.isalnum() and c.isascii() else "_" for c in kind) or "op"
    name = f"{stem}_{len(functions)}"
    functions[name] = func
    by_hash.setdefault(digest, []).append(name)
    return name
