"""Innermost loops over neighbouring elements, which LLVM turns into vectors or copies by itself.

LLVM vectorizes if iterations are alike and independent: they store the next element, load the next ones or always the
same, and compute with vector operations: no division of integers, no 64-bit integers, no call, no branch. Floats are
divided lane by lane. A loop that only copies becomes word moves, or a call to `memcpy`, with newlib's instruction count
on Armv7-M.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from tvm_cascade.schedules.rules.elementary import IN_VECTORS
from tvm_cascade.schedules.tir import collect, dtype_of, elements, int_value, ir, is_if_then_else, sym, tirx

_BITS = 128  # of a vector
_WORD, _LINE = 4, 16  # bytes that an instruction moves, and an iteration of `memcpy`
_MOVED = 4  # words that are moved without a call
# instructions of a call: its own, and by what it has left to copy
_CALLED, _EACH_LINE, _EACH_WORD, _EACH_BYTE = (20, 10, 4, 1)
_LACKING = (tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_POLYNOMIALS = tuple(f"tirx.{name}" for name in IN_VECTORS)  # expressions without calls in the kernels
_COMPARED = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_OPERANDS = ("a", "b", "condition", "true_value", "false_value", "value")
_NARROW = (tirx.Min, tirx.Max, tirx.Cast)  # computed on elements as they are, whatever type they are widened to


def lanes_of(loop: Any) -> int:
    """Return the iterations of a loop computed at once; 1 if it is not vectorized."""
    store, var = loop.body, loop.loop_var
    if not isinstance(store, tirx.BufferStore) or not _steps(store.indices, var, (1,)):
        return 1
    nodes = list(_parts(store.value))
    if type(store.value) is ir.TensorLoad or any(isinstance(n, _LACKING) or "64" in dtype_of(n) for n in nodes):
        return 1
    if any(type(n) is tirx.Div and dtype_of(n) != "float32" for n in nodes):
        return 1
    if any(isinstance(n, ir.Call) and getattr(n.op, "name", "") not in _POLYNOMIALS for n in nodes):
        return 1
    if any(isinstance(n, _COMPARED) and dtype_of(n.a) == "float32" for n in nodes):
        return 1  # a fence keeps NaN (`schedules.tir.nan.keep_nan_in_vectors`), and the loop from vectors
    loads = [n for n in nodes if type(n) is ir.TensorLoad]
    if not loads or not all(_steps(load.indices, var, (0, 1)) for load in loads):
        return 1
    widths = [_bits(dtype_of(n)) for n in (store.value, *nodes) if not isinstance(n, (*_NARROW, tirx.IntImm))]
    return _BITS // max(_bits(dtype_of(store.value)), *widths)


def copied_bytes(loop: Any) -> int:
    """Return the bytes an iteration copies between consecutive places, the source possibly chosen before the loop; 0
    for any other loop.
    """
    store, var = loop.body, loop.loop_var
    if not isinstance(store, tirx.BufferStore) or not _steps(store.indices, var, (1,)):
        return 0
    sources = [store.value]
    if is_if_then_else(store.value):
        condition, *sources = elements(store.value.args)
        if any(v.same_as(var) for v in collect(condition, tirx.Var)):
            return 0
    if not all(type(s) is ir.TensorLoad and _steps(s.indices, var, (1,)) for s in sources):
        return 0
    return _bits(dtype_of(store.value)) // 8


def copying(count: int) -> float:
    """Return the instructions for copying `count` bytes."""
    words = -(-count // _WORD)
    if words <= _MOVED:
        return 2.0 * words
    lines, rest = divmod(count, _LINE)
    return float(_CALLED + _EACH_LINE * lines + _EACH_WORD * (rest // _WORD) + _EACH_BYTE * (rest % _WORD))


def _parts(value: Any) -> Iterator[Any]:
    """Yield an expression and all parts, without indices of loads."""
    yield value
    if isinstance(value, ir.Call):
        for argument in elements(value.args):
            yield from _parts(argument)
    elif type(value) is not ir.TensorLoad:
        for name in _OPERANDS:
            if isinstance(operand := getattr(value, name, None), ir.Expr):
                yield from _parts(operand)


def _steps(indices: Any, var: Any, steps: Sequence[int]) -> bool:
    """Test whether a memory index advances by one of `steps` per iteration."""
    listed = elements(indices)
    if len(listed) != 1 or "x" in dtype_of(listed[0]):
        return False
    linear: Any = sym.detect_linear_equation(listed[0], [var])
    return len(linear) == 2 and int_value(sym.Analyzer().simplify(linear[0])) in steps


@cache
def _bits(dtype: str) -> int:
    """Return an element type's bits; booleans take a byte."""
    return int("".join(c for c in dtype if c.isdigit()) or "8")
