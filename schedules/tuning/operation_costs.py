"""Instructions of single TIR operations on a core: the exceptions from `schedules.tuning.instructions`' one each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_cascade.cores import Core
from tvm_cascade.schedules.rules.elementary import polynomials_of
from tvm_cascade.schedules.tir import dtype_of, int_value, tirx

_COMPARED = {tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE}
_DIVIDED = {tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod}
_SHIFTED = {tirx.LShift, tirx.RShift}
_CHOSEN = {tirx.Min, tirx.Max}
_SUMS = {tirx.Add, tirx.Sub, tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor}
_SEVERAL = {"smax8": 2.0, "umax8": 2.0, "copy4": 2.0, "copy16": 2.0, "alone": 0.0}  # instructions of intrinsics
_ROUNDED = {"round_away": (8.0, 16.0), "round_even": (2.0, 18.0)}  # by a unit of floats, and without
_FUNCTIONS = {
    "exp": 80,
    "log": 90,
    "tanh": 150,
    "sigmoid": 90,
    "erf": 150,
    "pow": 250,
    "sin": 120,
    "cos": 120,
    "sqrt": 6,
    "trunc": 22,
}
# the same as polynomials (`schedules.rules.elementary`), of an element or of a vector
_POLYNOMIALS = {"exp": 50, "log": 46, "tanh": 58, "sigmoid": 46, "erf": 62}
_SOFT = {
    "exp": 1500,
    "log": 1800,
    "tanh": 3000,
    "sigmoid": 1700,
    "erf": 3500,
    "pow": 5000,
    "sin": 2500,
    "cos": 2500,
    "trunc": 30,
}


@dataclass(frozen=True)
class OperationCosts:
    """Instructions for operations with several instructions each."""

    fpu: bool  # computes floats of 32 bits
    doubles: bool  # and of 64 bits
    own: Mapping[str, float]  # `Core.operations`
    polynomials: Sequence[str] = ()  # functions that kernels compute without the C library
    only_vectors: bool = False  # and only in loops that become vectors
    vectors: bool = False  # several elements at a time

    @classmethod
    def of(cls, core: Core) -> OperationCosts:
        return cls(core.fpu, core.doubles, core.operations, polynomials_of(core), core.mve)

    def operation(self, node: Any) -> float:
        kind = type(node)
        dtype = dtype_of(node if kind not in _COMPARED else node.a)
        if dtype.startswith("float"):
            return self._of_floats(kind, dtype)
        if "64" in dtype:
            return self._of_pairs(node)
        if kind in _SUMS and any(type(v) is tirx.Mul or type(v) in _SHIFTED for v in (node.a, node.b)):
            return self.own.get("sum", 0.0)
        return 3.0 if kind in _DIVIDED else 2.0 if kind in _CHOSEN else 1.0

    def _of_pairs(self, node: Any) -> float:
        """Return the cost for 64-bit integers, which two registers hold."""
        kind = type(node)
        if kind is tirx.Mul:
            return self.own.get(*(("mul64", 1.0) if _narrow(node.a) and _narrow(node.b) else ("mul64_wide", 4.0)))
        if kind is tirx.RShift and int_value(node.b) == 32:
            return 0.0  # one of the registers
        if kind in _SHIFTED:
            return self.own.get("shift64", 3.0)
        return 4.0 if kind is tirx.Select else 30.0 if kind in _DIVIDED else self.own.get("add64", 3.0)

    def _of_floats(self, kind: type, dtype: str) -> float:
        if self._computes(dtype):
            if self.vectors and kind is tirx.Div:
                return 4.0  # one for each lane
            larger = self.own.get(*(("max_floats", 1.0) if self.vectors else ("max_float", 4.0)))
            return larger if kind in _CHOSEN else 3.0 if kind in _COMPARED else 1.0
        if kind is tirx.Select:
            return 2.0
        if kind in _CHOSEN or kind in _COMPARED:
            return 35.0
        return (150.0 if kind is tirx.Div else 35.0 if kind is tirx.Mul else 50.0) * self._soft(dtype)

    def _computes(self, dtype: str) -> bool:
        """Return True if hardware computes floats of this type."""
        return self.doubles if dtype.startswith("float64") else self.fpu

    def _soft(self, dtype: str) -> float:
        """Return the cost of software float arithmetic, relative to 32 bits on Cortex-M3."""
        return self.own.get("double", 3.0) if dtype.startswith("float64") else self.own.get("float", 1.0)

    def cast(self, node: Any) -> float:
        ends = {dtype_of(node), dtype_of(node.value)}
        floats = {e for e in ends if e.startswith("float")}
        if not floats or len(ends) == 1:
            return 0.0
        return 2.0 if all(self._computes(f) for f in floats) else 20.0 * self.own.get("float", 1.0)

    def call(self, name: str, dtype: str) -> float:
        short = name.rpartition(".")[2]
        if short == "reinterpret" and "x" in dtype:
            return 0.0  # a vector is in the same register, whatever it is taken for
        if short == "isnan":
            return 3.0 if self._computes(dtype) else 20.0  # a comparison
        if short in self.polynomials and dtype.startswith("float32") and (self.vectors or not self.only_vectors):
            return float(_POLYNOMIALS[short])
        if short in _FUNCTIONS and short not in self.own:
            return float(_FUNCTIONS[short] if self._computes(dtype) else _SOFT.get(short, 600))
        short = short.removeprefix("tc_")
        if short in _ROUNDED and short not in self.own:
            return _ROUNDED[short][0 if self.fpu else 1]
        return self.own.get(short, _SEVERAL.get(short, 3.0 if "64" in dtype else 1.0))

    def load(self, dtype: str) -> float:
        """Count the instructions to load an element not in a register."""
        return self.own.get("load8", 1.0) if dtype == "int8" else 1.0


def _narrow(value: Any) -> bool:
    """Test whether a 64-bit integer has at most 32 significant bits."""
    number = int_value(value)
    return (
        -(2**31) <= number < 2**31
        if number is not None
        else type(value) is tirx.Cast and "64" not in dtype_of(value.value)
    )


def stored_words(statements: Sequence[Any]) -> set[int]:
    """Find the statements that compilers merge into word stores: a word is taken apart, and the four bytes are stored
    in order.

    Return the statements' positions.
    """
    taken_from: dict[int, tuple[int, Any]] = {}  # by variable: where it is bound, and the word that it is a byte of
    found: set[int] = set()
    run: list[tuple[int, int, Any]] = []  # positions of stores and of what they store, and the word
    for k, stmt in enumerate(statements):
        kind = type(stmt)
        if kind is tirx.Bind and (word := _byte_of(stmt.value)) is not None:
            taken_from[hash(stmt.var)] = k, word
        of: Any = _uncast(stmt.value) if kind is tirx.BufferStore else None
        at, word = taken_from.get(hash(of), (0, None)) if type(of) is tirx.Var else (0, None)
        run = [*run, (k, at, word)] if word is not None and (not run or word.same_as(run[0][2])) else []
        if len(run) == 4:
            found |= {p for store, bound, _ in run for p in (store, bound)}
            run = []
    return found


def _uncast(value: Any) -> Any:
    while type(value) is tirx.Cast:
        value = value.value
    return value


def _byte_of(value: Any) -> Any:
    """Return the word variable of which `value` is a byte, as an integer; None for any other value."""
    narrow = False
    while type(value) is tirx.Cast:
        narrow, value = narrow or dtype_of(value) in ("int8", "uint8"), value.value
    if type(value) is tirx.RShift:
        value = value.a
    return value if narrow and type(value) is tirx.Var and dtype_of(value) == "int32" else None
