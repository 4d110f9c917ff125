"""Transpositions, parts and repetitions as exporters write them, in the fewest operators: the operands of attention in
PyTorch's files.

`torch.export` transposes the heads of a key by three reshapes and two transpositions, takes queries, keys and values out of
one product behind a transposition of all three, and repeats the heads of a group of queries by a broadcast between two
reshapes. Here any run of transpositions, and of reshapes that add or drop axes of extent 1, is one transposition, or a reshape
where long axes keep their order. A part is taken in front of such a run. The broadcast is a `repeat`.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_cascade.passes.integer.expressions import constant_of, name_of, shape_of
from tvm_cascade.passes.relax_functions import without_dead_code
from tvm_cascade.passes.static_regions import loses_calls_out
from tvm_cascade.program.quant import NotLowered

Value = Any
_RESHAPES = ("relax.reshape", "relax.squeeze", "relax.expand_dims")
_TRANSPOSITION = "relax.permute_dims"


def with_plain_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite transpositions, parts behind them and repetitions of heads, and remove operators that nobody reads any more.

    Returns `mod` itself if an unread call out of TVM would go with these.
    """

    @relax.expr_functor.mutator
    class Rewriter(relax.PyExprMutator):
        def visit_call_(self, op: Any) -> Any:
            call = self.visit_expr_post_order(op)
            form = _FORMS.get(name_of(call))
            if form is None:
                return call
            try:
                made = form(call, self._definition, self.builder_.emit)
            except NotLowered:  # a symbolic shape, or a slice at a symbolic place
                return call
            return call if made is None else made

        def _definition(self, value: Value) -> Value:
            while isinstance(value, relax.Var) and (bound := self.lookup_binding(value)) is not None:
                value = bound
            return value

    rewriter = Rewriter(mod.clone())
    for gv, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(gv, rewriter.visit_expr(func))
    rewritten = without_dead_code(rewriter.builder_.get())
    return mod if loses_calls_out(mod, rewritten) else rewritten


_Definition = Callable[[Value], Value]
_Emit = Callable[[Value], Value]


@dataclass(frozen=True)
class _Run:
    """Transpositions, and reshapes that add or drop axes of extent 1, behind one another."""

    source: Value
    shape: tuple[int, ...]  # of the result
    places: tuple[
        int, ...
    ]  # of each long axis of the result among those of the source; a long axis has more than one element
    transpositions: int

    def applied(self, emit: _Emit, part: tuple[int, int, int] | None = None) -> Value | None:
        """Return the run as a reshape and a transposition. `part`: of a long axis of the result, by its number in the shape,
        the first element and the end.

        Returns None for a transposition that the run has already, or that needs more axes than the result has, and for empty
        tensors.
        """
        source, given = self.source, shape_of(self.source)
        if 0 in given:
            return None
        long, shape = _long(given), list(self.shape)
        ranks = [k for k, d in enumerate(given) if d > 1]
        if part is not None:
            axis, begin, end = part
            at = self.places[sum(d > 1 for d in shape[:axis])]
            source = emit(relax.op.strided_slice(source, [ranks[at]], [begin], [end]))
            long[at] = shape[axis] = end - begin
        if list(self.places) == sorted(self.places):
            return relax.op.reshape(source, shape)
        short = len(shape) - len(long)
        if short < 0 or (part is None and self.transpositions < 2):
            return None
        rest, at_long = iter(range(short)), iter(short + p for p in self.places)
        axes = [next(at_long) if d > 1 else next(rest) for d in self.shape]
        reshaped = [*[1] * short, *long]
        if list(shape_of(source)) != reshaped:
            source = emit(relax.op.reshape(source, reshaped))
        return relax.op.permute_dims(source, axes)


def _run(value: Value, definition: _Definition) -> _Run:
    """Follow a value back through transpositions and reshapes that add or drop axes of extent 1."""
    shape, source, count = shape_of(value), value, 0
    places = list(range(len(_long(shape))))
    while _moves(inner := definition(source)):
        if name_of(inner) == _TRANSPOSITION:
            count += 1
            long = [a for a in _axes(inner) if shape_of(inner)[_axes(inner).index(a)] > 1]
            places = [sorted(long).index(long[p]) for p in places]
        source = inner.args[0]
    return _Run(source, shape, tuple(places), count)


