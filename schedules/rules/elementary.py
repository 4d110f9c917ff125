"""Elementary functions of float32 in kernels for cores with a floating-point unit: polynomials (`schedules.tir.elementary`).

    y[i] = tanh(x[i])   -->   a[0] = x[i]; b[0] = max(min(a[0], 9), -9); z[0] = b[0] * b[0]; ...; y[i] = held[0]

The C library's take twice to five times the instructions, and its calls keep loops from vectors. Functions that are computed
only on a condition stay calls: what the condition guards may not be read without it.
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.cores import Core, KernelTarget
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.tir import (
    PrimFunc,
    Value,
    collect,
    dtype_of,
    flat_buffer,
    i32,
    ir,
    substitute,
    tirx,
    tvm_ffi,
)
from tvm_cascade.schedules.tir.elementary import FORMS, Rewriter

IN_VECTORS = ("exp", "sigmoid", "tanh", "erf")  # the logarithm compares, which keeps loops from vectors (`tir.nan`)
_NAMES = (*IN_VECTORS, "log")  # the sine and the cosine compute in float64


def polynomials_of(core: Core) -> tuple[str, ...]:
    """Return the float functions a core's kernels compute without the C library."""
    if not core.fpu or {"float_fpu", "float_mve"}.isdisjoint(core.rules):
        return ()
    return IN_VECTORS if core.mve else _NAMES


def with_polynomials(func: PrimFunc, target: KernelTarget) -> PrimFunc:
    """Replace the elementary float32 functions in `func`."""
    writer = _Writer(target)
    if not any(getattr(c.op, "name", "") in writer.forms for c in collect(func.body, ir.Call)):
        return func
    body = writer.written(func.body)
    return func if body.same_as(func.body) else func.with_body(body)


class _Writer(Rewriter):
    def __init__(self, target: KernelTarget) -> None:
        names = polynomials_of(target.core)
        self.forms = {f"tirx.{name}": FORMS[f"tirx.{name}"] for name in names}
        self._in_loops = target.core.mve  # in loops of one statement alone, which become vectors
        self._joined = target.backend == "c"  # products and sums are one instruction that C compilers do not find
        self._stores: list[Any] | None = None  # to be made before the present statement
        self._alone: Any = None  # the only statement of the loop around

    def written(self, body: Any) -> Any:
        """Return a body with its calls replaced."""
        entries = [
            (tirx.For, self._loop),
            (tirx.BufferStore, self._statement),
            (tirx.Bind, self._statement),
            (tirx.Mul, self.product),
            (tirx.Add, self.sum),
            (ir.Call, self.call),
        ]
        return tvm_ffi.structural_mutate(body, entries)

    def _loop(self, loop: Any, mutator: Any) -> Any:
        self._alone = loop.body
        return mutator.default_mutate(loop)

    def _statement(self, statement: Any, mutator: Any) -> Any:
        if self._in_loops and not statement.same_as(self._alone):
            return statement
        self._stores = []
        made = mutator.default_mutate(statement)
        before, self._stores = self._stores, None
        return tirx.SeqStmt([*before, made]) if before else made

    def is_in_place(self) -> bool:
        return self.conditions > 0 or self._stores is None

    def argument(self, x: Value) -> Value | None:
        return None if self.is_in_place() else self.held(x)

    def held(self, expression: Value) -> Value:
        """Store the value, and before it what the expression itself binds, in local memory: TVM would put a variable's value
        in every place.
        """

        def bound(let: Value, mutator: Any) -> Value:
            element = self._element(dtype_of(let.var), mutator.mutate(let.value))
            return mutator.mutate(substitute(let.body, {let.var: element}))

        value = tvm_ffi.structural_mutate(expression, [(tirx.Let, bound)])
        return self._element(dtype_of(value), value)

    def _element(self, dtype: str, value: Value) -> Value:
        """Store a value and return its load."""
        assert self._stores is not None
        buffer = flat_buffer("held", 1, dtype)
        self._stores += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, self._arithmetic(value), [i32(0)])]
        return tirx.BufferLoad(buffer, [i32(0)])

    def _arithmetic(self, value: Value) -> Value:
        """Return an expression with bounds as maxima and minima, and products joined to sums."""
        changes: list[Any] = [(tirx.Select, _bounded)]
        if self._joined:
            changes.append((tirx.Add, _joined))
        return tvm_ffi.structural_map(value, changes, order="post")


def _bounded(choice: Value) -> Value:
    """Return a choice as a maximum or minimum with a constant, if it is one; others unchanged."""
    for compared, made in ((tirx.LT, tirx.Max), (tirx.GT, tirx.Min)):
        test = choice.condition
        if type(test) is compared and isinstance(test.b, tirx.FloatImm) and _same(test.a, choice.false_value):
            same = isinstance(choice.true_value, tirx.FloatImm) and choice.true_value.value == test.b.value
            return made(test.a, test.b) if same else choice
    return choice


def _same(a: Value, b: Value) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))


def _joined(total: Value) -> Value:
    """Return a product and a sum as one instruction."""
    if dtype_of(total) != "float32" or not isinstance(total.a, tirx.Mul):
        return total
    return call("mlaf", total.a.a, total.a.b, total.b)
