"""A scan (`schedules.kernels.scan`) as a loop over the kernels of its body, each chosen as for any operator of a network.

The body is planned layer by layer in an arena of its own, which is the scan's scratch and used anew in every step. Nothing
is copied in a step: kernels read a sequence's part and write a result's where they lie in the network's tensors, and a
state has two copies, of which a step reads one and writes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.plan_graph import plan_graph
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, Graph
from tvm_cascade.memory import Problem, allocate
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller, Calls
from tvm_cascade.schedules.driver.places import Memory, place_of
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.rows import check_rows
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.scan import Scan
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, i32, ir, tirx

_ALIGNMENT = 8  # bytes, of scratch
_OUTSIDE = 1 << 40  # addresses from here on are those of blocks that lie outside of the body's arena
_SPAN = 1 << 32  # of each


@dataclass(frozen=True)
class PlannedBody:
    """A scan's body with its plan, layer by layer, and the kernels that the plan calls.

    Addresses of the plan are offsets in the scan's scratch, but for blocks of inputs and results: `_OUTSIDE` on.
    """

    scan: Scan
    plan: Plan
    kernels: tuple[BuiltKernel | None, ...]  # by operator of the body
    initial: tuple[np.ndarray | None, ...]  # by state: what it is in front of the first step; None for an activation
    states: tuple[int, ...]  # by state: offset of its two copies in scratch; then that of the number of the step
    copied: tuple[int, ...]  # results that are copied at the end of a step, as they are other results or inputs too
    peak: int  # bytes of scratch: states, and the arena

    @property
    def graph(self) -> Graph:
        """Return the body's graph."""
        return self.plan.graph


@dataclass(frozen=True)
class ScanKernel(RowKernel):
    """A scan's kernel: its body's kernels, with all their constants."""

    body: PlannedBody | None = None


class ScanForm(KernelForm):
    """The form of scans whose body was planned (`ScanKernel`)."""

    way = Way.ROWS

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        row = site.row
        if not isinstance(row, ScanKernel) or row.body is None:
            return "it runs no body of its own"
        return ScanSteps((*_variants(row.body.kernels), *_initial(row.body)), row.body)


FORM = ScanForm()


def planned_body(
    scan: Scan,
    graph: Graph,
    initial: Sequence[np.ndarray],
    kernels_of: Callable[[Plan], Sequence[BuiltKernel | None]],
    alignment: int,
) -> PlannedBody:
    """Plan a body layer by layer: `graph` is its graph, `initial` the states that begin as constants, `alignment` the
    bytes of blocks in an arena. `kernels_of` builds the kernels of a plan.
    """
    plan = plan_graph(graph, PlanOptions(layerwise=True, overlap=False, alignment=alignment))
    outside, copied = _outside(graph, plan)
    sizes = [graph.tensors[t].bytes for t in graph.inputs[: scan.states]]
    starts = list(accumulate((*(2 * _aligned(n) for n in sizes), *([_ALIGNMENT] if scan.counts else [])), initial=0))
    given = iter(initial)
    first = tuple(None if begins == "1" else next(given) for begins in scan.initial)
    kept = [k for k, name in enumerate(plan.buffers) if name not in outside]
    blocks = {b.name: b for b in plan.problem.buffers}
    problem = Problem(
        tuple(replace(blocks[plan.buffers[k]], id=n, offset=None) for n, k in enumerate(kept)),
    )
    arena = allocate(problem)
    offsets = [_OUTSIDE + outside.get(name, 0) * _SPAN for name in plan.buffers]
    for k, offset in zip(kept, arena.offsets, strict=True):
        offsets[k] = starts[-1] + offset
    peak = starts[-1] + arena.peak
    plan = replace(plan, allocation=replace(plan.allocation, offsets=tuple(offsets), peak=peak))
    return PlannedBody(scan, plan, tuple(kernels_of(plan)), first, tuple(starts[:-1]), copied, peak)


def scan_kernel(body: PlannedBody, generic: RowKernel) -> ScanKernel:
    """Return a scan's kernel; `generic` computes everything in a single function."""
    constants = tuple(c for v in (*_variants(body.kernels), *_initial(body)) for c in v.constants)
    return ScanKernel(generic.code, constants, max(body.peak, 1), (), True, None, "scan", True, body=body)


