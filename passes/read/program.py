"""`read_program`: reads a straight-line Relax function as operator calls on numbered values.

A value is a tensor: a parameter, a constant, or an output of a call. Tuples are resolved while reading, so no call
reads or writes one: `arguments` and `result` nest value numbers as the function nests tuples. Built on this are
`relax_ops` (PrimFunc calls), `stage_graph` (Relax operators to schedule) and `substitution_read` (a graph to rewrite).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.origin import file_name

Argument = Any  # a value's number, a tuple of arguments, or None for anything but a tensor: a shape, scalar or function


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor in the program. `shape` raises `GraphError` if the type is not a tensor with static shape."""

    name: str
    type: Any  # relax.Type
    constant: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return static_shape(self.type, self.name)

    @property
    def dtype(self) -> str:
        return str(self.type.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCall:
    """A call of an operator."""

    name: str  # of the Relax operator without `relax.` (nn.conv2d, call_tir), or of the called function
    expr: Any  # relax.Call
    arguments: tuple[Argument, ...]  # one for each argument of `expr`
    outputs: tuple[int, ...]  # value numbers
    several: bool  # whether the result is a tuple

    @property
    def last_name(self) -> str:
        """Return the name without the namespace: conv2d for nn.conv2d."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A straight-line function: values, and operator calls in program order."""

    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    calls: tuple[OperatorCall, ...]
    result: Argument
    definitions: Mapping[Any, Any]  # Relax variable -> the expression bound to it
    matches_shapes: bool  # the function checks types at run time (match_cast)
    _names: Mapping[Any, Argument] = field(repr=False)  # Relax variable or constant -> value numbers

    def argument(self, expr: Any) -> Argument:
        """Return the value numbers of an expression in the function."""
        return _argument(expr, self._names)

    @property
    def constants(self) -> dict[int, np.ndarray]:
        """Return the arrays of all constants, by value number."""
        return {k: v.constant for k, v in enumerate(self.values) if v.constant is not None}


def numbers_in(argument: Argument) -> Iterator[int]:
    """Yield the value numbers in an argument, nested tuples flattened."""
    if isinstance(argument, int):
        yield argument
    for part in argument if isinstance(argument, tuple) else ():
        yield from numbers_in(part)


def is_constant(expr: Any) -> bool:
    """Return True if a Relax expression is a constant tensor."""
    return hasattr(expr, "value") and hasattr(expr.value, "numpy")


def static_shape(ty: Any, name: str) -> tuple[int, ...]:
    """Return a tensor type's shape; `name` is for the message. Raises `GraphError` if it is not a static tensor shape."""
    if not isinstance(ty, relax.TensorType):
        raise GraphError(f"{name} is no tensor but {ty}")
    extents = getattr(ty.shape, "values", None)
    if extents is None or not all(hasattr(d, "value") for d in extents):
        raise GraphError(f"the shape of {name} is not static: fix it with input shapes")
    return tuple(int(d) for d in extents)


def read_program(func: relax.Function) -> Program:
    """Read a function as a `Program`. Raises `GraphError` for anything but straight-line code."""
    return _Reader().read(func)


class _Reader:
    def __init__(self) -> None:
        self._values: list[Value] = []
        self._calls: list[OperatorCall] = []
        self._names: dict[Any, Argument] = {}
        self._definitions: dict[Any, Any] = {}
        self._matches_shapes = False

    def read(self, func: relax.Function) -> Program:
        body: Any = func.body
        if not isinstance(body, relax.SeqExpr):
            raise GraphError("the function's body is no sequence of bindings")
        for param in func.params:
            self._names[param] = self._value(param.name, param.ty)
        inputs = tuple(self._names[p] for p in func.params)
        for block in body.blocks:
            for binding in block.bindings:
                self._bind(binding)
        result, values, calls = self._read(body.body), tuple(self._values), tuple(self._calls)
        return Program(values, inputs, calls, result, self._definitions, self._matches_shapes, self._names)

    def _bind(self, binding: Any) -> None:
        self._matches_shapes |= isinstance(binding, relax.MatchCast)
        self._definitions[binding.var] = binding.value
        if isinstance(binding.value, relax.Call):
            self._names[binding.var] = self._call(binding.value, binding.var)
            return
        self._names[binding.var] = known = self._read(binding.value)
        if isinstance(known, int) and file_name(binding.var.name) and not file_name(self._values[known].name):
            self._values[known] = replace(self._values[known], name=binding.var.name)
        if known is None:
            what = f"{type(binding.value).__name__} in the function"
            raise GraphError(f"{what}: only straight-line code of operators is supported")

    def _call(self, call: Any, var: Any) -> Argument:
        name = getattr(call.op, "name", None) or getattr(call.op, "name_hint", None) or str(call.op)
        arguments = tuple(self._read(a) for a in call.args)
        several = isinstance(var.ty, relax.TupleType)
        if several:
            outputs = tuple(self._value(f"{var.name}:{k}", ty) for k, ty in enumerate(var.ty.fields))
        else:
            outputs = (self._value(var.name, var.ty),)
        self._calls.append(OperatorCall(str(name).removeprefix("relax."), call, arguments, outputs, several))
        return outputs if several else outputs[0]

    def _read(self, expr: Any) -> Argument:
        """Return an expression's value numbers; add constants met for the first time as values."""
        leaves: list[Any] = list(expr.fields) if isinstance(expr, relax.Tuple) else [expr]
        for leaf in leaves:
            if isinstance(leaf, relax.Call):
                raise GraphError("calls are nested: normalize the module first")
            if isinstance(leaf, relax.Tuple):
                self._read(leaf)
            elif is_constant(leaf) and leaf not in self._names:
                self._names[leaf] = self._value("constant", leaf.ty, leaf.value.numpy())
        return _argument(expr, self._names)

    def _value(self, name: str, ty: Any, constant: np.ndarray | None = None) -> int:
        self._values.append(Value(name, ty, constant))
        return len(self._values) - 1


def _argument(expr: Any, names: Mapping[Any, Argument]) -> Argument:
    if isinstance(expr, relax.Tuple):
        return tuple(_argument(f, names) for f in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        fields = _argument(expr.tuple_value, names)
        if not isinstance(fields, tuple):
            raise GraphError(f"{expr.tuple_value} is a tuple that the function gets from its caller")
        return fields[expr.index]
    return names.get(expr) if isinstance(expr, relax.Var) or is_constant(expr) else None
