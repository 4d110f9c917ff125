"""Padding conditions turned into bounds of the reduction loops.

    before: for ry in range(3):                              after: for ry in range(max(0, 1 - y), min(3, H + 1 - y)):
                acc += (if 1 <= y + ry <= H: x[y + ry - 1]               acc += (x[y + ry - 1] - zp) * w[ry]
                        else: zp) - zp) * w[ry]

Allowed if the padding's value leaves the accumulator unchanged: sums of zeros, and maxima (minima) with padding no
larger (smaller) than the start value. A condition that depends on no reduction loop becomes a guard around the whole
update; if padding changes the accumulator, the condition stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Expr, PrimFunc, Var, i32, ir, sym, tirx, tvm_ffi
from tvm_cascade.schedules.tir.nan import without_nan


def conditions_to_bounds(func: PrimFunc) -> PrimFunc:
    """Apply the rewrite to every update of a lowered function; loops keep their annotations."""
    rewriter = _Rewriter(_initial_values(func))
    body = tvm_ffi.structural_mutate(func.body, [(tirx.For, rewriter.on_for), (tirx.BufferStore, rewriter.on_store)])
    return func if body is func.body else func.with_body(body)


def skipped_conditions(sum_update: Any) -> list[Expr]:
    """Return the padding conditions removed from a sum's update by the rewrite; without them the update always runs."""
    choice = _Rewriter({}).skipped(sum_update)
    return [] if choice is None else tir.conjuncts(choice.args[0])


class _Rewriter:
    def __init__(self, initial: Mapping[Var, Any]) -> None:
        self._analyzer = sym.Analyzer()
        self._loops: list[Any] = []
        self._bounds: dict[Var, tuple[list[Expr], list[Expr]]] = {}  # loop -> lower, upper bounds
        self._initial = initial

    def on_for(self, loop: Any, mutator: Any) -> Any:
        self._loops.append(loop)
        body = mutator.mutate(loop.body)
        self._loops.pop()
        low, high = loop.min, loop.min + loop.extent
        lows, highs = self._bounds.pop(loop.loop_var, ([], []))
        for bound in lows:
            low = tirx.max(low, bound)
        for bound in highs:
            high = tirx.min(high, bound)
        low = self._analyzer.simplify(low)
        extent = self._analyzer.simplify(high - low) if lows or highs else loop.extent
        inner = [e for f in tir.collect(body, tirx.For) for e in (f.min, f.extent)]
        if tir.int_value(low) != 0 and any(tir.uses(e, loop.loop_var) for e in inner):
            # TVM's CanonicalizeLoop forgets the bounds of inner loops when it moves a loop to 0: leave it nothing to do
            step = tirx.Var(loop.loop_var.name, "int32")
            body = tir.substitute(body, {loop.loop_var: step + low})
            return tirx.For(step, i32(0), extent, loop.kind, body, loop.thread_binding, loop.annotations)
        return tirx.For(loop.loop_var, low, extent, loop.kind, body, loop.thread_binding, loop.annotations)

    def on_store(self, store: Any, _mutator: Any) -> Any:
        """Remove the padding from an update; conditions that cannot become loop bounds become guards."""
        choice = self.skipped(store)
        if choice is None:
            return store
        conditions = [c for c in tir.conjuncts(choice.args[0]) if not self._to_bound(c)]
        update = tirx.BufferStore(store.buffer, _exchange(store.value, choice, choice.args[1]), store.indices)
        return tirx.IfThenElse(reduce(tirx.And, conditions), update, None) if conditions else update

    def skipped(self, store: Any) -> Any | None:
        """Return the only choice in an update's value, if its padding term leaves the accumulator unchanged."""
        choices = [c for c in tir.collect(store.value, ir.Call) if tir.is_if_then_else(c)]
        return choices[0] if len(choices) == 1 and self._contributes_nothing(store, choices[0]) else None

    def _contributes_nothing(self, store: Any, choice: Any) -> bool:
        value = without_nan(store.value)
        if isinstance(value, tirx.Add):
            for own, other in ((value.a, value.b), (value.b, value.a)):
                if tir.is_own(own, store):
                    return self._is_zero(_exchange(other, choice, choice.args[2]))
        if isinstance(value, (tirx.Max, tirx.Min)):
            for own, other in ((value.a, value.b), (value.b, value.a)):
                if tir.is_own(own, store):
                    return self._is_absorbed(value, store.buffer, _exchange(other, choice, choice.args[2]))
        return False

    def _is_zero(self, value: Any) -> bool:
        """Test that a value is zero for any operands (float zeros of either sign count)."""
        if isinstance(value, tirx.Mul):
            return self._is_zero(value.a) or self._is_zero(value.b)
        if isinstance(value, tirx.Cast):
            return self._is_zero(value.value)
        if isinstance(value, tirx.FloatImm):
            return float(value.value) == 0.0
        simplified = self._analyzer.simplify(value)
        return tir.int_value(simplified) == 0

    def _is_absorbed(self, value: Any, buffer: Var, padding: Any) -> bool:
        start = self._initial.get(buffer)
        pad, first = _number(self._analyzer.simplify(padding)), _number(start)
        if pad is None or first is None:
            return False
        return pad <= first if isinstance(value, tirx.Max) else pad >= first

    def _to_bound(self, condition: Any) -> bool:
        """Turn a comparison into a bound on the innermost loop variable in it; return whether that was possible.

        The loop has to surround this update alone.
        """
        if isinstance(condition, (tirx.LE, tirx.LT)):
            slack = condition.b - condition.a
        elif isinstance(condition, (tirx.GE, tirx.GT)):
            slack = condition.a - condition.b
        else:
            return False
        if isinstance(condition, (tirx.LT, tirx.GT)):
            slack = slack - 1  # now: slack >= 0
        own = [f for f in self._loops if len(tir.stores(f.body)) == 1]  # loops around this update alone
        loop = next((f for f in reversed(own) if tir.uses(slack, f.loop_var)), None)
        linear: Any = sym.detect_linear_equation(slack, [loop.loop_var]) if loop is not None else ()
        factor = tir.int_value(self._analyzer.simplify(linear[0])) if len(linear) == 2 else None
        if loop is None or not factor:
            return False
        lows, highs = self._bounds.setdefault(loop.loop_var, ([], []))
        if factor > 0:
            lows.append(self._analyzer.simplify(tirx.floordiv(factor - 1 - linear[1], factor)))
        else:
            highs.append(self._analyzer.simplify(tirx.floordiv(linear[1], -factor) + 1))
        return True


def _exchange(value: Expr, old: Any, new: Expr) -> Expr:
    return tvm_ffi.structural_map(value, (type(old), lambda c: new if c.same_as(old) else c))


def _initial_values(func: PrimFunc) -> dict[Var, Any]:
    """Return by buffer the single constant stored to it; buffers with several stored constants are left out."""
    constants: dict[Var, list[Any]] = {}
    for store in tir.collect(func.body, tirx.BufferStore):
        if _number(store.value) is not None:
            constants.setdefault(store.buffer, []).append(store.value)
    return {buffer: values[0] for buffer, values in constants.items() if len({_number(v) for v in values}) == 1}


def _number(value: Any) -> float | int | None:
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    return None if value is None else tir.int_value(value)
