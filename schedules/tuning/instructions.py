"""Instructions of TIR functions, counted statically: kernels, and the driver's code for a step.

Every statement has a number of instructions; loops multiply, branches choose. If a loop's extent or a branch's
condition depends on known integers (a call's row, a tile's columns), they are computed, by a small interpreter for
integer arithmetic; everything else is counted once, when the function is read. The compiled code differs by a factor
that is much the same for all kernels in a family (`schedules.tuning.rates`).

A load, a store, an operation or an intrinsic is one instruction; index arithmetic and accesses to small local buffers
(registers) are free. `operation_costs` has everything more expensive, `computed_once` how often compilers compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from tvm_cascade.cores import Core, KernelTarget
from tvm_cascade.schedules.kernels.spec import ignores_nan
from tvm_cascade.schedules.rules.intrinsics import rarely
from tvm_cascade.schedules.tir import (
    IF_THEN_ELSE,
    PASSES,
    PrimFunc,
    collect,
    dtype_of,
    elements,
    int_value,
    ir,
    shape_of,
    tirx,
    tvm_ffi,
)
from tvm_cascade.schedules.tuning.computed_once import ComputedOnce
from tvm_cascade.schedules.tuning.known_values import Env, Values, survey
from tvm_cascade.schedules.tuning.operation_costs import OperationCosts, stored_words
from tvm_cascade.schedules.tuning.vectorized import copied_bytes, copying, lanes_of

UNROLLED = 150.0  # instructions, LLVM's threshold for loops of known counts (`-unroll-threshold`)
UNKNOWN_PASSES = 3  # of a loop whose extent is not known
REGISTERS = 32  # elements of the largest local buffer whose elements are known where they decide
_LOOP = 3  # instructions per iteration: count, compare, branch
_ENTERED = 5  # instructions before a loop: its first value, its end, addresses
_BRANCH = 2
_RARE = 1 / 16  # share of the times that a condition holds which seldom does
_SAVED, _LEAF = 8.0, 2.0  # of a function to enter it and to return, besides its parameters: with loops, without
_CALL = 4  # of a function, besides its arguments
_EACH = 48  # most iterations of a loop that are looked at one by one

Part: TypeAlias = "float | Callable[[Env], float]"  # instructions: a number, or a function of what is known
Read = TypeVar("Read", bound="Function")


class Library(Generic[Read]):
    """Kernel functions, as read by `reads` for a counter. Each is read once, whatever operators and plans call it."""

    def __init__(self, counter: Counter, reads: Callable[[Counter, PrimFunc], Read]) -> None:
        self._counter, self._reads = counter, reads
        self._known: dict[int, tuple[PrimFunc, Read]] = {}  # by the function itself
        self._read: dict[int, list[tuple[PrimFunc, Read]]] = {}  # by structural hash

    def read(self, func: PrimFunc) -> Read:
        """Read a function, or return one with the same structure read before."""
        found = self._known.get(hash(func))
        if found is None or not found[0].same_as(func):
            found = self._known[hash(func)] = func, self._structure(func)
        return found[1]

    def _structure(self, func: PrimFunc) -> Read:
        alike = self._read.setdefault(tvm_ffi.structural_hash(func), [])
        for known, function in alike:
            if tvm_ffi.structural_equal(known, func):
                return function
        alike.append((func, self._reads(self._counter, func)))
        return alike[-1][1]


@dataclass
class Counter:
    """Counter of instructions in a module's functions, for a core.

    `functions` are the possible targets of a `GlobalVar` call; `factors`, by name, multiply their counts. `memory`
    gives an element's value in a buffer that is not local, None if unknown. `inlines` tells that a compiler sees
    functions at their calls: functions called with constants alone become part of the caller. `unrolled` is the number
    of instructions up to which LLVM writes out iterations of a loop with a known count, 0 for GCC; `vectors` tells that
    loops are vectorized.
    """

    core: Core
    functions: Mapping[str, Function] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    memory: Callable[[Any, int], int | None] = lambda _buffer, _index: None
    inlines: bool = False
    unrolled: float = 0.0
    vectors: bool = False

    @classmethod
    def of(cls, target: KernelTarget) -> Counter:
        """Make a counter for code from a target's back end."""
        return cls(
            target.core,
            inlines=target.backend == "c",
            unrolled=0.0 if target.backend == "c" else UNROLLED,
            vectors=target.vectors,
        )

    def called(self, name: str, values: Sequence[int | None], inlined: bool = False) -> float:
        """Count the instructions of calling function `name` with these arguments, its family's factor included.

        If `inlined`, the entry is not counted.
        """
        function = self.functions[name]
        entry = function.entry if inlined else 0.0
        return self.factors.get(name, 1.0) * (function.count(values) - entry)


