"""Normalizations along rows as exporters spell them out, rewritten to Relax's operators, which are one kernel each.

    q = x * x; m = mean(q, -1); y = x / sqrt(m + eps) * weight             ->   y = rms_norm(x, weight)
    d = x - mean(x, -1); m = mean(d * d, -1); y = d / sqrt(m + eps) * a + b   ->   y = layer_norm(x, a, b)

As several kernels, a normalization reads x twice or three times and writes a tensor of the size of x between. A square may be
a power of 2 too, the variance of x one operator, and the division a product with a reciprocal. Results differ by the last bits.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.passes.integer.expressions import constant_of, dtype_of, name_of, shape_of
from tvm_cascade.passes.relax_functions import bindings_of, without_dead_code
from tvm_cascade.passes.static_regions import loses_calls_out
from tvm_cascade.program.quant import NotLowered

Value = Any
_Definition = Callable[[Value], Value]
_RMS, _LAYER = "relax.nn.rms_norm", "relax.nn.layer_norm"


def with_whole_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite normalizations of float32 along the last axes, and remove operators that nobody reads any more.

    Returns `mod` itself if an unread call out of TVM would go with these.
    """

    @relax.expr_functor.mutator
    class Rewriter(relax.PyExprMutator):
        def visit_call_(self, op: Any) -> Any:
            call = self.visit_expr_post_order(op)
            form = _FORMS.get(name_of(call))
            if form is None or dtype_of(call) != "float32":
                return call
            alone = [readers[a] == 1 for a in op.args]
            try:
                made = form(call, alone, self._definition)
            except NotLowered:  # a symbolic shape
                return call
            return call if made is None else made

        def _definition(self, value: Value) -> Value:
            while isinstance(value, relax.Var) and (bound := self.lookup_binding(value)) is not None:
                value = bound
            return value

    readers: Counter[Value] = Counter()
    rewriter = Rewriter(mod.clone())
    for gv, func in mod.functions.items():
        if isinstance(func, relax.Function):
            readers = _readers(func)
            rewriter.builder_.update_func(gv, rewriter.visit_expr(func))
    rewritten = without_dead_code(rewriter.builder_.get())
    return mod if loses_calls_out(mod, rewritten) else rewritten


def _readers(func: Value) -> Counter[Value]:
    """Count how often each value is read, by bindings and as a result."""
    counts: Counter[Value] = Counter()

    def count(expr: Value) -> None:
        if isinstance(expr, relax.Var):
            counts[expr] += 1

    for binding in bindings_of(func):
        relax.analysis.post_order_visit(binding.value, count)
    relax.analysis.post_order_visit(func.body.body, count)
    return counts


@dataclass(frozen=True)
class _Roots:
    """The roots of rows' mean squares, plus epsilon."""

    centered: bool  # of a layer: the mean was subtracted before
    source: Value  # what is normalized
    axes: list[int]  # the last ones
    epsilon: float

    def norm(self) -> Value:
        """Return the normalization without a scale."""
        shape = [shape_of(self.source)[a] for a in self.axes]
        ones, zeros = (relax.const(np.full(shape, v, "float32"), "float32") for v in (1, 0))
        if self.centered:
            return relax.op.nn.layer_norm(self.source, ones, zeros, self.axes, self.epsilon)
        return relax.op.nn.rms_norm(self.source, ones, self.axes, self.epsilon)


def _divided(call: Value, _: list[bool], definition: _Definition) -> Value | None:
    roots = _roots_below(call.args[1], call.args[0], definition)
    return None if roots is None else roots.norm()


def _multiplied(call: Value, alone: list[bool], definition: _Definition) -> Value | None:
    """Return a value times its rows' reciprocal roots, or a normalization times a scale, as one normalization."""
    for value, other, single in zip(call.args, call.args[::-1], alone, strict=True):
        roots = _roots_above(other, value, definition)
        if roots is not None:
            return roots.norm()
        norm = definition(value)
        scale = _constant(other, norm) if single and name_of(norm) in (_RMS, _LAYER) else None
        if scale is not None:
            return _with_scale(norm, scale)
    return None


def _with_scale(norm: Value, scale: np.ndarray) -> Value | None:
    source, weight, *shift = norm.args
    held = [constant_of(v) for v in (weight, *shift)]
    if any(v is None for v in held) or (shift and np.any(held[1])):
        return None
    weight = relax.const((held[0] * scale).astype("float32"), "float32")
    axes, epsilon = [int(a) for a in norm.attrs.axes], float(norm.attrs.epsilon)
    if shift:
        return relax.op.nn.layer_norm(source, weight, shift[0], axes, epsilon)
    return relax.op.nn.rms_norm(source, weight, axes, epsilon)


