"""Operators that file readers expand into several, as a single operator with its own kind.

| kind | of real numbers | operands | attributes |
| --- | --- | --- | --- |
| conv2d, conv2d_transpose, matmul | `product(x, w) + b` | x, w, b | of the product |
| add_n | `a + b + ...` of more than two tensors | all of them | |
| squared_difference | `(a - b) * (a - b)` | a, b | |
| elu | `relu(x) - relu(1 - exp(x))` | x | |
| prelu | `relu(x) + slopes * min(x, 0)` | x, slopes, which are broadcast | axis: None |
| hard_swish | `x * clip(x + 3, 0, 6) / 6` | x | |
| l2_normalization | `x / sqrt(sum(x * x) + epsilon)` along the last axis | x | |
| softmax | `softmax(x * beta)` | x | of the softmax, and beta |
| stored_average | `astype(avg_pool2d(astype(x)))` of integers | x | of the pool |
| argmax, argmin | `astype(argmax(x))` | x | of the arg max |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tvm_cascade.program.operator import Operand, Operator, Quantized, computed, constant
from tvm_cascade.program.quant import STORED_TYPES

PRODUCTS = ("conv2d", "conv2d_transpose", "matmul")

Pattern = str | float | tuple[Any, ...]  # see `match`
_ELU = ("add", ("multiply", -1.0, ("relu", ("subtract", 1.0, ("exp", "x")))), ("relu", "x"))
_SLOPED = ("add", ("relu", "x"), ("multiply", "slopes", ("minimum", "x", 0.0)))
_HARD_SWISH = ("divide", ("multiply", "x", ("clip", ("add", "x", 3.0), 0.0, 6.0)), 6.0)
_SQUARED_DIFFERENCE = ("multiply", "d", "d")


def composite(operator: Operator) -> Operator:
    """Return the composite operator whose last operator in the file is `operator`; `operator` itself if there is none."""
    joins = _STORED if operator.quant is None else _QUANTIZED
    join = joins.get(operator.kind)
    return (join and join(operator)) or operator


def match(operand: Operand, pattern: Pattern, bound: dict[str, Operand] | None = None) -> dict[str, Operand] | None:
    """Match an operand against a pattern; return the bound operands by name, or None.

    A pattern is a tuple (kind, operand patterns), a number to equal, or a name. A name binds any operand, the same at
    every occurrence.
    """
    bound = {} if bound is None else bound
    if isinstance(pattern, str):
        return bound if bound.setdefault(pattern, operand) is operand else None
    if not isinstance(pattern, tuple):
        number = operand if isinstance(operand, (int, float)) else constant(operand)
        return bound if number is not None and np.all(number == pattern) else None
    kind, *inner = pattern
    if computed(operand, kind) is None or len(operand.operands) != len(inner):  # type: ignore[union-attr]
        return None
    pairs = zip(operand.operands, inner, strict=True)  # type: ignore[union-attr]
    return bound if all(match(o, p, bound) is not None for o, p in pairs) else None


def _joined(operator: Operator, kind: str, *operands: Operand, **attributes: Any) -> Operator:
    return replace(operator, kind=kind, operands=operands, attributes=attributes, written=operator)


def _add(operator: Operator) -> Operator | None:
    left, right = operator.operands
    product = computed(left, *PRODUCTS)
    if product is not None:
        return _joined(operator, product.kind, *product.operands[:2], right, **product.attributes)
    if (sloped := match(operator, _SLOPED)) is not None:
        return _joined(operator, "prelu", sloped["x"], sloped["slopes"], axis=None)
    if (elu := match(operator, _ELU)) is not None:
        return _joined(operator, "elu", elu["x"])
    summands = _summands(operator)
    few = len(summands) < 3 or any(not _is_summand(s) for s in summands)
    return None if few else _joined(operator, "add_n", *summands)


def _summands(operator: Operator) -> list[Operand]:
    """Return the operands of nested adds, in order."""
    found, waiting = list[Operand](), list(operator.operands)
    while waiting:
        operand = waiting.pop(0)
        inner = computed(operand, "add")
        if inner is None:
            found.append(operand)
        else:
            waiting[:0] = inner.operands
    return found


def _is_summand(operand: Operand) -> bool:
    return isinstance(operand, Quantized) and operand.scale.size == 1 and operand.dtype in STORED_TYPES


def _multiply(operator: Operator) -> Operator | None:
    found = match(operator, _SQUARED_DIFFERENCE)
    difference = computed(found["d"], "subtract") if found is not None else None
    if difference is None or not all(isinstance(o, Quantized) for o in difference.operands):
        return None
    return _joined(operator, "squared_difference", *difference.operands)


def _divide(operator: Operator) -> Operator | None:
    swish = match(operator, _HARD_SWISH)
    if swish is not None:
        return _joined(operator, "hard_swish", swish["x"])
    x, divisor = operator.operands
    root = computed(divisor, "sqrt")
    total = None if root is None else computed(root.operands[0], "sum", "add")
    if total is not None and total.kind == "add":
        total = computed(total.operands[0], "sum")
    if total is None or total.attributes["axis"] is None or not total.attributes["keepdims"]:
        return None
    square, last = computed(total.operands[0], "square"), len(operator.output.shape) - 1
    along_last = [int(a) % (last + 1) for a in total.attributes["axis"]] == [last]
    same = square is not None and square.operands[0] is x
    return _joined(operator, "l2_normalization", x) if same and along_last else None


def _softmax(operator: Operator) -> Operator | None:
    scaled = computed(operator.operands[0], "multiply")
    beta = None if scaled is None else constant(scaled.operands[1])
    if scaled is None or beta is None or beta.size != 1:
        return None
    return _joined(operator, "softmax", scaled.operands[0], **operator.attributes, beta=float(beta.reshape(-1)[0]))


def _cast(operator: Operator) -> Operator | None:
    inner = computed(operator.operands[0], "argmax", "argmin", "avg_pool2d")
    if inner is None:
        return None
    if inner.kind != "avg_pool2d":
        return _joined(operator, inner.kind, *inner.operands, **inner.attributes)
    widened = computed(inner.operands[0], "astype")
    if widened is None or not {widened.value(0).dtype, operator.output.dtype} <= {*STORED_TYPES}:
        return None
    return _joined(operator, "stored_average", widened.operands[0], **inner.attributes)


_Join = Callable[[Operator], "Operator | None"]
_QUANTIZED: Mapping[str, _Join] = {"add": _add, "multiply": _multiply, "divide": _divide, "softmax": _softmax}
_STORED: Mapping[str, _Join] = {"astype": _cast}