def _outside(graph: Graph, plan: Plan) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the blocks outside the body's arena, by name: the number of an input, or of a result behind the
    inputs; and the results that have no block of their own.
    """
    found = {f"tensor {t}": k for k, t in enumerate(graph.inputs)}
    copied: list[int] = []
    for k, t in enumerate(graph.outputs):
        storage, shift = plan.storages[t], 0
        while storage.root is not None:
            shift, storage = shift + storage.byte_offset, plan.storages[storage.root]
        block = f"tensor {storage.tensor}"
        if block in found or shift or storage.size != graph.tensors[t].bytes:
            copied.append(k)
        else:
            found[block] = len(graph.inputs) + k
    return found, tuple(copied)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _variants(kernels: Iterable[BuiltKernel | None]) -> Iterator[RowKernel]:
    return (v for kernel in kernels if kernel is not None for v in kernel.variants)


def _initial(body: PlannedBody) -> Iterator[RowKernel]:
    """Yield a kernel for every state that begins with a constant: it copies the constant into scratch, or clears the state."""
    for value in body.initial:
        if value is not None:
            unit = _unit(str(value.dtype))
            zero = not np.ascontiguousarray(value).view(np.uint8).any() if value.size else True
            yield RowKernel(_clear(unit) if zero else _copy(unit), () if zero else (value,))


@dataclass(frozen=True)
class ScanSteps(BuiltKernel):
    """The only step of a scan: a loop over its own steps, with the calls of the body's kernels."""

    body: PlannedBody

    @property
    def helpers(self) -> tuple[PrimFunc, ...]:
        own = [h for kernel in self.body.kernels if kernel is not None for h in kernel.helpers]
        return (*own, *(_copy(dtype) for dtype in self._copies))

    @property
    def table_entries(self) -> int:
        return max((k.table_entries for k in self.body.kernels if k is not None), default=0)

    @property
    def scratch_bytes(self) -> int:
        return self.body.peak

    @property
    def _copies(self) -> tuple[str, ...]:
        """Return the types of elements that are copied."""
        scan, graph = self.body.scan, self.body.graph
        begun = [t for t, given in zip(graph.inputs, scan.initial, strict=False) if given == "1"]
        ended = [t for t, read in zip(graph.inputs, scan.finals, strict=False) if read == "1"]
        tensors = [*begun, *ended, *(graph.outputs[k] for k in self.body.copied)]
        return tuple(sorted({_unit(graph.tensors[t].dtype) for t in tensors}))

    def kind_of(self, which: int, kind: str) -> str:
        """Return the kind of the body's operator that a variant computes."""
        ops = zip(self.body.graph.ops, self.body.kernels, strict=True)
        kinds = [op.kind + k.suffix for op, k in ops if k is not None for _ in k.variants]
        return kinds[which] if which < len(kinds) else "copy"

    def functions(self, kind: str) -> list[tuple[str, PrimFunc]]:
        listed = [
            kernel.functions(op.kind)
            for op, kernel in zip(self.body.graph.ops, self.body.kernels, strict=True)
            if kernel is not None
        ]
        kernels = [k for k in self.body.kernels if k is not None]
        variants = [f for own, k in zip(listed, kernels, strict=True) for f in own[: len(k.variants)]]
        helpers = [f for own, k in zip(listed, kernels, strict=True) for f in own[len(k.variants) :]]
        variants += [("copy", v.func) for v in self.variants[len(variants) :]]
        return [*variants, *helpers, *(("copy", _copy(dtype)) for dtype in self._copies)]

    def with_variants(self, variants: Iterable[RowKernel]) -> BuiltKernel:
        raise ValidationError("a scan's results lie in no part of another tensor", [])

    def step(self, caller: Caller, step: Expr) -> Stmt:
        check_rows(caller)
        return _Writer(self, caller).written()