def _without_nan(counter: Counter) -> Counter:
    """Return a counter for a function compiled without care of NaN: maxima take what they do on any core."""
    kept = {name: taken for name, taken in counter.core.operations.items() if not name.startswith("max_float")}
    return replace(counter, core=replace(counter.core, operations=MappingProxyType(kept)))


class Function:
    """A function, read once: the instructions for any arguments."""

    def __init__(self, counter: Counter, func: PrimFunc) -> None:
        self.params = [hash(p) for p in func.params]
        reader, self.entry = self._reader(counter, func)
        self.part = reader.statement(func.body)
        self.deciding = [k for k, p in enumerate(self.params) if p in reader.deciding]
        self._known: dict[tuple[int | None, ...], Any] = {}

    def _reader(self, counter: Counter, func: PrimFunc) -> tuple[Reader, float]:
        """Return the body's reader, and the instructions before the body."""
        reader = Reader(_without_nan(counter) if ignores_nan(func) else counter, func.body)
        used, entry = reader.survey.read(), _SAVED if reader.survey.loops else _LEAF
        return reader, entry + sum(p in used for p in self.params)

    def count(self, values: Sequence[int | None]) -> Any:
        """Count the instructions of a call; `values` are the arguments, None for pointers and unknown values."""
        key = tuple(values[k] for k in self.deciding)
        if key not in self._known:
            env: Env = {self.params[k]: v for k, v in zip(self.deciding, key, strict=True)}
            self._known[key] = self.entry + taken(self.part, env)
        return self._known[key]


def read(counter: Counter, stmt: Any, given: Sequence[Any]) -> Part:
    """Read the instructions of a statement on the variables `given`; an `Env` will have their values."""
    reader = Reader(counter, stmt)
    reader.deciding |= {hash(v) for v in given}
    return reader.statement(stmt)


def taken(part: Part, env: Env) -> float:
    """Return the instructions of a part for a known `env`."""
    return part(env) if callable(part) else part


