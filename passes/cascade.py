"""`Cascade`: a Relax module becomes one call of a planned program that lives in one arena.

Before: `main` calls an operator's PrimFunc after the other, every intermediate a tensor of its own. After: `main` calls
`cascade_main(inputs..., flash image) -> (outputs..., arena)`, which copies inputs into the arena, runs the driver of the plan
and copies outputs out; row kernels and driver are private functions beside it.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, IRModule, PointerType, PrimType
from tvm.tirx import BufferStore, Evaluate, For, PrimFunc, SeqStmt

from tvm_cascade.cascading import Plan, PlanOptions, plan_graph
from tvm_cascade.errors import UsageError, ValidationError
from tvm_cascade.graph import ITEM_BYTES, Graph, Tensor
from tvm_cascade.passes.choose_variants import choose_variants
from tvm_cascade.passes.extract_graph import Extracted, extract_graph, with_kernels
from tvm_cascade.schedules.barrier import with_barriers
from tvm_cascade.schedules.choose import Kernel, kernels_of_plan
from tvm_cascade.schedules.counting import Counter
from tvm_cascade.schedules.driver import Lowered, lower_plan, place_of
from tvm_cascade.schedules.kernel import RowKernel
from tvm_cascade.schedules.patch import Patch, patch_kernel
from tvm_cascade.schedules.select import Core, select
from tvm_cascade.schedules.stripe_kernel import stripe_kernel
from tvm_cascade.schedules.tune import Database, shipped

ENTRY = "cascade_main"

# Relax's pipelines name every function and then give named ones the packed ABI, unless they are marked as lowered already
# (CallingConv kCPackedFunc): ours are called directly, with pointers.
_LOWERED_ALREADY = {"calling_conv": 1}


@dataclass(frozen=True)
class PreparedGraph:
    """A module's graph with the kernels chosen for a core; scratch and flash bytes of the graph are those of the kernels."""

    graph: Graph
    extracted: Extracted
    kernels: tuple[RowKernel | None, ...]

    core: Core = field(default_factory=Core)

    def kernels_of(self, plan: Plan, generic: bool = False) -> list[Kernel | None]:
        """The kernels that a plan calls; `generic` ones run on every machine."""
        made = self.extracted
        rows = made.kernels if generic else self.kernels
        patches = None if generic else self.patch
        return kernels_of_plan(plan, rows, made.pixel_kernels, made.accumulators, patches, self.stripe)

    def stripe(self, index: int) -> RowKernel:
        """An operator's kernel for a vertical stripe of a row."""
        func, access = self.extracted.funcs[index], self.extracted.accesses[index]
        assert func is not None and access is not None
        made = stripe_kernel(func, self.extracted.constants[index], access)
        if isinstance(made, str):
            raise ValidationError(f"{self.graph.ops[index].name} was planned in stripes: {made}")
        return made

    def patch(self, index: int, chunk: int) -> Patch | None:
        """An operator's kernel for steps of `chunk` pixels, where a performance schedule serves it."""
        func, kernel = self.extracted.funcs[index], self.kernels[index]
        if func is None or kernel is None or kernel.rule == "generic":
            return None
        constants = self.extracted.constants[index]
        return patch_kernel(self.extracted.graph, self.graph.ops[index], func, constants, self.core, chunk)


def prepare_graph(
    mod: IRModule, core: Core, database: Database | None = None, counter: Counter | None = None
) -> PreparedGraph:
    """Extract the graph of `mod` (integers already lowered) and choose every operator's kernel.

    The choice follows the counts in `database` (by default those that come with the package). With `counter` shapes
    that it lacks are counted, and added to it.
    """
    extracted = extract_graph(mod)
    core = choose_variants(extracted, core, shipped() if database is None else database, counter)
    kernels = []
    for op in extracted.graph.ops:
        func, access, generic = (
            extracted.funcs[op.index],
            extracted.accesses[op.index],
            extracted.kernels[op.index],
        )
        if func is None or access is None:
            kernels.append(None)
            continue
        kernels.append(select(func, extracted.constants[op.index], access, core, op.kind, generic))
    graph = with_kernels(extracted.graph, kernels)
    made = PreparedGraph(graph, extracted, tuple(kernels), core)
    return replace(made, graph=_with_patches(made))


def _with_patches(prepared: PreparedGraph) -> Graph:
    """The graph with what each operator needs to gather the window of a step by pixels."""
    ops = []
    for op in prepared.graph.ops:
        patch = prepared.patch(op.index, 1)
        gathers = [g for g in patch.gathers if g is not None] if patch is not None else []
        ops.append(replace(op, patch_bytes=(sum(g.fixed for g in gathers), sum(g.each for g in gathers))))
    return replace(prepared.graph, ops=tuple(ops))


class Cascade:
    """Relax pass: plan `main` under `options` and replace it by one call of the planned program.

    Works on any module with static shapes; run `LowerQuantized` before it where the module came from a quantized file.
    Raises `InfeasibleError` where the plan exceeds `options.sram`.
    """

    def __new__(cls, options: PlanOptions | None = None, core: Core | None = None) -> tvm.ir.transform.Pass:
        chosen, on = options or PlanOptions(), core or Core()
        if chosen.stream_input:
            raise UsageError("a Relax function gets its inputs whole: plan without stream_input")

        @tvm.ir.transform.module_pass(opt_level=0, name="tvm_cascade.Cascade")
        def apply(mod: IRModule, _context: tvm.ir.transform.PassContext) -> IRModule:
            mod = mod.clone()
            prepared = prepare_graph(mod, on)
            plan = plan_graph(prepared.graph, chosen)
            return planned_module(mod, plan, lower_plan(plan, prepared.kernels_of(plan)))

        return apply


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
