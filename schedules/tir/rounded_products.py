"""Products of floats, rounded before they are added where integers depend on them.

TVM lets LLVM make a fused multiply-add of every product and sum, which rounds once where references round twice. Floats
differ in their last bit then, but an integer rounded from floats may differ by a whole step.
"""

from __future__ import annotations

from typing import Any

import tvm

from tvm_cascade.schedules.tir import PrimFunc, collect, dtype_of, replace, tirx


def rounded_products(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of functions with a fence behind every product of floats in those that store integers."""
    untyped: Any = mod
    return tvm.IRModule({gv: _rounded(func) for gv, func in mod.functions_items()}, attrs=untyped.attrs)


def _rounded(func: PrimFunc) -> PrimFunc:
    if all("float" in dtype_of(store.value) for store in collect(func.body, tirx.BufferStore)):
        return func
    return func.with_body(replace(func.body, tirx.Mul, _fenced))


def _fenced(node: Any) -> Any:
    dtype = dtype_of(node)
    return tirx.call_llvm_pure_intrin(dtype, "llvm.arithmetic.fence", node) if dtype.startswith("float") else node
