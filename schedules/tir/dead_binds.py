"""Removal of unused bindings and buffers, left over when simplification inlines cheap values.

C compilers drop unused variables, but warn about each.
"""

from __future__ import annotations

from collections import Counter

from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, collect, ir, replace, tirx

_IMPURE = ("call_extern", "call_intrin", "call_llvm_intrin", "call_packed", "call_cpacked")


def remove_dead_binds(func: PrimFunc) -> PrimFunc:
    """Rewrite `a = x + 1; b = a * 2; c = f(x); out[0] = x; --> f(x); out[0] = x;`."""
    while True:
        count = Counter(collect(func.body, tirx.Var))
        changed: list[Stmt] = []

        def drop(bind: Stmt, count: Counter[Expr] = count, changed: list[Stmt] = changed) -> Stmt:
            if count[bind.var] > 1:
                return bind
            changed.append(bind)
            return _nothing() if _is_pure(bind.value) else tirx.Evaluate(bind.value)

        def forget(bind: Stmt, count: Counter[Expr] = count, changed: list[Stmt] = changed) -> Stmt:
            if count[bind.buffer] > 1:
                return bind
            changed.append(bind)
            return _nothing()

        body = replace(func.body, tirx.Bind, drop)
        body = replace(replace(body, tirx.AllocBuffer, forget), tirx.DeclBuffer, forget)
        if not changed:
            return func
        func = func.with_body(body)


def _nothing() -> Stmt:
    return tirx.Evaluate(tirx.const(0, "int32"))


def _is_pure(value: Expr) -> bool:
    calls = collect(value, ir.Call)
    return not any(isinstance(c.op, ir.GlobalVar) or c.op.name.rsplit(".", 1)[-1] in _IMPURE for c in calls)
