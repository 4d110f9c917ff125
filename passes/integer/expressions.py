"""Accessors of Relax expressions for lowering functions (operator, constant, shape)."""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.untyped import Function, Module, Value, ir, relax
from tvm_cascade.program.quant import NotLowered


def name_of(expr: Value) -> str:
    """The name of a call's operator, empty for anything else."""
    return str(getattr(expr.op, "name", "")) if isinstance(expr, relax.Call) else ""


def constant_of(expr: Value) -> np.ndarray | None:
    """The data of a constant; None for any other expression."""
    return expr.value.numpy() if is_constant(expr) else None


def is_constant(expr: Value) -> bool:
    """Whether an expression is a constant, which `constant_of` would copy."""
    return isinstance(expr, ir.GenericConst)


def constant(data: np.ndarray | np.generic) -> Value:
    """A constant of the element type of `data`; without a type, Relax makes 64-bit elements 32-bit ones."""
    return relax.const(np.ascontiguousarray(data) if data.ndim else data, str(data.dtype))


def shape_of(expr: Value) -> tuple[int, ...]:
    """The static shape; raises `NotLowered` if it is symbolic."""
    try:
        return tuple(int(d) for d in expr.ty.shape.values[:])
    except (AttributeError, TypeError) as error:
        raise NotLowered("a shape that is not static") from error


def number_of(prim: Value) -> float:
    """A scalar argument of a call as a Python float, whatever TVM node wraps it."""
    value = getattr(prim, "value", prim)
    return float(getattr(value, "value", value))


def attributes(holder: Function | Module) -> dict[str, object]:
    """The attributes of a function or module; empty where it has none."""
    return {str(k): v for k, v in holder.attrs.items()} if holder.attrs is not None else {}


def dtype_of(expr: Value) -> str:
    """The element type of an expression, such as "int8"; empty for what is no tensor."""
    return str(getattr(expr.ty, "dtype", ""))
