"""Scans (`schedules.kernels.scan`): the PrimFunc of one, written from its body, and the kernel for a core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from tvm_cascade.passes.integer.expressions import constant_of
from tvm_cascade.passes.lower_quantized import lowered
from tvm_cascade.passes.relax_ops import Source, read_function
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.scan import SCAN, SCAN_KIND, Scan
from tvm_cascade.schedules.kernels.spec import NO_ATTRIBUTES, with_spec
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, i32, ir, relax, s_tir, tirx
from tvm_cascade.schedules.tir.staging import stage

Value = Any


@dataclass(frozen=True, slots=True)
class Steps:
    """How a body is run; by state, sequence and result as in `Scan`."""

    steps: int
    states: int
    sequences: int
    values: int = 0
    counts: bool = False
    backward: tuple[bool, ...] = ()  # of sequences, then of results; empty: none is
    stacked: tuple[bool, ...] = ()  # by result
    finals: tuple[bool, ...] = ()  # by state


def lower_scan(
    builder: Any, body: tvm.IRModule, how: Steps, initial: Sequence[Value], given: Sequence[Value]
) -> list[Value]:
    """Emit a scan. `initial` are the states before the first step, `given` sequences, then values.

    Sequences and stacked results have the steps as the first axis. Returns the final states that `how` wants, then
    the results.
    """
    if not any(how.finals) and not how.stacked:  # nothing of it is read
        return []
    made, kept = _without_unread(lowered(body), how)
    given = [v for v, is_read in zip(given, kept, strict=True) if is_read]
    source = read_function(made, "main")
    backward = how.backward or (False,) * (how.sequences + len(how.stacked))
    sequences = sum(kept[: how.sequences])
    read = (*kept[: how.sequences], *(True for _ in how.stacked))
    constant = [constant_of(v) is not None for v in initial]
    activations = [*(v for v, fixed in zip(initial, constant, strict=True) if not fixed), *given]
    first = [v for v, fixed in zip(initial, constant, strict=True) if fixed]
    scan = Scan(
        made,
        how.steps,
        how.states,
        sequences,
        len(given) - sequences,
        how.counts,
        _digits(way for way, is_read in zip(backward, read, strict=True) if is_read),
        _digits(how.stacked),
        _digits(how.finals),
        _digits(not fixed for fixed in constant),
    )
    writer = _Composed(scan, source)
    func = with_spec(writer.function(), SCAN_KIND, len(activations), NO_ATTRIBUTES).with_attr(SCAN, scan)
    types = [relax.TensorType(list(shape), dtype) for shape, dtype in map(_type, writer.outputs)]
    constants = [relax.const(c, str(c.dtype)) for c in writer.constants]
    called = builder.add_func(func, SCAN_KIND)
    result = builder.emit(relax.call_tir(called, [*activations, *first, *constants], types))
    return [result] if len(types) == 1 else [builder.emit(relax.TupleGetItem(result, k)) for k in range(len(types))]


def keeping_last(func: PrimFunc, results: Sequence[int]) -> PrimFunc:
    """Return the PrimFunc of a scan that keeps of some results, each stacked before, the last step's part alone."""
    old = func.attrs[SCAN]
    stacked = "".join("0" if k in results else flag for k, flag in enumerate(old.stacked))
    fields = (old.body, old.steps, old.states, old.sequences, old.values, old.counts)
    scan = Scan(*fields, old.backward, stacked, old.finals, old.initial)
    made = _Composed(scan, read_function(scan.body, "main")).function()
    return made.with_attrs({k: v for k, v in func.attrs.items() if k != SCAN}).with_attr(SCAN, scan)


