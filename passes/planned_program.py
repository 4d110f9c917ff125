"""A lowered plan as functions of a Relax module: an entry that the stock VM calls, and its private kernels and driver.

The entry `cascade_main(inputs..., flash image) -> (outputs..., arena)` copies inputs into the arena, runs the driver of the
plan and copies outputs out.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, IRModule, PointerType, PrimType
from tvm.tirx import BufferStore, Evaluate, For, PrimFunc, SeqStmt

from tvm_cascade.graph import ITEM_BYTES, Tensor
from tvm_cascade.schedules.driver.lower_plan import Lowered, place_of
from tvm_cascade.schedules.tir.barrier import with_barriers

# Relax's pipelines name every function and then give named ones the packed ABI, unless they are marked as lowered already
# (CallingConv kCPackedFunc): ours are called directly, with pointers.
_LOWERED_ALREADY = {"calling_conv": 1}
_LEAST = 8  # bytes of an arena or a flash image: TVM's tensors are never empty


def with_program(mod: IRModule, lowered: Lowered, entry: str) -> tuple[IRModule, GlobalVar]:
    """`mod` with a plan's functions under names that are free there, and the variable of the entry.

    `entry` is the name that the entry gets where it is free.
    """
    names = _FreeNames(mod)
    start = names(entry)
    renamed = {gv.name_hint: GlobalVar(names(gv.name_hint)) for gv in lowered.mod.get_global_vars()}
    graph = lowered.plan.graph
    types = sorted({graph.tensors[t].dtype for t in (*graph.inputs, *graph.outputs)})
    copies = {dtype: GlobalVar(names(f"copy_{dtype}")) for dtype in types}
    functions = {copies[d]: _copy_function(d).with_attr(_LOWERED_ALREADY) for d in types}
    for gv, func in lowered.mod.functions.items():
        functions[renamed[gv.name_hint]] = _calling(func, renamed).with_attr(_LOWERED_ALREADY)
    functions[GlobalVar(start)] = _entry(lowered, copies, renamed[lowered.invoke], start)
    functions = {gv.name_hint: (gv, func) for gv, func in with_barriers(IRModule(functions)).functions.items()}
    made = mod.clone()
    for name, (gv, func) in functions.items():
        if name != start:
            made[gv] = func
    builder = relax.BlockBuilder(made)  # gives the entry's variable the type that calls of it are checked against
    variable = builder.add_func(functions[start][1], start)
    return builder.get(), variable


def flash_image(lowered: Lowered) -> relax.Expr:
    """The constant that the entry takes behind its inputs."""
    padding = b"\0" * max(0, _LEAST - len(lowered.flash))
    return relax.const(np.frombuffer(lowered.flash + padding, np.int8))


def workspace_type(lowered: Lowered) -> relax.TensorType:
    """The type of the arena, which the entry writes behind its outputs."""
    return relax.TensorType((_workspace_bytes(lowered),), "int8")


def _workspace_bytes(lowered: Lowered) -> int:
    return max(lowered.plan.peak + lowered.spare_bytes, _LEAST)


class _FreeNames:
    """Hands out names that no function of a module has, and none twice."""

    def __init__(self, mod: IRModule) -> None:
        self._taken = {gv.name_hint for gv in mod.get_global_vars()}
        self._taken |= {str(f.attrs["global_symbol"]) for f in mod.functions.values() if _is_named(f)}

    def __call__(self, name: str) -> str:
        free, count = name, 0
        while free in self._taken:
            count += 1
            free = f"{name}_{count}"
        self._taken.add(free)
        return free


def _is_named(func: object) -> bool:
    attrs = getattr(func, "attrs", None)
    return attrs is not None and "global_symbol" in attrs


def _calling(func: PrimFunc, renamed: dict[str, GlobalVar]) -> PrimFunc:
    """`func` with its calls of other functions under their new names."""
    rename: Callable[[GlobalVar], GlobalVar] = lambda gv: renamed.get(gv.name_hint, gv)  # noqa: E731
    body = tvm_ffi.structural_map(func.body, [(GlobalVar, rename)], order="post")
    return PrimFunc(func.params, body, func.ret_type, func.attrs)


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


def _entry(lowered: Lowered, copies: dict[str, GlobalVar], invoke: GlobalVar, name: str) -> PrimFunc:
    plan = lowered.plan
    graph = plan.graph
    ins = [_port(graph.tensors[t], f"in{k}") for k, t in enumerate(graph.inputs)]
    outs = [_port(graph.tensors[t], f"out{k}") for k, t in enumerate(graph.outputs)]
    flash = tirx.decl_buffer((max(len(lowered.flash), _LEAST),), "int8", "flash")
    size = _workspace_bytes(lowered)
    arena = tirx.decl_buffer((size,), "int8", "arena")
    types = sorted({graph.tensors[t].dtype for t in (*graph.inputs, *graph.outputs)})
    base = tirx.Var("base", PointerType(PrimType("int8")))
    views = {d: tirx.decl_buffer((-(-size // ITEM_BYTES[d]),), d, f"arena_{d}", data=base) for d in types}

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
    return PrimFunc([*ins, flash, *outs, arena], SeqStmt(body)).with_attr({"global_symbol": name, "tirx.noalias": True})


def _port(tensor: Tensor, name: str) -> tirx.Var:
    return tirx.decl_buffer(tensor.shape, tensor.dtype, name)


def planned_module(mod: IRModule, lowered: Lowered) -> IRModule:
    """The planned program alone: a module whose `main`, with the parameters of that of `mod`, calls it."""
    made, entry = with_program(IRModule({}), lowered, "cascade_main")
    builder = relax.BlockBuilder(made)
    params = [relax.Var(p.name, p.ty) for p in mod["main"].params]
    graph = lowered.plan.graph
    tensors = [graph.tensors[t] for t in graph.outputs]
    results = [relax.TensorType(t.shape, t.dtype) for t in tensors]
    with builder.function("main", params):
        with builder.dataflow():
            out = [*results, workspace_type(lowered)]
            packed = builder.emit(relax.op.call_tir(entry, [*params, flash_image(lowered)], out_ty=out))
            fields = [builder.emit(relax.TupleGetItem(packed, k)) for k in range(len(results))]
            as_tuple = isinstance(mod["main"].body.ty, relax.TupleType)
            result = builder.emit_output(relax.Tuple(fields) if as_tuple else fields[0])
        builder.emit_func_output(result)
    return builder.finalize()
