"""Counting a kernel's multiply-accumulates (MACs): statically from the loop bounds, or by instrumenting the code.

A MAC is a store that adds a product to the element it overwrites, if both factors read memory. If padding was turned
into loop bounds (`schedules.tir.padding`), both methods count only the taps inside the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import PrimFunc, Var, ir, tirx, tvm_ffi

_MOST_POINTS = 1 << 24  # limit on the iterations of dependent loops, which are enumerated
Loop = tuple[Var, Any, Any]  # variable, first value, extent


def is_mac(store: Any) -> bool:
    """Test whether a store is a multiply-accumulate."""
    value = store.value
    if not isinstance(value, tirx.Add):
        return False
    for own, other in ((value.a, value.b), (value.b, value.a)):
        while isinstance(other, tirx.Cast):
            other = other.value
        if tir.is_own(own, store) and isinstance(other, tirx.Mul):
            return bool(tir.loads(other.a)) and bool(tir.loads(other.b))
    return False


def count_macs(func: PrimFunc, dtype: str = "int64") -> PrimFunc:
    """Add a last parameter `macs` (pointer to one `dtype`) to the kernel, incremented at every multiply-accumulate."""
    handle = tir.pointer_var("macs", dtype)
    counter = tirx.decl_buffer((1,), dtype, "macs_data", data=handle)
    one = tirx.const(1, dtype)

    def count(store: Any) -> Any:
        if not is_mac(store):
            return store
        return tirx.SeqStmt([store, tirx.BufferStore(counter, counter[0] + one, [tirx.const(0, "int32")])])

    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, count))
    body = tirx.SeqStmt([tirx.DeclBuffer(counter, data=handle), body])
    return tirx.PrimFunc([*func.params, handle], body, func.ret_type, attrs=func.attrs)


def macs_of(func: PrimFunc, rows: int = 1) -> int:
    """Count the multiply-accumulates of calling a kernel for `y` in `range(rows)`, by evaluating its loop bounds."""
    y = func.params[-1]
    return sum(_iterations([(y, tirx.const(0, "int32"), tirx.const(rows, "int32")), *path]) for path in _paths(func))


def iterations_where(extents: Mapping[Var, int], conditions: Sequence[Any]) -> int:
    """Count a loop nest's iterations that meet all conditions; `extents` belong to the loops, which start at 0."""
    groups: list[tuple[list[Var], list[Any]]] = []  # conditions that share loops, and these loops
    for condition in conditions:
        used = [v for v in extents if tir.uses(condition, v)]
        linked = [g for g in groups if any(v in g[0] for v in used)]
        groups = [g for g in groups if all(g is not other for other in linked)]
        own = list(dict.fromkeys([*used, *(v for g in linked for v in g[0])]))
        groups.append((own, [condition, *(c for g in linked for c in g[1])]))
    total = prod(extent for v, extent in extents.items() if all(v not in own for own, _ in groups))
    for own, needed in groups:
        shape = [extents[v] for v in own]
        env = dict(zip(own, np.ogrid[tuple(slice(0, n) for n in shape)], strict=True))
        met = [np.broadcast_to(evaluate(c, env), shape) for c in needed]
        total *= int(np.logical_and.reduce(met).sum())
    return total


def _paths(func: PrimFunc) -> list[list[Loop]]:
    """Find for every multiply-accumulate the loops and conditions around it, outermost first."""
    found: list[list[Loop]] = []

    def walk(node: Any, around: list[Loop]) -> None:
        if isinstance(node, tirx.SeqStmt):
            for inner in node.seq:
                walk(inner, around)
        elif isinstance(node, tirx.For):
            walk(node.body, [*around, (node.loop_var, node.min, node.extent)])
        elif isinstance(node, tirx.BufferStore):
            if is_mac(node):
                found.append(around)
        elif isinstance(node, tirx.IfThenElse):
            walk(node.then_case, [*around, _once(node.condition)])
            if node.else_case is not None:
                walk(node.else_case, [*around, _once(tirx.Not(node.condition))])
        elif hasattr(node, "body"):
            walk(node.body, around)

    walk(func.body, [])
    return found


def _once(condition: Any) -> Loop:
    """Return a condition as a loop with a single iteration or none."""
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    return (tirx.Var("once", "int32"), zero, tirx.Select(condition, one, zero))


def _iterations(loops: list[Loop]) -> int:
    """Count the runs of a loop nest's body: the product over loop groups with mutually dependent bounds."""
    groups: list[list[Loop]] = []
    for loop in loops:
        linked = [g for g in groups if any(tir.uses(loop[1], v) or tir.uses(loop[2], v) for v, _, _ in g)]
        groups = [g for g in groups if all(g is not other for other in linked)]
        groups.append([inner for g in linked for inner in g] + [loop])
    total = 1
    for group in groups:
        total *= _enumerate(group)
    return total


def _enumerate(group: list[Loop]) -> int:
    env: dict[Var, Any] = {}
    weights = np.ones(1, np.int64)  # iterations per point of the enumeration
    for k, (var, low, extent) in enumerate(group):
        lows = np.broadcast_to(evaluate(low, env), weights.shape)
        extents = np.maximum(np.broadcast_to(evaluate(extent, env), weights.shape), 0)
        if not any(tir.uses(e, var) for _, *bounds in group[k + 1 :] for e in bounds):
            weights = weights * extents
            continue
        if int(extents.sum()) > _MOST_POINTS:
            raise ValueError(f"more than {_MOST_POINTS} iterations to count")
        starts = np.repeat(np.cumsum(extents) - extents, extents)
        env = {v: np.repeat(np.broadcast_to(a, weights.shape), extents) for v, a in env.items()}
        env[var] = np.arange(int(extents.sum())) - starts + np.repeat(lows, extents)
        weights = np.repeat(weights, extents)
    return int(weights.sum())


_BINARY: Mapping[type, Any] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Div: lambda a, b: (np.sign(a) * np.sign(b)) * (np.abs(a) // np.abs(b)),
    tirx.Mod: np.fmod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}


def evaluate(expr: Any, env: Mapping[Var, Any]) -> Any:
    """Evaluate an integer expression with arrays for variables (numpy broadcasting applies)."""
    if isinstance(expr, int):
        return np.int64(expr)
    if isinstance(expr, tirx.IntImm):
        return np.int64(expr.value)
    if isinstance(expr, tirx.Var):
        return env[expr]
    if isinstance(expr, tirx.Cast):
        return evaluate(expr.value, env)
    if isinstance(expr, tirx.Not):
        return np.logical_not(evaluate(expr.a, env))
    if type(expr) in _BINARY:
        return _BINARY[type(expr)](evaluate(expr.a, env), evaluate(expr.b, env))
    if isinstance(expr, tirx.Select) or tir.is_if_then_else(expr):
        parts = expr.args if isinstance(expr, ir.Call) else (expr.condition, expr.true_value, expr.false_value)
        return np.where(*(evaluate(p, env) for p in parts))
    raise ValueError(f"cannot evaluate {type(expr).__name__}")