def _without_unread(body: tvm.IRModule, how: Steps) -> tuple[tvm.IRModule, list[bool]]:
    """Drop parameters for sequences and values that the body does not read; return for each whether it stays."""
    made = relax.transform.DeadCodeElimination()(body)
    main: Any = made["main"]
    used = list(relax.analysis.free_vars(main.body))
    kept = [any(p.same_as(v) for v in used) for p in main.params]
    end = how.states + how.sequences + how.values
    kept = [k < how.states or k >= end or is_read for k, is_read in enumerate(kept)]
    params = [p for p, is_read in zip(main.params, kept, strict=True) if is_read]
    made["main"] = relax.Function(params, main.body, main.ret_ty, main.is_pure, main.attrs)
    return made, kept[how.states : end]


def _digits(flags: Any) -> str:
    return "".join("1" if flag else "0" for flag in flags)


def _type(buffer: Buffer) -> tuple[tuple[int, ...], str]:
    return tir.shape_of(buffer), tir.dtype_of(buffer)


class _Composed:
    """Writer of a scan's PrimFunc: a block with a loop over the steps, in which the functions of the body's calls follow
    one another on scratch.
    """

    def __init__(self, scan: Scan, source: Source) -> None:
        self.scan, self.source = scan, source
        self.scratch: list[Buffer] = []
        self.t = tirx.Var("t", "int32")
        inputs, results = ([source.tensors[t] for t in some] for some in (source.inputs, source.outputs))
        self.held = {t: self._new(f"body_{t}", source.tensors[t]) for t in range(len(source.tensors))}
        self.first = [_buffer(f"initial{k}", x.shape, x.dtype) for k, x in enumerate(inputs[: scan.states])]
        behind = inputs[scan.states : len(inputs) - int(scan.counts)]
        self.given = [
            _buffer(f"given{k}", (scan.steps, *x.shape) if k < scan.sequences else x.shape, x.dtype)
            for k, x in enumerate(behind)
        ]
        self.outputs: list[Buffer] = []
        for result in scan.outputs:
            which = result - scan.states
            x, every = results[result], which >= 0 and scan.stacked[which] == "1"
            self.outputs.append(_buffer(f"made{result}", (scan.steps, *x.shape) if every else x.shape, x.dtype))
        self.next = [self._new(f"next_{k}", results[k]) for k in range(scan.states)]
        self.constants: list[np.ndarray] = []
        self.constant_buffers: list[Buffer] = []

    def function(self) -> PrimFunc:
        """Build the PrimFunc: initial states that are activations, sequences, values, constants, outputs."""
        scan, source = self.scan, self.source
        before = [_copied(self.held[t], (), first, ()) for t, first in zip(source.inputs, self.first, strict=False)]
        inside: list[Stmt] = []
        for k, given in enumerate(self.given):
            held = self.held[source.inputs[scan.states + k]]
            inside.append(_copied(held, (), given, (self._part(k),) if k < scan.sequences else ()))
        if scan.counts:
            held = self.held[source.inputs[-1]]
            inside.append(_filled(held, self.t.astype(tir.dtype_of(held))))
        for call in source.calls:
            inside += self._called(call)
        outputs = dict(zip(scan.outputs, self.outputs, strict=True))
        for k, t in enumerate(source.outputs[scan.states :]):
            every = scan.stacked[k] == "1"
            at = (self._part(scan.sequences + k),) if every else ()
            inside.append(_copied(outputs[scan.states + k], at, self.held[t], ()))
        states = source.outputs[: scan.states]
        inside += [_copied(self.next[k], (), self.held[t], ()) for k, t in enumerate(states)]
        inside += [_copied(self.held[source.inputs[k]], (), self.next[k], ()) for k in range(scan.states)]
        after = [
            _copied(outputs[k], (), self.held[source.inputs[k]], ())
            for k in range(scan.states)
            if scan.finals[k] == "1"
        ]
        body = tir.sequence([*before, tir.for_range(self.t, scan.steps, tir.sequence(inside)), *after])
        flags = list(zip(self.first, scan.initial, strict=True))
        params = [
            *(b for b, given in flags if given == "1"),
            *self.given,
            *(b for b, given in flags if given == "0"),
            *self.constant_buffers,
        ]
        return _one_block(body, params, self.outputs, self.scratch)

    def _part(self, sequence: int) -> Expr:
        return i32(self.scan.steps - 1) - self.t if self.scan.is_backward(sequence) else self.t

    def _new(self, name: str, tensor: Any) -> Buffer:
        made = _buffer(name, tensor.shape, tensor.dtype)
        self.scratch.append(made)
        return made

    def _called(self, call: Any) -> list[Stmt]:
        """Write the statements of a call, with the buffers that it reads and writes here."""
        func = stage(call.func, None)
        parameters = list(func.params)
        count = len(call.inputs)
        mapping: dict[Any, Any] = {p: self.held[t] for p, t in zip(parameters, call.inputs, strict=False)}
        mapping |= {p: self.held[t] for p, t in zip(parameters[-len(call.outputs) :], call.outputs, strict=True)}
        for p, value in zip(parameters[count:], call.constants, strict=False):
            self.constants.append(value)
            self.constant_buffers.append(_buffer(f"constant{len(self.constants)}", value.shape, str(value.dtype)))
            mapping[p] = self.constant_buffers[-1]
        for alloc in tir.collect(func.body, tirx.AllocBuffer):
            own = alloc.buffer
            mapping[own] = _buffer(f"{own.name}_{len(self.scratch)}", tir.shape_of(own), tir.dtype_of(own))
            self.scratch.append(mapping[own])
        for loop in tir.collect(func.body, tirx.For):
            mapping[loop.loop_var] = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        for bind in tir.collect(func.body, tirx.Bind):
            mapping[bind.var] = tirx.Var(bind.var.name, bind.var.ty)
        body = tir.replace(func.body, tirx.AllocBuffer, lambda a: tirx.Evaluate(i32(0)))
        return [tir.replace(body, tirx.Var, lambda v: mapping.get(v, v))]


