"""Accessors of Relax expressions for lowering functions (operator, constant, shape)."""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.untyped import Function, Module, Value, ir, relax
from tvm_cascade.program.quant import NotLowered


def name_of(expr: Value) -> str:
    """Return a call's operator name, "" for anything else."""
    return str(getattr(expr.op, "name", "")) if isinstance(expr, relax.Call) else ""


def constant_of(expr: Value) -> np.ndarray | None:
    """Return a constant's data; None for any other expression."""
    return expr.value.numpy() if is_constant(expr) else None


def is_constant(expr: Value) -> bool:
    """Return True for a constant, without the copy made by `constant_of`."""
    return isinstance(expr, ir.GenericConst)


def constant(data: np.ndarray | np.generic) -> Value:
    """Return a constant with the element type of `data`; without a type, Relax narrows 64-bit elements to 32 bits."""
    return relax.const(np.ascontiguousarray(data) if data.ndim else data, str(data.dtype))


def shape_of(expr: Value) -> tuple[int, ...]:
    """Return the static shape; raises `NotLowered` for a symbolic one."""
    try:
        return tuple(int(d) for d in expr.ty.shape.values[:])
    except (AttributeError, TypeError) as error:
        raise NotLowered("a shape that is not static") from error


def number_of(prim: Value) -> float:
    """Return a call's scalar argument as a Python float, in any TVM node."""
    value = getattr(prim, "value", prim)
    return float(getattr(value, "value", value))


def attributes(holder: Function | Module) -> dict[str, object]:
    """Return the attributes on a function or module; empty without any."""
    return {str(k): v for k, v in holder.attrs.items()} if holder.attrs is not None else {}


def dtype_of(expr: Value) -> str:
    """Return an expression's element type, such as "int8"; "" unless it is a tensor."""
    return str(getattr(expr.ty, "dtype", ""))
