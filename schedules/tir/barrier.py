"""Memory barriers for LLVM between calls to kernels with a shared arena.

TVM tells LLVM that accesses through different buffers never overlap (by TBAA, a class for every buffer variable). This
holds within a kernel, but not between kernels: a kernel reads data written by another, and a tensor's bytes become
another tensor's. After inlining, LLVM could move a kernel's loads across another's stores and miscompile small kernels.
`llvm.va_end` counts as an access to all memory, in any class, and emits no instruction.

The C back end needs no barriers: its kernels access the arena as characters or as the type written there. Nor do
objects with only kernels and no driver.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Call, GlobalVar, IRModule
from tvm.target import Target

from tvm_cascade.schedules.tir import ir, tirx, tvm_ffi


def with_barriers(mod: IRModule) -> IRModule:
    """Insert a barrier after every statement in `mod` that calls a function of the module.

    Return `mod` unchanged unless the current target is `llvm`.
    """
    target = Target.current(allow_none=True)
    if target is not None and target.kind.name != "llvm":
        return mod
    changed = mod.clone()
    for gv in mod.get_global_vars():
        func = mod[gv]
        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, [(tirx.Evaluate, _followed)], order="post")
            changed[gv] = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
    return changed


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