def _moves(value: Value) -> bool:
    """Test whether a value is a transposition, or a reshape that adds or drops axes of extent 1."""
    if name_of(value) == _TRANSPOSITION:
        return True
    return name_of(value) in _RESHAPES and _long(shape_of(value)) == _long(shape_of(value.args[0]))


def _long(shape: Sequence[int]) -> list[int]:
    return [d for d in shape if d > 1]


def _axes(call: Value) -> list[int]:
    rank = len(shape_of(call))
    given = call.attrs.axes
    return [int(a) % rank for a in given] if given is not None else list(range(rank))[::-1]


def _transposed(call: Value, definition: _Definition, emit: _Emit) -> Value | None:
    return _run(call, definition).applied(emit)


def _part(call: Value, definition: _Definition, emit: _Emit) -> Value | None:
    """Return a transposed tensor's slice along one axis as a slice's transposition."""
    numbers = [_integers(held) for held in call.args[1:]]
    if len(numbers) < 3 or any(len(v) != 1 for v in numbers) or any(v != [1] for v in numbers[3:]):
        return None
    shape = shape_of(call.args[0])
    axis, begin, end = numbers[0][0] % len(shape), numbers[1][0], numbers[2][0]
    extent = shape[axis]
    begin, end = (min(max(v + extent if v < 0 else v, 0), extent) for v in (begin, end))
    return _taken(call.args[0], (axis, begin, end), definition, emit)


def _integers(argument: Value) -> list[int]:
    """Return the integers of a slice's argument. Raises `NotLowered` for symbolic ones."""
    held = getattr(argument, "fields", getattr(argument, "values", None))
    numbers = [getattr(n, "value", n) for n in (() if held is None else held)]
    if held is None or not all(isinstance(n, (int, tirx.IntImm)) for n in numbers):
        raise NotLowered("a slice whose place is not known")
    return [int(n) for n in numbers]


def _taken(value: Value, part: tuple[int, int, int], definition: _Definition, emit: _Emit) -> Value | None:
    run, (axis, begin, end) = _run(value, definition), part
    if run.transpositions == 0 or begin >= end or run.shape[axis] == 1:
        return None
    return run.applied(emit, part)


def _element(call: Value, definition: _Definition, emit: _Emit) -> Value | None:
    """Return one element along an axis of a transposed tensor as a slice in front of the transposition."""
    index = constant_of(call.args[1])
    if index is None or index.ndim or call.attrs.axis is None:
        return None
    shape = shape_of(call.args[0])
    axis = int(call.attrs.axis) % len(shape)
    at = int(index) + (shape[axis] if index < 0 else 0)
    made = _taken(call.args[0], (axis, at, at + 1), definition, emit) if 0 <= at < shape[axis] else None
    return None if made is None else relax.op.reshape(emit(made), shape_of(call))


def _repeated(call: Value, definition: _Definition, emit: _Emit) -> Value | None:
    """Return a reshape of a broadcast behind another axis, `[.., n, 1, ..]` to `[.., n * times, ..]`, as a `repeat`."""
    inner = definition(call.args[0])
    if name_of(inner) != "relax.broadcast_to":
        return None
    given, wide, shape = shape_of(inner.args[0]), shape_of(inner), shape_of(call)
    grown = [a for a in range(len(wide)) if len(given) == len(wide) and given[a] != wide[a]]
    if len(grown) != 1 or grown[0] == 0:
        return None
    (axis,) = grown
    joined = (*wide[: axis - 1], wide[axis - 1] * wide[axis], *wide[axis + 1 :])
    if _long(joined) != _long(shape):
        return None
    narrow = emit(relax.op.reshape(inner.args[0], (*given[:axis], *given[axis + 1 :])))
    repeated = relax.op.repeat(narrow, wide[axis], axis - 1)
    return repeated if joined == shape else relax.op.reshape(emit(repeated), shape)


_FORMS: dict[str, Callable[[Value, _Definition, _Emit], Value | None]] = {
    _TRANSPOSITION: _transposed,
    "relax.reshape": _repeated,
    "relax.strided_slice": _part,
    "relax.take": _element,
}
