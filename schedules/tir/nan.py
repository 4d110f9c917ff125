"""Maxima and minima of a NaN and a constant, which stay NaN in built code.

Back ends write the larger of `a` and `b` as `a > b ? a : b`, which is `b` if either is NaN. TVM's simplifier puts
constants second, so a clamped NaN would become its bound.
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.schedules.tir import PrimFunc, dtype_of, replace, tirx


def keep_nan(func: PrimFunc) -> PrimFunc:
    """Move the constant operand of every float maximum and minimum to the front. Simplifying undoes it."""
    body = func.body
    for kind in (tirx.Max, tirx.Min):
        body = replace(body, kind, _constant_first)
    return func.with_body(body)


def nan_kept() -> Any:
    """Return the pass that applies `keep_nan` to every function in a module."""
    return tirx.transform.prim_func_pass(lambda func, _mod, _context: keep_nan(func), opt_level=0, name="KeepNan")


def _constant_first(node: Any) -> Any:
    return type(node)(node.b, node.a) if "float" in dtype_of(node) and _is_constant(node.b) else node


def _is_constant(value: Any) -> bool:
    return isinstance(value.value if isinstance(value, tirx.Broadcast) else value, tirx.FloatImm)
