"""Emit integer operators: calls to PrimFuncs written in TE, with attributes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.integer.untyped import Builder, Function, Tensor, Value, relax, te
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.schedules.kernels.spec import Attributes, with_spec

Operand = Value | np.ndarray  # a Relax value, or the data of a constant


@dataclass(slots=True)
class Emitter:
    """Emits calls of PrimFuncs into the new function."""

    builder: Builder
    renamed: Mapping[Value, Value]
    name: str = ""  # of the tensor being computed
    place: int = 0  # of the binding being lowered, in the old function
    places: dict[Value, int] = field(default_factory=dict[Value, int])  # `place` of every variable emitted
    # functions that `call` wrote, and the types of their outputs, by what they were written from
    written: dict[Hashable, tuple[Value, Value]] = field(default_factory=dict[Hashable, tuple[Value, Value]])

    def emit(self, value: Value, name: str | None = None) -> Value:
        """Bind a value in the new function to a new variable, named after the tensor unless a name is given."""
        made = self.builder.emit(value, name_hint=self.name if name is None else name)
        self.places[made] = self.place
        return made

    def new(self, expr: Value) -> Value:
        """Return the new function's value for an old value."""
        return self.renamed.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def call(self, kind: str, compute: Callable[..., Tensor], operands: Sequence[Operand], **attributes: Any) -> Value:
        """Emit `call_tir` for the PrimFunc described by `compute`.

        Parameters
        ----------
        kind : str
            The kind of the operator, and the name of the PrimFunc.
        compute : function
            From placeholders, in the order of `operands`, to the output (TE). Equal ones (records, not closures) are
            written once for operands of the same types.
        operands : values of the old function or the new one, and arrays, which become constants
            The PrimFunc takes the arrays last.
        attributes : fields of `Attributes`, the parameters of the operator, for hand-optimised kernels

        Raises
        ------
        NotLowered
            Where all operands are arrays.
        """
        order = sorted(range(len(operands)), key=lambda k: isinstance(operands[k], np.ndarray))
        activations = sum(not isinstance(o, np.ndarray) for o in operands)
        if not activations:
            raise NotLowered("all of its operands are constant")
        given = [operands[k] for k in order]
        arguments = [relax.const(o, str(o.dtype)) if isinstance(o, np.ndarray) else self.new(o) for o in given]
        types = tuple((shape_of(a), dtype_of(a)) for a in arguments)
        described = Attributes(**attributes)
        key = kind, compute, tuple(order), types, activations, described
        if key not in self.written:
            placeholders = [te.placeholder(*of, f"p{i}") for i, of in enumerate(types)]
            output = compute(*(placeholders[order.index(k)] for k in range(len(order))))
            func = te.create_prim_func([*placeholders, output], index_dtype_override="int32")
            self.written[key] = self._function(func.without_attr("global_symbol"), kind, activations, described)
        return self._call(*self.written[key], arguments)

    def call_func(
        self, kind: str, func: Function, arguments: Sequence[Value], activations: int, **attributes: Any
    ) -> Value:
        """Emit `call_tir` for a PrimFunc with one output; `arguments` are new values: `activations` activations, then
        constants.
        """
        return self._call(*self._function(func, kind, activations, Attributes(**attributes)), arguments)

    def call_for_each(
        self, kind: str, func: Function, arguments: Sequence[Value], activations: int, outputs: int, **attributes: Any
    ) -> list[Value]:
        """Emit `call_tir` for a PrimFunc with several outputs, its last parameters; return a value for each."""
        types = [relax.TensorType([int(d) for d in p.shape], p.dtype) for p in func.params[-outputs:]]
        called = self.builder.add_func(with_spec(func, kind, activations, Attributes(**attributes)), kind)
        made = self.emit(relax.call_tir(called, arguments, types))
        return [self.emit(relax.TupleGetItem(made, k)) for k in range(outputs)]

    def _function(self, func: Function, kind: str, activations: int, attributes: Attributes) -> tuple[Value, Value]:
        """Return a PrimFunc's global variable in the new module, and its output's type."""
        output = func.params[-1]
        out_type = relax.TensorType([int(d) for d in output.shape], output.dtype)
        return self.builder.add_func(with_spec(func, kind, activations, attributes), kind), out_type

    def _call(self, function: Value, out_type: Value, arguments: Sequence[Value]) -> Value:
        return self.emit(relax.call_tir(function, arguments, out_type))

    def filled(self, shape: Sequence[int], value: int, dtype: str) -> Value:
        """Return a tensor filled with one value, regardless of operands: it is folded, and computations only for the
        operands are dropped.
        """
        return self.emit(relax.op.full(list(shape), relax.const(value, dtype), dtype))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Emit a view, only if the shape changes."""
        if shape_of(value) == tuple(shape):
            return value
        return self.emit(relax.op.reshape(value, list(shape)))