class Reader:
    """Reader of statements into parts; `deciding` are the variables and local buffers that loops and branches depend
    on.

    `schedules.tuning.traffic` counts bytes in place of instructions, by different costs for the same statements.
    """

    loop, entered, branch = float(_LOOP), float(_ENTERED), float(_BRANCH)

    def __init__(self, counter: Counter, body: Any) -> None:
        self.counter, self.costs = counter, OperationCosts.of(counter.core)
        self.branch, self.loop = (
            counter.core.operations.get(name, usual) if usual else 0.0
            for name, usual in (("branch", self.branch), ("loop", self.loop))
        )
        self.survey = surveyed = survey(body)
        local = {hash(b): prod(shape_of(b)) for b in surveyed.buffers}
        self.registers = {b for b, size in local.items() if size <= REGISTERS}
        self.free = {b for b, size in local.items() if size <= counter.core.registers}
        self.deciding, self.places = surveyed.deciding(), surveyed.indices()
        self.once = ComputedOnce(set(local))
        self.known = Values(self.registers, counter.memory).of

    # Statements.

    def statement(self, stmt: Any) -> Part:
        kind = type(stmt)
        self.once.begin()
        if kind is tirx.Bind:
            return self._assigned(self._bound(stmt), hash(stmt.var), stmt.value)
        if kind is tirx.BufferStore:
            return self._stored(stmt)
        if kind is tirx.Evaluate:
            return self._evaluated(stmt.value)
        if kind is tirx.SeqStmt:
            return self._sequence(elements(stmt.seq))
        if kind is tirx.For:
            return self._loop(stmt)
        if kind is tirx.IfThenElse:
            return self._branch(stmt)
        if kind is tirx.While:
            return _scaled(_sum([self.statement(stmt.body), self.value(stmt.condition) + self.loop]), UNKNOWN_PASSES)
        return self.statement(stmt.body) if hasattr(stmt, "body") else 0.0

    def _sequence(self, statements: Sequence[Any]) -> Part:
        merged = stored_words(statements)
        words = sum(type(statements[k]) is tirx.BufferStore for k in merged) / 4
        return _sum([words, *(self.statement(s) for k, s in enumerate(statements) if k not in merged)])

    def _loop(self, stmt: Any) -> Part:
        told = stmt.annotations.get(PASSES, stmt.extent)
        count, var = int_value(told), hash(stmt.loop_var)
        if self.counter.unrolled and (copied := copied_bytes(stmt)):
            if count is not None:
                return copying(count * copied)
            passes_of = self.known(told)
            return lambda env: copying(copied * (UNKNOWN_PASSES if (n := passes_of(env)) is None else max(n, 0)))
        lanes = lanes_of(stmt) if self.counter.vectors and count is not None else 1
        own, self.costs = self.costs, replace(self.costs, vectors=lanes > 1)
        self.once.open(stmt)
        low, extent, body = self.known(stmt.min), self.known(told), self.statement(stmt.body)
        before, self.costs = self.once.close(), own
        count = None if count is None else -(-count // lanes)
        times = self._written_out(stmt, count, body, lanes > 1)
        overhead, entered = (self.loop / times, self.entered + before) if times else (0.0, before)
        if count is not None and (not callable(body) or var not in self.deciding):
            return _sum([_scaled(_sum([body, overhead]), count), entered])

        def passes(env: Env) -> float:
            n, start = extent(env), low(env)
            if n is None or start is None:
                env[var] = None
                return entered + UNKNOWN_PASSES * (taken(body, env) + overhead)
            if not callable(body) or var not in self.deciding:
                return entered + max(n, 0) * (taken(body, env) + overhead)
            total = entered
            for i, weight in sampled(n, _EACH):
                env[var] = start + i
                total += weight * (body(env) + overhead)
            return total

        return passes

    def _written_out(self, loop: Any, count: int | None, body: Part, vectors: bool) -> int:
        """Return how often a loop body with `count` runs stands in the compiled loop; 0 if no loop is left.

        Compilers write out all iterations if there are few, no longer than the loop itself, or longer ones as
        `Counter.unrolled` tells. A loop of vectors is written out as a whole or not at all.
        """
        if loop.kind == tirx.ForKind.UNROLLED or int_value(loop.extent) == 1:
            return 0
        if not self.loop or int_value(loop.extent) is None or count is None or callable(body) or _of_vectors(loop):
            return 1
        most = int(self.counter.unrolled // max(body, 1.0))
        if count <= most or count * body <= body + self.loop:
            return 0
        return 1 if vectors else max((k for k in range(1, most + 1) if count % k == 0), default=1)

    def _bound(self, stmt: Any) -> float:
        """Count the instructions of a binding: for an index, one if a loop steps through it, and the rest before the
        loop.
        """
        cost = self.value(stmt.value)
        if hash(stmt.var) not in self.places or cost <= 1.0:
            return cost
        self.once.before(cost - 1.0)
        return 1.0

    def _branch(self, stmt: Any) -> Part:
        condition, head = self.known(stmt.condition), self.value(stmt.condition) + self.branch
        yes = self.statement(stmt.then_case)
        no: Part = self.statement(stmt.else_case) if stmt.else_case is not None else 0.0
        likely = _RARE if rarely(stmt.condition) else 0.5

        def chosen(env: Env) -> float:
            holds = condition(env)
            if holds is None:
                return head + likely * taken(yes, env) + (1 - likely) * taken(no, env)
            return head + taken(yes if holds else no, env)

        return chosen

    def _assigned(self, cost: float, target: Any, value: Any, decided: int | None = None) -> Part:
        """Return a part that sets the key `target` to `value`, if anything depends on `decided` (by default the
        target).
        """
        if (target if decided is None else decided) not in self.deciding:
            return cost
        known = self.known(value)

        def assign(env: Env) -> float:
            env[target] = known(env)
            return cost

        return assign

    def _stored(self, stmt: Any) -> Part:
        buffer = hash(stmt.buffer)
        local = buffer in self.registers
        cost = self.value(stmt.value) + (0.0 if buffer in self.free else 1.0)
        index = int_value(indices[0]) if len(indices := elements(stmt.indices)) == 1 else None
        return cost if not local or index is None else self._assigned(cost, (buffer, index), stmt.value, buffer)

    def _evaluated(self, value: Any) -> Part:
        if type(value) is not ir.Call or type(value.op) is not ir.GlobalVar:
            return self.value(value)
        name, args = value.op.name_hint, elements(value.args)
        arguments = self.deciding_arguments(self.counter.functions[name], args)
        inlined = self.counter.inlines and all(int_value(a) is not None or type(a) is ir.Call for a in args)
        head = 0.0 if inlined else _CALL + sum(1.0 + self.value(a) for a in args)
        return lambda env: head + self.counter.called(name, arguments(env), inlined)

    def deciding_arguments(self, function: Function, args: Sequence[Any]) -> Callable[[Env], Sequence[int | None]]:
        """Compute a call's arguments as `Function.count` takes them; arguments irrelevant to the count are skipped."""
        known = [(k, self.known(args[k])) for k in function.deciding]

        def values(env: Env) -> Sequence[int | None]:
            found: list[int | None] = [None] * len(args)
            for k, value in known:
                found[k] = value(env)
            return found

        return values

    # Expressions.

    def value(self, value: Any) -> float:
        """Count the instructions of an expression, without index arithmetic."""
        kind = type(value)
        if kind in _FREE:
            return 0.0
        if kind is ir.TensorLoad:
            return 0.0 if hash(value.source) in self.free else self.costs.load(dtype_of(value))
        if self.once.again(value):
            return 0.0
        if kind is ir.Call:
            return self._call(value)
        if kind is tirx.Cast:
            return self.value(value.value) + self.once.take(value, self.costs.cast(value))
        own, operands = self.once.take(value, self.costs.operation(value)), 0.0
        for name in _operands(kind):
            operands += self.value(getattr(value, name))
        return own + operands

    def _call(self, value: Any) -> float:
        name = str(getattr(value.op, "name", ""))
        if name.endswith("address_of"):
            return 0.0
        args = [a for a in elements(value.args) if _computed(type(a))]
        if name == IF_THEN_ELSE:
            return self.branch + self.value(args[0]) + max(self.value(a) for a in args[1:])
        if name.endswith("call_pure_extern") or name.endswith("call_extern"):
            name = str(getattr(value.args[0], "value", value.args[0])).removesuffix("f")
        return self.once.take(value, self.costs.call(name, str(dtype_of(value)))) + sum(self.value(a) for a in args)


_FREE = {tirx.Var, tirx.IntImm, tirx.FloatImm}


@cache
def _operands(kind: type) -> list[str]:
    """Return an operation's fields that hold operands."""
    return [n for n in ("a", "b", "condition", "true_value", "false_value") if hasattr(kind, n)]


@cache
def _computed(kind: type) -> bool:
    """Test whether arguments of this type are expressions, not names."""
    return issubclass(kind, ir.Expr) and not issubclass(kind, ir.StringImm)


def _of_vectors(loop: Any) -> bool:
    """Test whether a loop's code is vectors; LLVM writes out no such loop."""
    return any("x" in dtype_of(s.value) for s in collect(loop.body, tirx.BufferStore))


def _sum(parts: Sequence[Part]) -> Part:
    fixed, open_ = sum(p for p in parts if not callable(p)), [p for p in parts if callable(p)]
    return (lambda env: fixed + sum(p(env) for p in open_)) if open_ else fixed


def _scaled(part: Part, count: float) -> Part:
    return (lambda env: count * part(env)) if callable(part) else count * part


def sampled(count: int, most: int) -> list[tuple[int, float]]:
    """Choose indices below `count` with weights that sum up to `count`: all, or `most`, both ends and some from the
    middle.
    """
    if count <= most:
        return [(i, 1.0) for i in range(count)]
    ends = most // 4
    middle = most - 2 * ends
    inside = count - 2 * ends
    picked = [ends + k * inside // middle + inside // (2 * middle) for k in range(middle)]
    return [
        *((i, 1.0) for i in range(ends)),
        *((i, inside / middle) for i in picked),
        *((count - ends + i, 1.0) for i in range(ends)),
    ]
