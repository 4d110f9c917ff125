"""Products of floats, rounded before they are added where integers depend on them.

TVM lets LLVM make a fused multiply-add of every product and sum, which rounds once where references round twice. Floats
differ in their last bit then, but an integer rounded from floats may differ by a whole step. Kernels written for a core, which
round by instructions of their own, fence their products themselves.
"""

from __future__ import annotations

from typing import Any

import tvm

from tvm_cascade.schedules.tir import PrimFunc, collect, dtype_of, replace, tirx


def rounded_products(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of functions with a fence behind every product of floats in those that turn floats to integers."""
    untyped: Any = mod
    return tvm.IRModule({gv: _rounded(func) for gv, func in mod.functions_items()}, attrs=untyped.attrs)


def _rounded(func: PrimFunc) -> PrimFunc:
    rounds = any(_is_float(cast.value) and not _is_float(cast) for cast in collect(func.body, tirx.Cast))
    return func.with_body(replace(func.body, tirx.Mul, lambda m: fenced(m) if _is_float(m) else m)) if rounds else func


def fenced(value: Any) -> Any:
    """Put a float, or a vector of floats, behind a fence: LLVM joins it with no operation behind."""
    return tirx.call_llvm_pure_intrin(dtype_of(value), "llvm.arithmetic.fence", value)


def _is_float(value: Any) -> bool:
    return "float" in dtype_of(value)
