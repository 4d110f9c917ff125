"""Analytic cost model of a row kernel: instructions per call and code bytes, estimated from its statements.

A load, a store, an intrinsic or an arithmetic operation outside an index is one instruction (`_GENERAL` in 64 bits);
accesses to local buffers (registers) are free, a loop costs three per iteration. A loop without a constant extent
counts as `UNKNOWN_PASSES` iterations. Good enough to rank candidates for counting; exact counts come from the emulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm_cascade.schedules.tir import PrimFunc, collect, elements, ir, tirx

UNKNOWN_PASSES = 3
_LOOP = 3  # instructions per iteration: count, compare, branch
_BYTES = 3.3  # bytes per instruction, the average of Thumb-2 code
_FREE = (tirx.Var, tirx.IntImm, tirx.FloatImm)
_GENERAL = 10  # instructions of a 64-bit operation


@dataclass(frozen=True, slots=True)
class KernelCost:
    """The estimate of the analytic model for a kernel."""

    instructions: float  # per call
    bytes: float  # of code


def kernel_cost(func: PrimFunc, inlined: bool = False) -> KernelCost:
    """Estimate the analytic cost of a call to `func`; `inlined`, the code has no entry and no exit."""
    walk = _Walk({hash(a.buffer) for a in collect(func.body, tirx.AllocBuffer)})
    instructions, code = walk.statement(func.body)
    entry = 8 + len(func.params)
    return KernelCost(instructions + entry, (code + (0 if inlined else entry)) * _BYTES)


class _Walk:
    """Adds up statements; `registers` are the hashes of local buffers."""

    def __init__(self, registers: set[int]) -> None:
        self.registers = registers

    def statement(self, stmt: Any) -> tuple[float, float]:
        """Count the instructions executed by a statement, and the instructions in the code."""
        kind = type(stmt)
        if kind is tirx.SeqStmt:
            parts = [self.statement(s) for s in elements(stmt.seq)]
            return sum(p[0] for p in parts), sum(p[1] for p in parts)
        if kind is tirx.For:
            passes = int(stmt.extent) if isinstance(stmt.extent, tirx.IntImm) else UNKNOWN_PASSES
            run, code = self.statement(stmt.body)
            return passes * (run + _LOOP), code + _LOOP + 2
        if kind is tirx.IfThenElse:
            run, code = self.statement(stmt.then_case)
            other = self.statement(stmt.else_case)[1] if stmt.else_case is not None else 0.0
            return run + 2, code + other + 2
        if kind in (tirx.Bind, tirx.BufferStore, tirx.Evaluate):
            stores = kind is tirx.BufferStore and hash(stmt.buffer) not in self.registers
            each = self.value(stmt.value) + stores
            return each, each
        return 0.0, 0.0

    def value(self, value: Any) -> float:
        """Count the instructions of an expression, without index arithmetic."""
        kind = type(value)
        if _free(kind):
            return 0.0
        if kind is ir.TensorLoad:
            return 0.0 if hash(value.source) in self.registers else 1.0
        if kind is tirx.Cast:
            return self.value(value.value)
        if kind is ir.Call:
            return 1.0 + sum(self.value(a) for a in elements(value.args) if not isinstance(a, str))
        parts = [getattr(value, n) for n in _operands(kind)]
        wide = "64" in str(getattr(value, "dtype", ""))
        return (_GENERAL if wide else 1.0) + sum(self.value(p) for p in parts)


@cache
def _free(kind: type) -> bool:
    """Test whether expressions of a type take no instruction."""
    return issubclass(kind, _FREE)


@cache
def _operands(kind: type) -> list[str]:
    """Return an operation's fields that hold operands."""
    return [n for n in ("a", "b", "condition", "true_value", "false_value") if hasattr(kind, n)]
