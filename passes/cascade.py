"""`Cascade`: a Relax module becomes one call of a planned program that lives in one arena.

Before: `main` calls an operator's PrimFunc after the other, every intermediate a tensor of its own. After: `main` calls
`cascade_main(inputs..., flash image) -> (outputs..., arena)`, which copies inputs into the arena, runs the driver of the plan
and copies outputs out; row kernels and driver are private functions beside it.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, IRModule, PointerType, PrimType
from tvm.tirx import BufferStore, Evaluate, For, PrimFunc, SeqStmt

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import UsageError
from tvm_cascade.graph import ITEM_BYTES, Tensor
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.candidates.candidate import KernelSource, Network
from tvm_cascade.passes.plan_network import plan_lowered
from tvm_cascade.schedules.driver.lower_plan import Lowered, lower_plan, place_of
from tvm_cascade.schedules.tir.barrier import with_barriers

ENTRY = "cascade_main"

# Relax's pipelines name every function and then give named ones the packed ABI, unless they are marked as lowered already
# (CallingConv kCPackedFunc): ours are called directly, with pointers.
_LOWERED_ALREADY = {"calling_conv": 1}


@dataclass(frozen=True)
class Cascade(CascadePass):
    """Plan `main`, concats included, and replace it by one call of the planned program.

    Works on any module with static shapes; run `LowerQuantized` before it where the module came from a quantized file.
    Raises `InfeasibleError` where the plan exceeds `options.sram`.
    """

    options: PlanOptions = field(default_factory=PlanOptions)
    core: KernelTarget = field(default_factory=KernelTarget)

    def __post_init__(self) -> None:
        if self.options.stream_input:
            raise UsageError("a Relax function gets its inputs whole: plan without stream_input")
        super().__post_init__()

    def call(self, mod: IRModule) -> PassResult:
        """The module of the planned program."""
        source, kernels = mod.clone(), KernelSource(self.core)
        made = plan_lowered(Network(source, kernels.prepare(source), self.options, kernels))
        lowered = lower_plan(made.plan, made.prepared.kernels_of(made.plan))
        return PassResult(planned_module(source, made.plan, lowered), True)


def _copy_function(dtype: str) -> PrimFunc:
    """`copy(to, from, count)` over elements of a type."""
    to, source = (tirx.Var(n, PointerType(PrimType(dtype))) for n in ("to", "source"))
    count, i = tirx.Var("count", "int32"), tirx.Var("i", "int32")
    views = [tirx.decl_buffer((1 << 30,), dtype, f"{h.name}_view", data=h) for h in (to, source)]
    body = For(i, 0, count, tirx.ForKind.SERIAL, BufferStore(views[0], views[1][i], [i]))
    stmts = [tirx.DeclBuffer(v, data=h) for v, h in zip(views, (to, source), strict=True)]
    return PrimFunc(
        [to, source, count], SeqStmt([*stmts, body, tirx.Return(tirx.const(0, "int32"))]), PrimType("int32")
    )


def _entry(plan: Plan, lowered: Lowered, copies: dict[str, GlobalVar], invoke: GlobalVar) -> PrimFunc:
    graph = plan.graph
    ins = [_port(graph.tensors[t], f"in{k}") for k, t in enumerate(graph.inputs)]
    outs = [_port(graph.tensors[t], f"out{k}") for k, t in enumerate(graph.outputs)]
    flash = tirx.decl_buffer((max(len(lowered.flash), 8),), "int8", "flash")
    arena = tirx.decl_buffer((max(plan.peak, 8),), "int8", "arena")
    types = {graph.tensors[t].dtype for t in (*graph.inputs, *graph.outputs)}
    base = tirx.Var("base", PointerType(PrimType("int8")))
    views = {d: tirx.decl_buffer((-(-max(plan.peak, 8) // ITEM_BYTES[d]),), d, f"arena_{d}", data=base) for d in types}

    def move(t: int, port: tirx.Var, into: bool) -> Evaluate:
        tensor = graph.tensors[t]
        item = ITEM_BYTES[tensor.dtype]
        inside = tirx.address_of(views[tensor.dtype][place_of(plan, t) // item])
        outside = tirx.address_of(port[tuple(0 for _ in tensor.shape)])
        ends = [inside, outside] if into else [outside, inside]
        count = tirx.const(tensor.bytes // item, "int32")
        return Evaluate(Call(copies[tensor.dtype], [*ends, count], ret_ty="int32"))

    body: list[tirx.Stmt] = [tirx.Bind(base, tirx.address_of(arena[0]))]
    body += [tirx.DeclBuffer(v, data=base) for v in views.values()]
    body += [move(t, p, True) for t, p in zip(graph.inputs, ins, strict=True)]
    body.append(Evaluate(Call(invoke, [base, tirx.address_of(flash[0])], ret_ty="int32")))
    body += [move(t, p, False) for t, p in zip(graph.outputs, outs, strict=True)]
    return PrimFunc([*ins, flash, *outs, arena], SeqStmt(body)).with_attr(
        {"global_symbol": ENTRY, "tirx.noalias": True}
    )


def _port(tensor: Tensor, name: str) -> tirx.Var:
    return tirx.decl_buffer(tensor.shape, tensor.dtype, name)


def planned_module(mod: IRModule, plan: Plan, lowered: Lowered) -> IRModule:
    """`mod` with its `main` replaced by one call of the plan; functions that nothing calls any more are dropped."""
    main = mod["main"]
    graph = plan.graph
    flash = np.frombuffer(lowered.flash + b"\0" * max(0, 8 - len(lowered.flash)), np.int8)
    made = lowered.mod.clone()
    for gv in list(made.functions):
        made[gv] = made[gv].with_attr(_LOWERED_ALREADY)
    invoke = made.get_global_var(lowered.invoke)
    copies = {}
    for dtype in sorted({graph.tensors[t].dtype for t in (*graph.inputs, *graph.outputs)}):
        copies[dtype] = GlobalVar(f"copy_{dtype}")
        made[copies[dtype]] = _copy_function(dtype).with_attr(_LOWERED_ALREADY)
    builder = relax.BlockBuilder(made)
    entry = builder.add_func(_entry(plan, lowered, copies, invoke), ENTRY)
    params = [relax.Var(p.name, p.ty) for p in main.params]
    results = [relax.TensorType(graph.tensors[t].shape, graph.tensors[t].dtype) for t in graph.outputs]
    workspace = relax.TensorType((max(plan.peak, 8),), "int8")
    with builder.function("main", params):
        with builder.dataflow():
            call = relax.op.call_tir(entry, [*params, relax.const(flash)], out_ty=[*results, workspace])
            packed = builder.emit(call)
            fields = [builder.emit(relax.TupleGetItem(packed, k)) for k in range(len(results))]
            as_tuple = isinstance(main.body.ty, relax.TupleType)
            result = builder.emit_output(relax.Tuple(fields) if as_tuple else fields[0])
        builder.emit_func_output(result)
    return with_barriers(builder.finalize())
