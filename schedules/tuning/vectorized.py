"""Loops that LLVM makes vectors of by itself: those over neighbouring elements, which it computes several at a time.

It does so with an innermost loop whose iterations are alike and independent: they store the next element, load the next ones or
always the same, and compute with what vectors have: no division, no integers of 64 bits, no call, no branch. A loop that only
copies is left out: that becomes a call of `memcpy`, or moves of words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from tvm_cascade.schedules.tir import dtype_of, elements, int_value, ir, sym, tirx

_BITS = 128  # of a vector
_LACKING = (ir.Call, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_OPERANDS = ("a", "b", "condition", "true_value", "false_value", "value")
_NARROW = (tirx.Min, tirx.Max, tirx.Cast)  # computed on elements as they are, whatever type they are widened to


def lanes_of(loop: Any) -> int:
    """Iterations of a loop that are computed at once; 1 where it is not made of vectors."""
    store, var = loop.body, loop.loop_var
    if not isinstance(store, tirx.BufferStore) or not _steps(store.indices, var, (1,)):
        return 1
    nodes = list(_parts(store.value))
    if type(store.value) is ir.TensorLoad or any(isinstance(n, _LACKING) or "64" in dtype_of(n) for n in nodes):
        return 1
    loads = [n for n in nodes if type(n) is ir.TensorLoad]
    if not loads or not all(_steps(load.indices, var, (0, 1)) for load in loads):
        return 1
    widths = [_bits(dtype_of(n)) for n in (store.value, *nodes) if not isinstance(n, (*_NARROW, tirx.IntImm))]
    return _BITS // max(_bits(dtype_of(store.value)), *widths)


def _parts(value: Any) -> Iterator[Any]:
    """An expression and all that it is computed from, indices of loads left out."""
    yield value
    if type(value) is not ir.TensorLoad:
        for name in _OPERANDS:
            if isinstance(operand := getattr(value, name, None), ir.Expr):
                yield from _parts(operand)


def _steps(indices: Any, var: Any, steps: Sequence[int]) -> bool:
    """Whether a place in memory moves on by one of `steps` an iteration."""
    listed = elements(indices)
    if len(listed) != 1 or "x" in dtype_of(listed[0]):
        return False
    linear: Any = sym.detect_linear_equation(listed[0], [var])
    return len(linear) == 2 and int_value(sym.Analyzer().simplify(linear[0])) in steps


@cache
def _bits(dtype: str) -> int:
    """Bits of an element type; those of booleans are of the byte that holds one."""
    return int("".join(c for c in dtype if c.isdigit()) or "8")
