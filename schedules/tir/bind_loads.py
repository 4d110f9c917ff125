"""Bind the loads in operands of max, min and reinterpret to variables, since TVM's C back end may reuse stale loads.

The back end evaluates these operands into its own variables. If the same operand text occurs again in the same block it
reuses the variable, even if the memory was written in between:

    a[0] = max(a[0], x[i]);          int32_t v = a[0]; int32_t w = x[i]; a[0] = v > w ? v : w;
    b[0] = max(a[0], x[i]);          b[0] = v > w ? v : w;                                       <- the old a[0]

`bind_loads` binds every such operand that reads memory to a new variable before the statement, where the back end
evaluates the operand anyway. Operands within a branch of `if_then_else` are left unchanged: the back end's variables
are local to the branch there, and the operands outside no longer contain loads.
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, collect, ir, is_if_then_else, loads, replace, tirx, tvm_ffi

_REINTERPRET = "tirx.reinterpret"
_STATEMENTS = {  # by kind: the field of the expression that is evaluated first, and how to rebuild with another one
    tirx.BufferStore: ("value", lambda s, value: tirx.BufferStore(s.buffer, value, s.indices)),
    tirx.Bind: ("value", lambda s, value: tirx.Bind(s.var, value)),
    tirx.Evaluate: ("value", lambda _, value: tirx.Evaluate(value)),
    tirx.IfThenElse: ("condition", lambda s, value: tirx.IfThenElse(value, s.then_case, s.else_case)),
}


def bind_loads(func: PrimFunc) -> PrimFunc:
    """Rewrite `b[0] = max(a[0], 3); --> now = a[0]; b[0] = max(now, 3);`."""
    body = func.body
    for kind in _STATEMENTS:
        body = replace(body, kind, _bound)
    return func.with_body(body)


def _bound(stmt: Any) -> Stmt:
    """Bind the loads in a statement's operands before the statement."""
    binds: list[Stmt] = []
    field, rebuilt = _STATEMENTS[type(stmt)]
    value = getattr(stmt, field)
    lazy = [n for c in collect(value, ir.Call) if is_if_then_else(c) for b in c.args[1:] for n in _operators(b)]

    def named(operand: Expr) -> Expr:
        if not loads(operand):
            return operand
        binds.append(tirx.Bind(tirx.Var("now", operand.ty), operand))
        return binds[-1].var

    def change(node: Any) -> Any:
        if any(node.same_as(n) for n in lazy):
            return node
        if isinstance(node, ir.Call):
            return ir.Call(node.op, [named(a) for a in node.args], ret_ty=node.ty) if _reinterprets(node) else node
        return type(node)(named(node.a), named(node.b))

    value = tvm_ffi.structural_map(value, [(k, change) for k in (tirx.Max, tirx.Min, ir.Call)], order="post")
    if not binds:
        return stmt
    return tirx.SeqStmt([*binds, rebuilt(stmt, value)])


def _operators(node: Any) -> list[Any]:
    calls = [c for c in collect(node, ir.Call) if _reinterprets(c)]
    return [*collect(node, tirx.Max), *collect(node, tirx.Min), *calls]


def _reinterprets(call: Any) -> bool:
    return getattr(call.op, "name", "") == _REINTERPRET
