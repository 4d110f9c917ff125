"""`OPERATORS`: the entry for every operator kind, by each name, and the sets of kinds with a common trait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tvm_cascade.errors import GraphError
from tvm_cascade.operators import (
    convolutions,
    elementwise,
    movements,
    normalizations,
    pools,
    products,
    quantized,
    weights,
)
from tvm_cascade.operators.record import OTHER_EFFICIENCY, Array, Attributes, Family, Operator, Types

_ALL = (
    *convolutions.OPERATORS,
    *products.OPERATORS,
    *pools.OPERATORS,
    *elementwise.OPERATORS,
    *normalizations.OPERATORS,
    *movements.OPERATORS,
    *quantized.OPERATORS,
    *weights.OPERATORS,
)
OPERATORS: Mapping[str, Operator] = MappingProxyType({name: o for o in _ALL for name in (o.kind, *o.also)})


def kinds_where(condition: Callable[[Operator], object]) -> frozenset[str]:
    """Return all names of the kinds that meet a condition."""
    return frozenset(name for name, operator in OPERATORS.items() if condition(operator))


def _rewritten(family: Family) -> frozenset[str]:
    """Return a family's unquantized kinds in substitution graphs, by main name."""
    return frozenset(o.kind for o in _ALL if o.family is family and o.infer is not None and not o.unquantized)


BINARY = _rewritten(Family.BINARY)
UNARY = _rewritten(Family.UNARY)
COMMUTATIVE = kinds_where(lambda o: o.commutative)
ACTIVATIONS = kinds_where(lambda o: o.activation)
MOVABLE = kinds_where(lambda o: o.movable)
FUSIBLE = BINARY | UNARY | {"fused"}  # can be fused into one element-wise kernel
# Operators whose kernel can write its result into a part of a larger tensor.
WRITERS = frozenset(
    o.kind
    for o in _ALL
    if o.infer is not None and o.family not in (Family.NORMALIZATION, Family.MOVEMENT, Family.CONSTANT)
)
REDUCTIONS = kinds_where(lambda o: o.reduces)  # anchors of fused kernels
ELEMENTWISE = kinds_where(lambda o: o.elementwise)  # fused with their producers
MERGEABLE = kinds_where(lambda o: o.mergeable)
SLIDING = kinds_where(lambda o: o.windows is not None and not o.unquantized)  # read images by windows
CHANNELWISE = kinds_where(lambda o: o.channelwise)
CONVOLUTIONS = frozenset(k for k in SLIDING - CHANNELWISE if OPERATORS[k].family is Family.CONVOLUTION)
PRODUCTS = CONVOLUTIONS | kinds_where(lambda o: o.family is Family.PRODUCT and not o.unquantized)
VIEWS = kinds_where(lambda o: o.view)
TAKES_PARTS = kinds_where(lambda o: o.takes_parts)
SPLIT_REDUCTIONS = kinds_where(lambda o: o.splits_reduction)


def infer(kind: str, read: Types, attrs: Attributes) -> Types:
    """Infer the types of an operator's outputs. Raises `GraphError` for an unknown kind or operands that do not fit."""
    operator = OPERATORS.get(kind)
    if operator is None or operator.infer is None:
        raise GraphError(f"unknown operator {kind} in a substitution graph", "make it opaque", [kind])
    return operator.infer(read, attrs)


def evaluate(kind: str, attrs: Attributes, read: list[Array]) -> tuple[Array, ...]:
    """Evaluate an operator on operands. Raises `NotImplementedError` for a kind without numpy semantics."""
    operator = OPERATORS.get(kind)
    if operator is None or operator.evaluate is None:
        raise NotImplementedError(f"{kind} has no numpy meaning")
    made = operator.evaluate(attrs, *read)
    return made if isinstance(made, tuple) else (made,)


def family(kind: str) -> Family:
    """Return the family of a kind; the opaque family for a kind missing in the table."""
    return OPERATORS[kind].family if kind in OPERATORS else Family.OPAQUE


def efficiency(kind: str) -> float:
    """Return the share of a device's arithmetic peak reached by this kind's kernels."""
    operator = OPERATORS.get(kind)
    return OTHER_EFFICIENCY if operator is None else operator.efficiency
