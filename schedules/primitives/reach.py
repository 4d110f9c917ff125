"""Access analysis for stages: the slices (rows or columns) of a producer read by a slice of a stage.

Slice y of a stage reads the producer's slices from `(y * stride + first) // denominator` to `(y * stride + last) //
denominator`, both included; slices outside the tensor are padding. A convolution has denominator 1; depth_to_space and
nearest upscaling have their factor as denominator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm_cascade.schedules.tir import Expr, Var, int_value, ir, sym, tirx, uses


@dataclass(frozen=True, slots=True)
class Reach:
    """A producer's slices along an axis read by a reader's slice, as a function of the reader's slice."""

    stride: int
    first: int
    last: int
    denominator: int = 1

    def lowest(self, y: int) -> int:
        return (y * self.stride + self.first) // self.denominator

    def highest(self, y: int) -> int:
        return (y * self.stride + self.last) // self.denominator

    def hull(self, other: Reach) -> Reach | None:
        """Return the smallest reach that contains both; None for different rates."""
        if (self.stride, self.denominator) != (other.stride, other.denominator):
            return None
        return Reach(self.stride, min(self.first, other.first), max(self.last, other.last), self.denominator)


def reach_of(index: Expr, slice_var: Var, domains: Mapping[Var, int]) -> Reach | None:
    """Find the reach of an index expression over all values of the variables except `slice_var`; None if unknown.

    `domains` are the extents of all variables in the index, which start from 0.
    """
    analyzer = sym.Analyzer()
    for var, extent in domains.items():
        if not var.same_as(slice_var):
            analyzer.bind(var, ir.Range(0, extent))
    return _reach(analyzer.simplify(index), slice_var, analyzer)


def _reach(index: Any, slice_var: Var, analyzer: Any) -> Reach | None:
    if isinstance(index, tirx.FloorDiv):
        inner, divisor = _reach(index.a, slice_var, analyzer), int_value(index.b)
        if inner is None or inner.denominator != 1 or not divisor or divisor < 0:
            return None
        return Reach(inner.stride, inner.first, inner.last, divisor)
    if isinstance(index, tirx.Add):
        for quotient, rest in ((index.a, index.b), (index.b, index.a)):
            if isinstance(quotient, tirx.FloorDiv) and not uses(rest, slice_var):
                return _shifted(_reach(quotient, slice_var, analyzer), rest, analyzer)
    linear: Any = sym.detect_linear_equation(index, [slice_var])
    stride = int_value(analyzer.simplify(linear[0])) if len(linear) == 2 else None
    if stride is None or stride < 0:
        return None
    bounds = _bounds(linear[1], analyzer)
    return None if bounds is None else Reach(stride, *bounds)


def _shifted(reach: Reach | None, by: Expr, analyzer: Any) -> Reach | None:
    bounds = _bounds(by, analyzer)
    if reach is None or bounds is None:
        return None
    d = reach.denominator
    return Reach(reach.stride, reach.first + bounds[0] * d, reach.last + bounds[1] * d, d)


def _bounds(expr: Expr, analyzer: Any) -> tuple[int, int] | None:
    bound = analyzer.const_int_bound(expr)
    low, high = int(bound.min_value), int(bound.max_value)
    return None if low < -(1 << 40) or high > 1 << 40 else (low, high)
