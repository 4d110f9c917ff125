"""Loop splitting at the iterations where a condition changes, so concats and padded rows test no elements.

    before: for c in range(24):                                     after: for c in range(16): out[c] = a[c]
                out[c] = a[c] if c < 16 else b[c - 16]                     for c in range(8): out[c + 16] = b[c]

Only for comparisons of the loop variable with constants, and for at most `MOST_PIECES` loops: each is more code.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, i32, ir, sym, tirx, tvm_ffi

MOST_PIECES = 8


def split_conditions(func: PrimFunc) -> PrimFunc:
    """Split loops with constant extent that start from 0, without annotations and without allocations in the body."""

    def on_for(loop: Any, mutator: Any) -> Any:
        body = mutator.mutate(loop.body)
        whole = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)
        extent = tir.int_value(loop.extent)
        if extent is None or tir.int_value(loop.min) != 0 or loop.annotations or tir.collect(body, tirx.AllocBuffer):
            return whole
        cuts = _cuts(body, loop.loop_var, extent)
        if not 0 < len(cuts) < MOST_PIECES:
            return whole
        edges = [0, *cuts, extent]
        return tirx.SeqStmt([_part(whole, a, b) for a, b in pairwise(edges)])

    body = tvm_ffi.structural_mutate(func.body, [(tirx.For, on_for)])
    return func if body is func.body else func.with_body(body)


def _cuts(body: Stmt, var: Var, extent: int) -> list[int]:
    """List the values of `var` in `(0, extent)` at which some condition in the body changes."""
    cuts: set[int] = set()
    for choice in tir.collect(body, ir.Call):
        if tir.is_if_then_else(choice):
            cuts |= {c for part in tir.conjuncts(choice.args[0]) for c in _change(part, var)}
    return sorted(c for c in cuts if 0 < c < extent)


def _change(condition: Any, var: Var) -> Sequence[int]:
    """Return the value of `var` from which a comparison with a constant has another result; empty for any other
    condition.
    """
    if not isinstance(condition, (tirx.LT, tirx.LE, tirx.GT, tirx.GE)) or not tir.uses(condition, var):
        return ()
    linear: Any = sym.detect_linear_equation(condition.a - condition.b, [var])
    if len(linear) != 2:
        return ()
    analyzer = sym.Analyzer()
    factor, offset = (tir.int_value(analyzer.simplify(e)) for e in linear)
    if factor is None or offset is None or abs(factor) != 1:
        return ()
    zero = -offset * factor  # where both sides are equal
    beyond = isinstance(condition, (tirx.LE, tirx.GT)) == (factor > 0)
    return (zero + 1,) if beyond else (zero,)


def _part(loop: Any, start: int, stop: int) -> Stmt:
    """Build a loop over iterations `[start, stop)`, with conditions resolved that are constant in all."""
    var = tirx.Var(loop.loop_var.name, "int32")
    body = fresh(tir.substitute(loop.body, {loop.loop_var: var + start} if start else {loop.loop_var: var}))
    analyzer = sym.Analyzer()
    analyzer.bind(var, ir.Range(0, stop - start))

    def resolve(call: Any) -> Expr:
        if not tir.is_if_then_else(call):
            return call
        known = analyzer.simplify(call.args[0])
        value = tir.int_value(known)
        if value is None:
            return tirx.if_then_else(known, call.args[1], call.args[2])
        return call.args[1] if value else call.args[2]

    body = tir.replace(body, ir.Call, resolve)
    return tirx.For(var, i32(0), i32(stop - start), loop.kind, body)


def fresh(body: Stmt) -> Stmt:
    """Copy `body` with new loop variables: copies must not share variables."""
    inner = {f.loop_var: tirx.Var(f.loop_var.name, "int32") for f in tir.collect(body, tirx.For)}

    def rename(loop: Any) -> Any:
        return tirx.For(
            inner[loop.loop_var], loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, loop.annotations
        )

    return tir.substitute(tir.replace(body, tirx.For, rename), inner) if inner else body
