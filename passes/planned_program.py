"""Embeds a lowered plan in a Relax module: an entry PrimFunc that the stock VM calls, and private kernels and driver.

The entry `cascade_main(inputs..., flash image) -> (outputs..., arena)` copies the inputs into the arena, runs the plan's
driver, and copies the outputs out. Several memories lie in the one arena, at the addresses of the plan.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, IRModule, PointerType, PrimType
from tvm.tirx import BufferStore, Evaluate, For, PrimFunc, SeqStmt

from tvm_cascade.cascading.state_areas import areas
from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.passes.relax_functions import UniqueNames, typed
from tvm_cascade.schedules.driver.lower_plan import Lowered, place_of
from tvm_cascade.schedules.tir.aliasing import NOALIAS, alike
from tvm_cascade.schedules.tir.barrier import with_barriers

# Relax's pipelines give every PrimFunc the packed ABI unless it is marked as lowered already (CallingConv kCPackedFunc):
# the functions here are called directly, with pointers.
_LOWERED_ALREADY = {"calling_conv": 1}
_LEAST = 8  # minimum bytes of an arena or flash image, so that the TVM tensor is not empty


def with_program(mod: IRModule, lowered: Lowered, entry: str) -> tuple[IRModule, GlobalVar]:
    """Add a plan's functions to `mod` under free names; return the entry's global variable too.

    `entry` is the entry's preferred name.
    """
    names = _free_names(mod)
    start = names(entry)
    renamed = {gv.name_hint: GlobalVar(names(gv.name_hint)) for gv in lowered.mod.get_global_vars()}
    graph = lowered.plan.graph
    types = sorted({graph.tensors[t].dtype for t in (*graph.inputs, *graph.outputs)})
    copies = {dtype: GlobalVar(names(f"copy_{dtype}")) for dtype in types}
    functions = {copies[d]: _copy_function(d).with_attr({NOALIAS: True, **_LOWERED_ALREADY}) for d in types}
    for gv, func in lowered.mod.functions.items():
        functions[renamed[gv.name_hint]] = _calling(func, renamed).with_attr(_LOWERED_ALREADY)
    functions[GlobalVar(start)] = _entry(lowered, copies, renamed[lowered.invoke], start)
    functions = {gv.name_hint: (gv, func) for gv, func in with_barriers(IRModule(functions)).functions.items()}
    made = mod.clone()
    for name, (gv, func) in functions.items():
        if name != start:
            made[typed(gv, func.ty)] = func
    programs = {gv: f for gv, f in made.functions.items() if isinstance(f, PrimFunc) and _is_lowered_already(f)}
    for gv, func in alike(programs).items():
        made[gv] = func
    builder = relax.BlockBuilder(made)  # sets the type of the entry's variable, against which calls are checked
    variable = builder.add_func(functions[start][1], start)
    return builder.get(), variable


def _is_lowered_already(func: PrimFunc) -> bool:
    """Return True if a function belongs to a program, for this or another region: TVM's own have no calling convention
    yet.
    """
    return "calling_conv" in dict(func.attrs or {})


def flash_image(lowered: Lowered) -> relax.Expr:
    """Return the flash image (weights and driver tables) as an int8 constant: the entry's last argument, after the
    inputs.
    """
    padding = b"\0" * max(0, _LEAST - len(lowered.flash))
    return relax.const(np.frombuffer(lowered.flash + padding, np.int8), "int8")


def workspace_type(lowered: Lowered) -> relax.TensorType:
    """Return the arena's type, an int8 tensor: the entry's last result, after the outputs."""
    return relax.TensorType((_workspace_bytes(lowered),), "int8")


def _workspace_bytes(lowered: Lowered) -> int:
    return max(lowered.plan.allocation.peak + lowered.spare_bytes, _LEAST)


def _free_names(mod: IRModule) -> UniqueNames:
    """Return a source of names unused by the module's functions."""
    symbols = (dict(getattr(f, "attrs", None) or {}).get("global_symbol") for f in mod.functions.values())
    return UniqueNames({*(gv.name_hint for gv in mod.get_global_vars()), *(str(s) for s in symbols if s)})


def _calling(func: PrimFunc, renamed: dict[str, GlobalVar]) -> PrimFunc:
    """Replace the global variables called by `func`."""
    body = tvm_ffi.structural_map(func.body, [(GlobalVar, lambda gv: renamed.get(gv.name_hint, gv))], order="post")
    return PrimFunc(func.params, body, func.ret_type, func.attrs)


def _copy_function(dtype: str) -> PrimFunc:
    """Build a PrimFunc `copy(to, source, count)` for `count` elements of `dtype`."""
    to, source = (tirx.Var(n, PointerType(PrimType(dtype))) for n in ("to", "source"))
    count, i = tirx.Var("count", "int32"), tirx.Var("i", "int32")
    views = [tirx.decl_buffer((1 << 30,), dtype, f"{h.name}_view", data=h) for h in (to, source)]
    body = For(i, 0, count, tirx.ForKind.SERIAL, BufferStore(views[0], views[1][i], [i]))
    stmts = [tirx.DeclBuffer(v, data=h) for v, h in zip(views, (to, source), strict=True)]
    done = tirx.Return(tirx.const(0, "int32"))
    return PrimFunc([to, source, count], SeqStmt([*stmts, body, done]), PrimType("int32"))


def _entry(lowered: Lowered, copies: dict[str, GlobalVar], invoke: GlobalVar, name: str) -> PrimFunc:
    plan = lowered.plan
    graph = plan.graph
    ins, outs = (
        [tirx.decl_buffer(graph.tensors[t].shape, graph.tensors[t].dtype, f"{side}{k}") for k, t in enumerate(own)]
        for side, own in (("in", graph.inputs), ("out", graph.outputs))
    )
    flash = tirx.decl_buffer((max(len(lowered.flash), _LEAST),), "int8", "flash")
    size = _workspace_bytes(lowered)
    arena = tirx.decl_buffer((size,), "int8", "arena")
    base = tirx.Var("base", PointerType(PrimType("int8")))
    views = {d: tirx.decl_buffer((-(-size // ITEM_BYTES[d]),), d, f"arena_{d}", data=base) for d in copies}

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
    further = [tirx.address_of(arena[area.start]) for area in areas(plan)[1:]]
    body.append(Evaluate(Call(invoke, [base, *further, tirx.address_of(flash[0])], ret_ty="int32")))
    body += [move(t, p, False) for t, p in zip(graph.outputs, outs, strict=True)]
    return PrimFunc([*ins, flash, *outs, arena], SeqStmt(body)).with_attr({"global_symbol": name, NOALIAS: True})
