"""Values of integer TIR expressions for known variables: a small interpreter, for `schedules.tuning.instructions`."""

from __future__ import annotations

import operator
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from tvm_cascade.schedules.tir import PASSES, dtype_of, elements, int_value, ir, is_if_then_else, tirx, tvm_ffi

Env: TypeAlias = dict[Any, "int | None"]  # by hash of a variable, or of a local buffer with an index; None: unknown
Known: TypeAlias = Callable[[Env], "int | None"]


def _of_arithmetic() -> Mapping[type, Callable[[int, int], int]]:
    def truncated(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    return {
        tirx.Add: operator.add,
        tirx.Sub: operator.sub,
        tirx.Mul: operator.mul,
        tirx.Min: min,
        tirx.Max: max,
        tirx.FloorDiv: operator.floordiv,
        tirx.FloorMod: operator.mod,
        tirx.Div: truncated,
        tirx.Mod: lambda a, b: a - b * truncated(a, b),
        tirx.LShift: operator.lshift,
        tirx.RShift: operator.rshift,
        tirx.BitwiseAnd: operator.and_,
        tirx.LT: operator.lt,
        tirx.LE: operator.le,
        tirx.GT: operator.gt,
        tirx.GE: operator.ge,
        tirx.EQ: operator.eq,
        tirx.NE: operator.ne,
        tirx.And: lambda a, b: int(bool(a and b)),
        tirx.Or: lambda a, b: int(bool(a or b)),
    }


_ARITHMETIC = _of_arithmetic()


@dataclass(frozen=True)
class Values:
    """Converter from expressions to functions of known values.

    `registers` are hashes of local buffers, with elements held by an `Env`; `memory` gives all other buffers' elements.
    """

    registers: set[int]
    memory: Callable[[Any, int], int | None]

    def of(self, value: Any) -> Known:
        """Return a function from known values to an integer expression's value, None if unknown."""
        kind = type(value)
        if kind is int or kind is tirx.IntImm:
            number = int_value(value)
            return lambda _env: number
        if kind is tirx.Var:
            var = hash(value)
            return lambda env: env.get(var)
        if kind in _ARITHMETIC:
            if number := int_value(value.b):  # not zero, by which nothing is divided
                return _with_number(_ARITHMETIC[kind], self.of(value.a), number)
            return _binary(_ARITHMETIC[kind], self.of(value.a), self.of(value.b))
        if kind is tirx.Not:
            inner = self.of(value.a)
            return lambda env: None if (v := inner(env)) is None else int(not v)
        if kind is tirx.Cast and dtype_of(value).startswith(("int", "uint", "bool")):
            return self.of(value.value) if not dtype_of(value.value).startswith("float") else _unknown
        if kind is tirx.Select:
            return _either(*(self.of(v) for v in (value.condition, value.true_value, value.false_value)))
        if is_if_then_else(value):
            return _either(*(self.of(v) for v in value.args))
        if kind is ir.TensorLoad and len(value.indices) == 1:
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


def _with_number(apply: Callable[[int, int], int], left: Known, number: int) -> Known:
    def computed(env: Env) -> int | None:
        a = left(env)
        return None if a is None else apply(a, number)

    return computed


def _either(condition: Known, yes: Known, no: Known) -> Known:
    def chosen(env: Env) -> int | None:
        holds = condition(env)
        return None if holds is None else (yes if holds else no)(env)

    return chosen


@lru_cache(maxsize=1024)
def survey(body: Any) -> Survey:
    """Return a statement's survey, shared by several readers."""
    return Survey(body)


class Survey:
    """The variables and buffers in a statement, by hash, and their dependences: all found in a single visit."""

    def __init__(self, body: Any) -> None:
        self.buffers: list[Any] = []  # that are allocated
        self.loops = 0
        self._seen: list[int] = []  # variables and buffers, as often as they are read or bound
        self._inside: list[int] = []  # those read in indices
        self._roots: set[int] = set()  # those from which extents, conditions and arguments of calls follow
        self._binds: list[tuple[int, list[int]]] = []  # variables, with what their values are computed from
        self._stores: list[tuple[int, list[int]]] = []  # buffers, likewise
        tvm_ffi.structural_visit(
            body,
            [
                (tirx.Var, lambda var, _visitor: self._seen.append(hash(var))),
                (ir.TensorLoad, self._load),
                (tirx.BufferStore, self._store),
                (tirx.Bind, self._bind),
                (tirx.For, self._loop),
                (tirx.IfThenElse, self._branch),
                (ir.Call, self._call),
                (tirx.AllocBuffer, lambda stmt, _visitor: self.buffers.append(stmt.buffer)),
            ],
        )

    def read(self) -> set[int]:
        """Return the variables and buffers read or bound."""
        return set(self._seen)

    def deciding(self) -> set[int]:
        """Return the variables and buffers that determine loop extents, call arguments and branch conditions."""
        found, givers = set(self._roots), [*self._binds, *self._stores]
        while more := {v for target, read in givers if target in found for v in read} - found:
            found = found | more
        return found

    def indices(self) -> set[int]:
        """Return the variables read only in indices, directly or indirectly: loops step through them."""
        inside, total = Tally(self._inside), Tally(self._seen)
        found: set[int] = set()
        for own, read in reversed(self._binds):
            if inside[own] and total[own] - inside[own] <= 1:  # the binding itself counts once
                found.add(own)
                inside.update(read)
        return found

    def _read(self, value: Any, visitor: Any) -> list[int]:
        """Visit an expression, and return the variables and buffers read."""
        kind = type(value)
        if kind is tirx.IntImm or kind is int:
            return []
        start = len(self._seen)
        if kind is tirx.Var:
            self._seen.append(hash(value))
        else:
            visitor.visit(value)
        return self._seen[start:]

    def _load(self, load: Any, visitor: Any) -> None:
        self._seen.append(hash(load.source))
        for index in elements(load.indices):
            self._inside += self._read(index, visitor)

    def _store(self, store: Any, visitor: Any) -> None:
        self._stores.append((hash(store.buffer), self._read(store.value, visitor)))
        for index in elements(store.indices):
            self._inside += self._read(index, visitor)

    def _bind(self, bind: Any, visitor: Any) -> None:
        own = hash(bind.var)
        self._binds.append((own, self._read(bind.value, visitor)))
        self._seen.append(own)

    def _loop(self, loop: Any, visitor: Any) -> None:
        self.loops += 1
        low, extent = self._read(loop.min, visitor), self._read(loop.extent, visitor)
        told = loop.annotations.get(PASSES)  # counts in place of the extent
        self._roots.update(low, extent if told is None else self._read(told, visitor))
        visitor.visit(loop.body)

    def _branch(self, branch: Any, visitor: Any) -> None:
        self._roots.update(self._read(branch.condition, visitor))
        visitor.visit(branch.then_case)
        if branch.else_case is not None:
            visitor.visit(branch.else_case)

    def _call(self, call: Any, visitor: Any) -> None:
        if type(call.op) is ir.GlobalVar:
            for value in elements(call.args):
                self._roots.update(self._read(value, visitor))
        else:
            visitor.default_visit(call)
