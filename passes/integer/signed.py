"""Which uint8 tensors of a function are stored as int8, every value and zero point 128 less: all that only quantized
operators touch. The same network, in the type that kernels are fastest in.

Inputs and outputs of the function keep their type, and so do tensors that reach one through copies alone: what copies
or compares stored values takes all of them in one type. A kernel of arithmetic may read the one type and write the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvm_cascade.passes.integer.expressions import NotLowered, dtype_of, is_constant, name_of
from tvm_cascade.passes.integer.island import DIRECT, FLOAT, INDEX, TESTS, VIEWS, Reader
from tvm_cascade.passes.integer.untyped import Binding, Call, Function, Value, relax

_UNSIGNED = "uint8"
# operators between dequantize and quantize whose results are stored values of their operands, or averages of them
_COPIES = frozenset(
    f"relax.{name}" for name in ("concat", "max", "min", "maximum", "minimum", "image.resize2d", "nn.avg_pool2d")
)
_MOVES = frozenset({*VIEWS, "relax.clip", "relax.split"})


def signed_variables(func: Function, bindings: Sequence[Binding], reader: Reader) -> frozenset[Value]:
    """The variables of type uint8 whose tensors are stored as int8; the result's tuples are among them."""
    groups = _Groups()
    groups.keep([*func.params, *relax.analysis.free_vars(func.body.body)])
    casts = _casts_of_averages(bindings, reader)
    for binding in bindings:
        operator = name_of(binding.value)
        if operator == "relax.quantize":
            groups.join([binding.var, *_copied(binding.value, reader)])
        elif operator in TESTS.functions and dtype_of(binding.var) == "bool":
            groups.join(_stored(binding.value, reader))
        elif binding.var in casts:
            groups.join([binding.var, casts[binding.var]])
        elif operator == "relax.astype" and binding.var in casts.values():
            groups.join([binding.var, binding.value.args[0]])
        elif _moves(binding.value):
            groups.join([binding.var, *relax.analysis.free_vars(binding.value)])
        elif operator not in ("relax.dequantize", *INDEX.functions, *FLOAT.functions):
            groups.keep([binding.var, *relax.analysis.free_vars(binding.value)])
    return frozenset(b.var for b in bindings if dtype_of(b.var) == _UNSIGNED and not groups.is_kept(b.var))


def _moves(value: Value) -> bool:
    """Whether an expression moves stored values, none of them constant: a select may choose between constants."""
    if isinstance(value, (relax.Var, relax.Tuple, relax.TupleGetItem)):
        fields: Iterable[Any] = getattr(value, "fields", ())
    elif name_of(value) == "relax.take" and not is_constant(value.args[1]):
        return False  # computed indices: no integer form
    elif name_of(value) in _MOVES or name_of(value) in DIRECT.functions:
        fields = () if name_of(value) == "relax.where" else value.args
    else:
        return False
    return not any(is_constant(f) and dtype_of(f) == _UNSIGNED for f in fields)


def _casts_of_averages(bindings: Sequence[Binding], reader: Reader) -> Mapping[Value, Value]:
    """By variable, what it is made from: an average of stored values, and the cast behind it."""
    found: dict[Value, Value] = {}
    for binding in bindings:
        averages = binding.value.args[0] if name_of(binding.value) == "relax.astype" else None
        pool = reader.define(averages)
        if name_of(pool) == "relax.nn.avg_pool2d" and dtype_of(binding.var) == _UNSIGNED:
            found |= {binding.var: averages, averages: pool.args[0]}
    return found


def _copied(quantize: Call, reader: Reader) -> list[Value]:
    """The stored tensors whose values the island that ends in `quantize` copies."""
    try:
        core = reader.island(quantize).core
    except NotLowered:
        return []
    return _stored(core, reader) if name_of(core) in _COPIES else []


def _stored(core: Call, reader: Reader) -> list[Value]:
    """The stored tensors from which the operands of `core` are dequantized."""
    operands: list[Any] = []
    for operand in core.args:
        operands += getattr(reader.define(operand), "fields", [operand])
    calls = [reader.define(o) for o in operands]
    return [c.args[0] for c in calls if name_of(c) == "relax.dequantize" and isinstance(c.args[0], relax.Var)]


class _Groups:
    """Disjoint sets of variables that are stored in one type; a set with a member that keeps its type keeps it whole."""

    def __init__(self) -> None:
        self._above: dict[Value, Value] = {}
        self._kept: set[Value] = set()

    def _top(self, variable: Value) -> Value:
        while variable in self._above:
            variable = self._above[variable]
        return variable

    def join(self, variables: Sequence[Value]) -> None:
        tops = [*{self._top(v): None for v in variables}]
        for other in tops[1:]:
            self._above[other] = tops[0]
        if any(top in self._kept for top in tops):
            self._kept.add(tops[0])

    def keep(self, variables: Sequence[Value]) -> None:
        self._kept.update(self._top(v) for v in variables)

    def is_kept(self, variable: Value) -> bool:
        return self._top(variable) in self._kept
