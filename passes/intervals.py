"""Strided interval analysis of TIR index expressions.

A `Strided(lo, hi, step)` stands for `{lo, lo + step, ..., hi}`. An evaluation's result contains every value the
expression can take while the variables range over their intervals: exactly these for a variable with a constant factor
and offset, perhaps more for sums with different steps, divisions, clamps and choices, never fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from tvm_cascade.schedules.tir import Var, ir, is_if_then_else, tirx


class NotUnderstoodError(Exception):
    """An index expression uses arithmetic that this module does not support; the message is the reason."""


class Strided(NamedTuple):
    """The integers `lo, lo + step, ..., hi`, both ends included."""

    lo: int
    hi: int
    step: int  # 0 for a single value

    @classmethod
    def full(cls, extent: int) -> Strided:
        return cls(0, extent - 1, 1 if extent > 1 else 0)


Env = Sequence[Strided]
Evaluator = Callable[[Env], Strided]


def is_affine(expr: Any) -> bool:
    """Test that an index is a sum of variables with constant factors."""
    if isinstance(expr, (tirx.Add, tirx.Sub)):
        return is_affine(expr.a) and is_affine(expr.b)
    if isinstance(expr, tirx.Mul):
        return any(isinstance(e, tirx.IntImm) for e in (expr.a, expr.b)) and all(is_affine(e) for e in (expr.a, expr.b))
    return isinstance(expr, (tirx.Var, tirx.IntImm)) or (isinstance(expr, tirx.Cast) and is_affine(expr.value))


def hull(a: Strided, b: Strided) -> Strided:
    """Return a strided interval around both `a` and `b`."""
    return Strided(min(a.lo, b.lo), max(a.hi, b.hi), gcd(a.step, b.step, abs(a.lo - b.lo)))


def clip(a: Strided, extent: int) -> Strided:
    """Remove the values outside `[0, extent)` from `a`; return `a` unchanged if no value would remain."""
    if (a.lo >= 0 and a.hi < extent) or a.hi < 0 or a.lo >= extent:
        return a
    if a.step == 0:
        return a
    lo = a.lo + max(0, -(a.lo // a.step)) * a.step
    hi = a.hi - max(0, -((extent - 1 - a.hi) // a.step)) * a.step
    return Strided(lo, hi, a.step if hi > lo else 0) if lo <= hi else a


def _span(lo: Any, hi: Any) -> Strided:
    return Strided(lo, hi, 0 if lo == hi else 1)


def _between(a: Strided, change: Callable[[Any], Any]) -> Strided:
    """Return the image of `a` under the nondecreasing function `change`."""
    return Strided(change(a.lo), change(a.hi), 1)


def _add(a: Strided, b: Strided) -> Strided:
    return Strided(a.lo + b.lo, a.hi + b.hi, gcd(a.step, b.step))


def _sub(a: Strided, b: Strided) -> Strided:
    return Strided(a.lo - b.hi, a.hi - b.lo, gcd(a.step, b.step))


def _mul(a: Strided, b: Strided) -> Strided:
    if a.step == 0 and a.lo == a.hi:
        a, b = b, a
    ends = [p * q for p in (a.lo, a.hi) for q in (b.lo, b.hi)]
    lo, hi = min(ends), max(ends)
    if b.lo == b.hi and isinstance(b.lo, int):
        return Strided(lo, hi, a.step * abs(b.lo))
    return _span(lo, hi)


def _floordiv(a: Strided, b: Strided) -> Strided:
    if b.lo != b.hi or b.lo <= 0:
        raise NotUnderstoodError("an index is divided by a variable")
    lo, hi = a.lo // b.lo, a.hi // b.lo
    return Strided(lo, hi, a.step // b.lo) if a.step and a.step % b.lo == 0 else _span(lo, hi)


def _truncdiv(a: Strided, b: Strided) -> Strided:
    if isinstance(a.lo, np.floating) or isinstance(b.lo, np.floating):
        ends: list[Any] = [p / q for p in (a.lo, a.hi) for q in (b.lo, b.hi)]
        return Strided(min(ends), max(ends), 0 if a.lo == a.hi and b.lo == b.hi else 1)
    outer = _floordiv(a, b)
    return outer if a.lo >= 0 else Strided(outer.lo, outer.hi + 1, 1)


def _floormod(a: Strided, b: Strided) -> Strided:
    if b.lo != b.hi or b.lo <= 0:
        raise NotUnderstoodError("an index is taken modulo a variable")
    if a.lo // b.lo == a.hi // b.lo:
        return Strided(a.lo % b.lo, a.hi % b.lo, a.step)
    return Strided.full(b.lo)


def _truncmod(a: Strided, b: Strided) -> Strided:
    if a.lo < 0:
        raise NotUnderstoodError("the remainder of an index that may be negative")
    return _floormod(a, b)


def _extreme(choose: Callable[[Any, Any], Any]) -> Callable[[Strided, Strided], Strided]:
    def apply(a: Strided, b: Strided) -> Strided:
        lo, hi = choose(a.lo, b.lo), choose(a.hi, b.hi)
        return a if (lo, hi) == (a.lo, a.hi) else _span(lo, hi)

    return apply


_BINARY: Mapping[type, Callable[[Strided, Strided], Strided]] = {
    tirx.Add: _add,
    tirx.Sub: _sub,
    tirx.Mul: _mul,
    tirx.FloorDiv: _floordiv,
    tirx.Div: _truncdiv,
    tirx.FloorMod: _floormod,
    tirx.Mod: _truncmod,
    tirx.Min: _extreme(min),
    tirx.Max: _extreme(max),
}

_ROUNDINGS: Mapping[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "round": lambda v: np.trunc(v + np.copysign(np.float32(0.5), v)),
}


def compile_index(expr: Any, slots: Mapping[Var, int], tables: Mapping[Var, np.ndarray]) -> Evaluator:
    """Compile `expr` to a Python function from the variables' intervals to the values' interval.

    `slots` is each variable's position in the environment; `tables` are the constant arrays an index may be loaded
    from. Raises `NotUnderstoodError` for unsupported arithmetic.
    """
    if isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
        value: Any = int(expr.value) if isinstance(expr, tirx.IntImm) else np.float32(expr.value)
        constant = Strided(value, value, 0)
        return lambda env: constant
    if isinstance(expr, tirx.Var):
        if expr not in slots:
            raise NotUnderstoodError(f"an index uses {expr.name}, which is no axis of the operator")
        place = slots[expr]
        return lambda env: env[place]
    if isinstance(expr, ir.TensorLoad):
        return _compile_lookup(expr, slots, tables)
    if isinstance(expr, tirx.Cast):
        return _compile_cast(expr, compile_index(expr.value, slots, tables))
    if type(expr) in _BINARY:
        apply = _BINARY[type(expr)]
        left, right = compile_index(expr.a, slots, tables), compile_index(expr.b, slots, tables)
        return lambda env: apply(left(env), right(env))
    return _compile_choice(expr, slots, tables)


def _compile_choice(expr: Any, slots: Mapping[Var, int], tables: Mapping[Var, np.ndarray]) -> Evaluator:
    if is_if_then_else(expr) or isinstance(expr, tirx.Select):
        arms = expr.args[1:] if isinstance(expr, ir.Call) else (expr.true_value, expr.false_value)
        yes, no = (compile_index(arm, slots, tables) for arm in arms)
        return lambda env: hull(yes(env), no(env))
    name = getattr(getattr(expr, "op", None), "name", type(expr).__name__).rpartition(".")[2]
    if name in _ROUNDINGS:
        inner, rounding = compile_index(expr.args[0], slots, tables), _ROUNDINGS[name]
        return lambda env: _between(inner(env), rounding)
    raise NotUnderstoodError(f"an index uses {name}")


def _compile_cast(expr: Any, inner: Evaluator) -> Evaluator:
    target = str(expr.ty.dtype)
    if target.startswith("float"):
        return lambda env: _between(inner(env), np.float32)

    def cast(env: Env) -> Strided:
        value = inner(env)
        return _span(int(value.lo), int(value.hi)) if isinstance(value.lo, np.floating) else value

    return cast


def _compile_lookup(expr: Any, slots: Mapping[Var, int], tables: Mapping[Var, np.ndarray]) -> Evaluator:
    if expr.source not in tables:
        raise NotUnderstoodError("an index is read from a tensor")
    table = tables[expr.source]
    axes = [compile_index(i, slots, tables) for i in expr.indices]

    def look_up(env: Env) -> Strided:
        part = table[tuple(slice(max(a.lo, 0), a.hi + 1) for a in (f(env) for f in axes))]
        return _span(int(part.min()), int(part.max()))

    return look_up
