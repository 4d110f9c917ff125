"""Barriers between kernels that share an arena, for LLVM.

TVM tells LLVM that accesses through different buffers never overlap (a class of type-based alias analysis for every
buffer variable). Within a kernel that is so. Between kernels it is not: what one writes another reads, and one tensor's
bytes become another's. Once LLVM has inlined both it may move the loads of one across the stores of the other; small
kernels came out wrong. `llvm.va_end` counts as an access to all memory that no class excludes, and becomes no
instruction.

The C back end needs none: its kernels access the arena as characters or as the type that was written there. Nor do
objects that hold kernels alone, whose driver is compiled apart.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Call, GlobalVar, IRModule
from tvm.target import Target

from tvm_cascade.schedules.tir import ir, tirx, tvm_ffi


def with_barriers(mod: IRModule) -> IRModule:
    """`mod` with a barrier behind every call of one of its functions that stands as a statement.

    Where the current target is not LLVM's the module comes back as it is.
    """
    target = Target.current(allow_none=True)
    if target is not None and target.kind.name != "llvm":
        return mod
    made = mod.clone()
    for gv in mod.get_global_vars():
        func = mod[gv]
        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, [(tirx.Evaluate, _followed)], order="post")
            made[gv] = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
    return made


def _followed(stmt: Any) -> Any:
    call = stmt.value
    if not (isinstance(call, Call) and isinstance(call.op, GlobalVar)):
        return stmt
    pointer = next((a for a in call.args if isinstance(getattr(a, "ty", None), ir.PointerType)), None)
    pointer = next((a for a in call.args if _is_address(a)), pointer)
    if pointer is None:
        return stmt
    return tirx.SeqStmt([stmt, tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.va_end", pointer))])


def _is_address(argument: Any) -> bool:
    return isinstance(argument, Call) and getattr(argument.op, "name", "") == "tirx.address_of"
