"""Values of integer expressions of TIR where variables are known: a small interpreter, for `schedules.tuning.instructions`."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm_cascade.schedules.tir import collect, dtype_of, int_value, ir, is_if_then_else, tirx

Env: TypeAlias = dict[Any, "int | None"]  # by hash of a variable, or of a local buffer with an index; None: unknown
Known: TypeAlias = Callable[[Env], "int | None"]


def _of_arithmetic() -> Mapping[type, Callable[[int, int], int]]:
    def truncated(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    return {
        tirx.Add: lambda a, b: a + b,
        tirx.Sub: lambda a, b: a - b,
        tirx.Mul: lambda a, b: a * b,
        tirx.Min: min,
        tirx.Max: max,
        tirx.FloorDiv: lambda a, b: a // b,
        tirx.FloorMod: lambda a, b: a % b,
        tirx.Div: truncated,
        tirx.Mod: lambda a, b: a - b * truncated(a, b),
        tirx.LShift: lambda a, b: a << b,
        tirx.RShift: lambda a, b: a >> b,
        tirx.BitwiseAnd: lambda a, b: a & b,
        tirx.LT: lambda a, b: int(a < b),
        tirx.LE: lambda a, b: int(a <= b),
        tirx.GT: lambda a, b: int(a > b),
        tirx.GE: lambda a, b: int(a >= b),
        tirx.EQ: lambda a, b: int(a == b),
        tirx.NE: lambda a, b: int(a != b),
        tirx.And: lambda a, b: int(bool(a and b)),
        tirx.Or: lambda a, b: int(bool(a or b)),
    }


_ARITHMETIC = _of_arithmetic()


@dataclass(frozen=True)
class Values:
    """Turns expressions into functions of what is known.

    `registers` are hashes of local buffers, whose elements an `Env` holds; `memory` gives those of other buffers.
    """

    registers: set[int]
    memory: Callable[[Any, int], int | None]

    def of(self, value: Any) -> Known:
        """A function of what is known to the value of an integer expression, None where that is not known."""
        number = int_value(value)
        if number is not None:
            return lambda _env: number
        if isinstance(value, tirx.Var):
            var = hash(value)
            return lambda env: env.get(var)
        if type(value) in _ARITHMETIC:
            return _binary(_ARITHMETIC[type(value)], self.of(value.a), self.of(value.b))
        if isinstance(value, tirx.Not):
            inner = self.of(value.a)
            return lambda env: None if (v := inner(env)) is None else int(not v)
        if isinstance(value, tirx.Cast) and dtype_of(value).startswith(("int", "uint", "bool")):
            return self.of(value.value) if not dtype_of(value.value).startswith("float") else _unknown
        if isinstance(value, tirx.Select):
            return _either(*(self.of(v) for v in (value.condition, value.true_value, value.false_value)))
        if is_if_then_else(value):
            return _either(*(self.of(v) for v in value.args))
        if isinstance(value, ir.TensorLoad) and len(value.indices) == 1:
            return self._element(value.source, self.of(value.indices[0]))
        return _unknown

    def _element(self, source: Any, index: Known) -> Known:
        if (local := hash(source)) in self.registers:
            return lambda env: env.get((local, index(env)))
        return lambda env: None if (at := index(env)) is None else self.memory(source, at)


def _unknown(_env: Env) -> None:
    return None


def _binary(apply: Callable[[int, int], int], left: Known, right: Known) -> Known:
    def computed(env: Env) -> int | None:
        a, b = left(env), right(env)
        try:
            return None if a is None or b is None else apply(a, b)
        except ArithmeticError:  # a division by zero, where a branch that is not known avoids it
            return None

    return computed


def _either(condition: Known, yes: Known, no: Known) -> Known:
    def chosen(env: Env) -> int | None:
        holds = condition(env)
        return None if holds is None else (yes if holds else no)(env)

    return chosen


def deciding_variables(body: Any) -> set[int]:
    """Hashes of the variables and buffers from whose values extents of loops and arguments of calls follow, and
    conditions of branches."""
    loops, branches = collect(body, tirx.For), collect(body, tirx.IfThenElse)
    calls = [c for c in collect(body, ir.Call) if isinstance(c.op, ir.GlobalVar)]
    roots = [e for f in loops for e in (f.min, f.extent)] + [b.condition for b in branches]
    found = {v for e in (*roots, *(a for c in calls for a in c.args)) for v in _read_by(e)}
    givers = [(hash(b.var), b.value) for b in collect(body, tirx.Bind)]
    givers += [(hash(s.buffer), s.value) for s in collect(body, tirx.BufferStore)]
    while True:
        more = {v for target, value in givers if target in found for v in _read_by(value)} - found
        if not more:
            return found
        found |= more


def index_variables(body: Any) -> set[int]:
    """Hashes of the variables that are read in indices alone, themselves or through others: loops step through them."""
    accesses = [(v.source, i) for v in collect(body, ir.TensorLoad) for i in v.indices]
    accesses += [(s.buffer, i) for s in collect(body, tirx.BufferStore) for i in s.indices]
    inside = Tally(hash(v) for _, i in accesses for v in collect(i, tirx.Var))
    total = Tally(hash(v) for v in collect(body, tirx.Var))
    found: set[int] = set()
    for bind in reversed(collect(body, tirx.Bind)):
        own = hash(bind.var)
        if inside[own] and total[own] - inside[own] <= 1:  # the binding itself counts once
            found.add(own)
            inside.update(hash(v) for v in collect(bind.value, tirx.Var))
    return found


def _read_by(value: Any) -> set[int]:
    if isinstance(value, (int, str)):
        return set()
    return {hash(v) for v in (*collect(value, tirx.Var), *(load.source for load in collect(value, ir.TensorLoad)))}