class _Writer:
    """Writer of a scan's loop in a plan's driver."""

    def __init__(self, steps: ScanSteps, caller: Caller) -> None:
        self.steps, self.caller, self.body, self.scan = steps, caller, steps.body, steps.body.scan
        self.graph = steps.body.graph
        self.t = tirx.Var(f"t{caller.op.index}", "int32")
        self.scratch = caller.scratch_of(self.body.peak)
        self.outputs = {place: k for k, place in enumerate(self.scan.outputs)}  # of the operator, by result
        activations = iter(range(len(caller.op.inputs)))
        self.initial = [next(activations) if given == "1" else None for given in self.scan.initial]
        self.inputs = list(activations)  # the places of sequences and values among the operator's inputs
        allocation = self.body.plan.allocation
        offsets = tuple(o if o >= _OUTSIDE else o + self.scratch for o in allocation.offsets)
        plan = replace(self.body.plan, allocation=replace(allocation, offsets=offsets))
        functions, constants = self._distributed()
        memory: Any = _Redirected(caller.memory, self._place)
        calls = caller.calls
        self.calls = Calls(plan, functions, constants, memory, calls.macs, calls.row_table)

    def _distributed(self) -> tuple[list[list[Any]], list[list[Sequence[int]]]]:
        """Return the body's functions and constant places, by operator."""
        own = self.caller.calls.constants[self.caller.op.index]
        kernels = self.body.kernels
        variants = iter(zip(self.caller.functions, own, strict=False))
        helpers = iter(self.caller.functions[len(self.steps.variants) :])
        functions: list[list[Any]] = []
        constants: list[list[Sequence[int]]] = []
        for kernel in kernels:
            pairs = [next(variants) for _ in kernel.variants] if kernel is not None else []
            functions.append([f for f, _ in pairs])
            constants.append([list(c) for _, c in pairs])
        self.first = iter(list(variants))  # of the states that begin as constants: function, and places of constants
        for k, kernel in enumerate(kernels):
            functions[k] += [next(helpers) for _ in kernel.helpers] if kernel is not None else []
        self.copies = dict(zip(self.steps._copies, helpers, strict=True))
        return functions, constants

    def _place(self, block: int) -> tuple[int, int, Expr | None]:
        """Locate a block outside the arena: address, bytes per step, and the step (None: fixed)."""
        scan, inputs = self.scan, len(self.graph.inputs)
        if block < scan.states:
            return self._state(block, self.t)
        if block < inputs:
            which = block - scan.states
            if which >= scan.sequences + scan.values:  # the number of the step
                return self.scratch + self.body.states[scan.states], 0, None
            address = self.caller.input(self.inputs[which])[0].address
            if which >= scan.sequences:
                return address, 0, None
            return address, self.graph.tensors[self.graph.inputs[block]].bytes, self._part(which)
        result = block - inputs
        if result < scan.states:
            return self._state(result, self.t + 1)
        address = self.caller.output(self.outputs[result])[0].address
        which = result - scan.states
        if scan.stacked[which] == "0":
            return address, 0, None
        return address, self.graph.tensors[self.graph.outputs[result]].bytes, self._part(scan.sequences + which)

    def _part(self, sequence: int) -> Expr:
        return i32(self.scan.steps - 1) - self.t if self.scan.is_backward(sequence) else self.t

    def _state(self, state: int, step: Expr) -> tuple[int, int, Expr | None]:
        size = _aligned(self.graph.tensors[self.graph.inputs[state]].bytes)
        return self.scratch + self.body.states[state], size, step & i32(1)

    def written(self) -> Stmt:
        scan, graph, stmts = self.scan, self.graph, list[Stmt]()
        for k, given in enumerate(self.initial):
            tensor = graph.tensors[graph.inputs[k]]
            unit, memory = _unit(tensor.dtype), self.caller.memory
            to = memory.address(self.scratch + self.body.states[k], unit)
            if given is not None:
                source = memory.address(self.caller.input(given)[0].address, unit)
                stmts.append(self._copied(to, source, tensor.dtype, tensor.bytes))
                continue
            function, places = next(self.first)
            source = [memory.constant(places[0], unit)] if places else []
            stmts.append(self._called(function, [to, *source, i32(tensor.bytes // ITEM_BYTES[unit])]))
        stmts.append(tir.for_range(self.t, scan.steps, tir.sequence(list(self._step()))))
        for k in range(scan.states):
            if scan.finals[k] == "1":
                tensor = graph.tensors[graph.inputs[k]]
                unit, size = _unit(tensor.dtype), _aligned(tensor.bytes)
                place = self.scratch + self.body.states[k] + (scan.steps & 1) * size
                to = self.caller.memory.address(self.caller.output(self.outputs[k])[0].address, unit)
                stmts.append(self._copied(to, self.caller.memory.address(place, unit), tensor.dtype, tensor.bytes))
        return tir.sequence(stmts)

    def _step(self) -> Iterator[Stmt]:
        plan, graph, scan = self.calls.plan, self.graph, self.scan
        if scan.counts:
            dtype = graph.tensors[graph.inputs[-1]].dtype
            view, at = self.caller.memory.element(self.scratch + self.body.states[-1], dtype)
            yield tirx.BufferStore(view, self.t.astype(dtype), [at])
        for index, segment in enumerate(plan.segments):
            for o in dict.fromkeys(segment.trace):
                kernel = self.body.kernels[o]
                if kernel is None:
                    continue
                caller, count = Caller(self.calls, kernel, graph.ops[o], index), len(segment.trace)
                if count == 1:
                    yield kernel.step(caller, i32(0))
                else:
                    step = tirx.Var(f"step{self.caller.op.index}_{o}", "int32")
                    yield tir.for_range(step, count, kernel.step(caller, step))
        for result in self.body.copied:
            tensor = graph.tensors[graph.outputs[result]]
            unit = _unit(tensor.dtype)
            source = self.calls.memory.address(place_of(plan, tensor.index), unit)
            to = self.calls.memory.address(_OUTSIDE + (len(graph.inputs) + result) * _SPAN, unit)
            yield self._copied(to, source, tensor.dtype, tensor.bytes)

    def _copied(self, to: Expr, source: Expr, dtype: str, size: int) -> Stmt:
        unit = _unit(dtype)
        return self._called(self.copies[unit], [to, source, i32(size // ITEM_BYTES[unit])])

    def _called(self, function: Any, args: Sequence[Expr]) -> Stmt:
        macs = [] if self.calls.macs is None else [self.calls.macs]
        return tirx.Evaluate(ir.Call(function, [*args, *macs], ret_ty="int32"))


class _Redirected:
    """A driver's memory in which blocks outside the body's arena lie where `place` says: an address, and bytes by number."""

    def __init__(self, memory: Memory, place: Any) -> None:
        self.memory, self.place = memory, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def element(self, address: int, dtype: str, further: Expr | int = 0) -> tuple[Var, Expr]:
        if address < _OUTSIDE:
            return self.memory.element(address, dtype, further)
        block, shift = divmod(address - _OUTSIDE, _SPAN)
        start, size, number = self.place(block)
        moved = further if number is None else number * i32(size // ITEM_BYTES[dtype]) + further
        return self.memory.element(start + shift, dtype, moved)

    def address(self, address: int, dtype: str, further: Expr | int = 0) -> Expr:
        view, index = self.element(address, dtype, further)
        return tirx.address_of(view[index])


def _unit(dtype: str) -> str:
    """Return the type by whose elements a tensor is copied."""
    return "int8" if ITEM_BYTES[dtype] == 1 else dtype


def _clear(dtype: str) -> PrimFunc:
    """Return a function that sets a number of elements to zero."""
    to, count, i = tir.pointer_var("to", dtype), tirx.Var("count", "int32"), tirx.Var("i", "int32")
    view = tirx.decl_buffer((1 << 28,), dtype, "to_data", data=to)
    cleared = tir.for_range(i, count, tirx.BufferStore(view, tirx.const(0, dtype), [i]))
    return tir.kernel_function("clear", [to, count], [tirx.DeclBuffer(view, data=to), cleared])


def _copy(dtype: str) -> PrimFunc:
    """Return a function that copies a number of elements."""
    to, source = (tir.pointer_var(name, dtype) for name in ("to", "source"))
    count, i = tirx.Var("count", "int32"), tirx.Var("i", "int32")
    views = [tirx.decl_buffer((1 << 28,), dtype, f"{v.name}_data", data=v) for v in (to, source)]
    copied = tirx.BufferStore(views[0], views[1][i], [i])
    declared = [tirx.DeclBuffer(view, data=v) for view, v in zip(views, (to, source), strict=True)]
    return tir.kernel_function("copy", [to, source, count], [*declared, tir.for_range(i, count, copied)])
