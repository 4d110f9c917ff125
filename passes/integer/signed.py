"""Choose uint8 tensors to store as int8, every value and zero point 128 less: all tensors touched only by quantized
operators. The network stays the same, in the kernels' fastest type.

The function's inputs and outputs keep their type, and so do tensors connected to one by copies alone: an operator that
copies or compares stored values takes a single type. An arithmetic kernel may read a single type and write the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvm_cascade.passes.integer.expressions import dtype_of, is_constant
from tvm_cascade.passes.integer.task import ANY, LOWERINGS, STORED
from tvm_cascade.passes.integer.untyped import Binding, Function, Value, relax
from tvm_cascade.passes.islands.reader import VIEWS, Operators, is_boundary
from tvm_cascade.program.operator import Operator, Quantized, computed

_UNSIGNED = "uint8"
# quantized operators whose results are stored values of their operands, or averages of them
_COPIES = ("concat", "max", "min", "maximum", "minimum", "resize2d", "avg_pool2d")
_MOVES = frozenset({*VIEWS, "clip", "split"})


def signed_variables(func: Function, bindings: Sequence[Binding], operators: Operators) -> frozenset[Value]:
    """Return the uint8 variables whose tensors are stored as int8; the result's tuples are included."""
    if not any(dtype_of(b.var) == _UNSIGNED for b in bindings):
        return frozenset()
    groups = _Groups()
    groups.keep([*func.params, *relax.analysis.free_vars(func.body.body)])
    casts = _casts_of_averages(bindings, operators)
    for binding in bindings:
        operator = operators.of(binding.var)
        kind = operator.kind if isinstance(operator, Operator) else ""
        if isinstance(operator, Operator) and operator.quant is not None:
            groups.join([binding.var, *(_stored(operator) if kind in _COPIES else ())])
        elif isinstance(operator, Operator) and (kind, "bool") in LOWERINGS and dtype_of(binding.var) == "bool":
            groups.join(_stored(operator))
        elif binding.var in casts:
            groups.join([binding.var, casts[binding.var]])
        elif kind == "astype" and binding.var in casts.values():
            groups.join([binding.var, binding.value.args[0]])
        elif _moves(binding.value, kind):
            groups.join([binding.var, *relax.analysis.free_vars(binding.value)])
        elif not is_boundary(binding.value) and LOWERINGS.keys().isdisjoint({(kind, ANY), (kind, "float32")}):
            groups.keep([binding.var, *relax.analysis.free_vars(binding.value)])
    return frozenset(b.var for b in bindings if dtype_of(b.var) == _UNSIGNED and not groups.is_kept(b.var))


def _moves(value: Value, kind: str) -> bool:
    """Return True if an expression moves stored values, none of them constant: a select may choose between constants."""
    if isinstance(value, (relax.Var, relax.Tuple, relax.TupleGetItem)):
        fields: Iterable[Any] = getattr(value, "fields", ())
    elif kind == "take" and not is_constant(value.args[1]):
        return False  # computed indices: no integer form
    elif kind in _MOVES or (kind, STORED) in LOWERINGS:
        fields = () if kind == "where" else value.args
    else:
        return False
    return not any(is_constant(f) and dtype_of(f) == _UNSIGNED for f in fields)


def _casts_of_averages(bindings: Sequence[Binding], operators: Operators) -> Mapping[Value, Value]:
    """Map variables to their source: an average of stored values, and the cast behind it."""
    found: dict[Value, Value] = {}
    for binding in bindings:
        cast = operators.of(binding.var)
        pool = (
            computed(cast.operands[0], "avg_pool2d") if isinstance(cast, Operator) and cast.kind == "astype" else None
        )
        if pool is not None and dtype_of(binding.var) == _UNSIGNED:
            found |= {binding.var: pool.output.source, pool.output.source: pool.value(0).source}
    return found


def _stored(operator: Operator) -> list[Value]:
    """Return the variables of an operator's stored operands."""
    operands: list[Any] = []
    for operand in operator.operands:
        operands += operand if isinstance(operand, tuple) else [operand]
    return [o.source for o in operands if isinstance(o, Quantized) and isinstance(o.source, relax.Var)]


class _Groups:
    """Disjoint variable sets with a single storage type; a single member that keeps its type keeps the whole set."""

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
