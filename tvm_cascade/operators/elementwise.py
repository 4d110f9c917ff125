"""Element-wise operators with one and with two operands (which broadcast), and fused expressions.

Attributes: `low`, `high` of a clip; `program` of a fused operator, an expression tree (a term) that is either an
operand's index or (kind, attributes, terms).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.operators.record import Array, Attributes, Family, Operator, TensorType, Types
from tvm_cascade.operators.shapes import broadcast


def same_type(read: Types, attrs: Attributes) -> Types:
    """Return the type of operand 0 as the output's."""
    return (read[0],)


def broadcast_type(read: Types, attrs: Attributes) -> Types:
    """Return the operands' broadcast shape with the dtype of operand 0."""
    return (TensorType(broadcast([t.shape for t in read]), read[0].dtype),)


def _binary(kind: str, function: Callable[[Array, Array], Array], *also: str, commutative: bool = True) -> Operator:
    def evaluate(attrs: Attributes, x: Array, y: Array) -> Array:
        return function(x, y)

    return Operator(kind, Family.BINARY, broadcast_type, evaluate, also=also, commutative=commutative, elementwise=True)


def _unary(
    kind: str,
    function: Callable[[Array], Array],
    *also: str,
    activation: bool = False,
    movable: bool | None = None,
    takes_parts: bool = False,
) -> Operator:
    def evaluate(attrs: Attributes, x: Array) -> Array:
        return function(x).astype(x.dtype)

    return Operator(
        kind, Family.UNARY, same_type, evaluate, also=also, elementwise=True, activation=activation,
        movable=activation if movable is None else movable, takes_parts=takes_parts,
    )  # fmt: skip


def _scheduled_only(kind: str, *also: str) -> Operator:
    """Make an operator for scheduling graphs only: without types and semantics, as substitution graphs lack this
    operator.
    """
    return Operator(kind, Family.UNARY, also=also, elementwise=True)


def program_terms(program: Any) -> set[Any]:
    """Return the distinct terms of a program (kind, attributes, operands): repeated terms are computed once."""
    seen: set[Any] = set()

    def visit(term: Any) -> None:
        if isinstance(term, int) or term in seen:
            return
        seen.add(term)
        for t in term[2]:
            visit(t)

    visit(program)
    return seen


def program_steps(program: Any) -> int:
    """Count the distinct terms of a program."""
    return len(program_terms(program))


def _steps_of_fused(read: Types, made: Types, attrs: Attributes) -> int:
    return program_steps(attrs["program"]) * prod(made[0].shape)


def _run_program(attrs: Attributes, *read: Array) -> Array:
    def value(term: Any) -> Array:
        if isinstance(term, int):
            return read[term]
        kind, options, operands = term
        return _EVALUATE[kind](dict(options), *[value(t) for t in operands])

    return value(attrs["program"])


def activate(kind: str, x: Array) -> Array:
    """Apply the activation `kind` to `x`; '' is none."""
    return _EVALUATE[kind]({}, x) if kind else x


def _clip(attrs: Attributes, x: Array) -> Array:
    return np.clip(x, attrs["low"], attrs["high"]).astype(x.dtype)


_REWRITTEN = (
    _binary("add", lambda x, y: x + y),
    _binary("sub", lambda x, y: x - y, "subtract", commutative=False),
    _binary("mul", lambda x, y: x * y, "multiply"),
    _binary("div", lambda x, y: x / y, "divide", commutative=False),
    _binary("maximum", np.maximum),
    _binary("minimum", np.minimum),
    _unary("relu", lambda x: np.maximum(x, 0), activation=True, takes_parts=True),
    _unary("relu6", lambda x: np.clip(x, 0, 6), activation=True),
    _unary("sigmoid", lambda x: 1 / (1 + np.exp(-x)), activation=True),
    _unary("tanh", np.tanh, activation=True),
    _unary("silu", lambda x: x / (1 + np.exp(-x)), activation=True, movable=False),  # it falls before it rises
    _unary("exp", np.exp),
    _unary("sqrt", np.sqrt),
    _unary("rsqrt", lambda x: 1 / np.sqrt(x)),
    _unary("neg", lambda x: -x, "negative"),
    Operator("clip", Family.UNARY, same_type, _clip, elementwise=True, movable=True),
)
_EVALUATE: dict[str, Callable[..., Array]] = {o.kind: o.evaluate for o in _REWRITTEN if o.evaluate is not None}

OPERATORS = (
    *_REWRITTEN,
    Operator("fused", Family.FUSED, broadcast_type, _run_program, steps=_steps_of_fused, elementwise=True),
    _scheduled_only("bias_add"),
    _scheduled_only("gelu"),
    _scheduled_only("hard_swish", "hardswish"),
    _scheduled_only("leaky_relu", "leakyrelu", "lrelu"),
    _scheduled_only("elu"),
    _scheduled_only("abs"),
    _scheduled_only("log"),
    _scheduled_only("erf"),
    _scheduled_only("sin"),
    _scheduled_only("cos"),
    _scheduled_only("power"),
    _scheduled_only("cast", "astype"),
    _scheduled_only("quantize"),
    _scheduled_only("dequantize"),
    Operator("requantize", Family.UNARY, elementwise=True, takes_parts=True),
    Operator("lut", Family.UNARY, elementwise=True, takes_parts=True),
    _scheduled_only("identity", "tuple_get_item"),
)