def _added(call: Value, alone: list[bool], definition: _Definition) -> Value | None:
    """Return a layer's normalization plus a constant with a row's shape as one normalization."""
    for value, other, single in zip(call.args, call.args[::-1], alone, strict=True):
        norm = definition(value)
        more = _constant(other, norm) if single and name_of(norm) == _LAYER else None
        shift = constant_of(norm.args[2]) if more is not None else None
        if shift is not None and not shift.any():
            source, weight, _ = norm.args
            axes, epsilon = [int(a) for a in norm.attrs.axes], float(norm.attrs.epsilon)
            return relax.op.nn.layer_norm(source, weight, relax.const(more, "float32"), axes, epsilon)
    return None


def _constant(value: Value, norm: Value) -> np.ndarray | None:
    """Return a constant with an element for each of a normalized row; None for another value."""
    held = constant_of(value)
    if held is None or not hasattr(norm, "args"):
        return None
    row = shape_of(norm.args[1])
    long = held.shape[max(0, held.ndim - len(row)) :]
    return held.reshape(row) if long == row and prod(held.shape) == prod(row) else None


def _roots_above(value: Value, x: Value, definition: _Definition) -> _Roots | None:
    """Read the reciprocal roots of `x`'s mean squares."""
    call = definition(value)
    if name_of(call) == "relax.rsqrt":
        return _mean_squares(call.args[0], x, definition)
    if name_of(call) == "relax.divide" and _is_number(call.args[0], 1.0, definition):
        return _roots_below(call.args[1], x, definition)
    if name_of(call) == "relax.power" and _is_number(call.args[1], -0.5, definition):
        return _mean_squares(call.args[0], x, definition)
    return None


def _roots_below(value: Value, x: Value, definition: _Definition) -> _Roots | None:
    """Read the roots of `x`'s mean squares."""
    call = definition(value)
    if name_of(call) == "relax.sqrt":
        return _mean_squares(call.args[0], x, definition)
    if name_of(call) == "relax.power" and _is_number(call.args[1], 0.5, definition):
        return _mean_squares(call.args[0], x, definition)
    return None


def _mean_squares(value: Value, x: Value, definition: _Definition) -> _Roots | None:
    """Read the mean squares of `x` along the last axes, plus a number."""
    call = definition(value)
    if name_of(call) != "relax.add":
        return None
    for mean, more in (call.args, call.args[::-1]):
        epsilon, reduced = _number(more, definition), definition(mean)
        axes = _last_axes(reduced)
        if epsilon is None or axes is None:
            continue
        inner = _centered(x, axes, definition)
        if name_of(reduced) == "relax.variance":
            return _Roots(True, inner, axes, epsilon) if inner is not None and _same(reduced.args[0], inner) else None
        if name_of(reduced) == "relax.mean" and _is_square(reduced.args[0], x, definition):
            return _Roots(inner is not None, x if inner is None else inner, axes, epsilon)
    return None


def _centered(x: Value, axes: list[int], definition: _Definition) -> Value | None:
    """Return what `x` is without the mean of its rows; None for another value."""
    call = definition(x)
    if name_of(call) != "relax.subtract":
        return None
    source, mean = call.args[0], definition(call.args[1])
    fits = name_of(mean) == "relax.mean" and _same(mean.args[0], source) and _last_axes(mean) == axes
    return source if fits else None


def _last_axes(call: Value) -> list[int] | None:
    """Return the axes of a reduction that keeps its rank, if they are some of the last axes, negative; else None."""
    if name_of(call) not in ("relax.mean", "relax.variance") or not call.attrs.keepdims or call.attrs.axis is None:
        return None
    rank = len(shape_of(call))
    axes = sorted(int(a) % rank - rank for a in call.attrs.axis)
    return axes if axes == list(range(-len(axes), 0)) and len(axes) < rank else None


def _is_square(value: Value, x: Value, definition: _Definition) -> bool:
    call = definition(value)
    if name_of(call) == "relax.multiply":
        return all(_same(a, x) for a in call.args)
    if name_of(call) == "relax.power" and not _is_number(call.args[1], 2.0, definition):
        return False
    return name_of(call) in ("relax.square", "relax.power") and _same(call.args[0], x)


def _same(a: Value, b: Value) -> bool:
    return bool(a.same_as(b))


def _number(value: Value, definition: _Definition) -> float | None:
    held = constant_of(definition(value))
    return float(held.reshape(-1)[0]) if held is not None and held.size == 1 else None


def _is_number(value: Value, number: float, definition: _Definition) -> bool:
    return _number(value, definition) == number


_FORMS: dict[str, Callable[[Value, list[bool], _Definition], Value | None]] = {
    "relax.divide": _divided,
    "relax.multiply": _multiplied,
    "relax.add": _added,
}