def _one_block(body: Stmt, params: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Sequence[Buffer]) -> PrimFunc:
    reads, writes = ([tirx.BufferRegion(b, [ir.Range(0, d) for d in b.shape]) for b in s] for s in (params, outputs))
    once, index = tirx.Var("v_once", "int32"), tirx.Var("once", "int32")
    axis = tirx.IterVar(ir.Range(0, 1), once, tirx.IterVar.DataPar)
    block = s_tir.SBlock([axis], reads, writes, SCAN_KIND, body, None, list(scratch), [], {})
    always = tirx.const(True, "bool")
    nest = tir.for_range(index, 1, s_tir.SBlockRealize([index], always, block))
    root = s_tir.SBlockRealize([], always, s_tir.SBlock([], [], [], "root", nest, None, [], [], {}))
    attrs = ir.make_node("ir.DictAttrs", **{"tirx.noalias": True, "s_tir": True})
    return tirx.PrimFunc([*params, *outputs], root, ir.TupleType([]), attrs=attrs)


def _buffer(name: str, shape: Sequence[int], dtype: str) -> Buffer:
    return tirx.decl_buffer([int(d) for d in shape], dtype, name)


def _copied(to: Buffer, to_at: Sequence[Expr], source: Buffer, source_at: Sequence[Expr]) -> Stmt:
    """Write a tensor's copy; `to_at` and `source_at` are the first indices on either side."""
    shape = tir.shape_of(source)[len(source_at) :]

    def store(at: Sequence[Expr]) -> Stmt:
        return tirx.BufferStore(to, source[(*source_at, *at)] if (*source_at, *at) else source[()], [*to_at, *at])

    return _nest(shape, store)


def _filled(to: Buffer, value: Expr) -> Stmt:
    return _nest(tir.shape_of(to), lambda at: tirx.BufferStore(to, value, list(at)))


def _nest(shape: Sequence[int], store: Callable[[Sequence[Expr]], Stmt]) -> Stmt:
    loops = [tirx.Var(f"a{k}", "int32") for k in range(len(shape))]
    made = store(loops)
    for var, extent in reversed(list(zip(loops, shape, strict=True))):
        made = tir.for_range(var, extent, made)
    return made
