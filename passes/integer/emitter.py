"""Emission of integer operators: calls of PrimFuncs that are written in TE, with their attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered, dtype_of, shape_of
from tvm_cascade.passes.integer.untyped import Builder, Function, Tensor, Value, relax, te
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

    def emit(self, value: Value) -> Value:
        """Binds a value of the new function to a new variable."""
        made = self.builder.emit(value, name_hint=self.name)
        self.places[made] = self.place
        return made

    def new(self, expr: Value) -> Value:
        """The new function's value for a value of the old function."""
        return self.renamed.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def call(self, kind: str, compute: Callable[..., Tensor], operands: Sequence[Operand], **attributes: Any) -> Value:
        """Emits `call_tir` of the PrimFunc that `compute` describes.

        Parameters
        ----------
        kind : str
            The kind of the operator, and the name of the PrimFunc.
        compute : function
            From placeholders, in the order of `operands`, to the output (TE).
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
        placeholders = [te.placeholder(shape_of(a), dtype_of(a), f"p{i}") for i, a in enumerate(arguments)]
        output = compute(*(placeholders[order.index(k)] for k in range(len(order))))
        func = te.create_prim_func([*placeholders, output], index_dtype_override="int32").without_attr("global_symbol")
        return self.call_func(kind, func, arguments, activations, **attributes)

    def call_func(
        self, kind: str, func: Function, arguments: Sequence[Value], activations: int, **attributes: Any
    ) -> Value:
        """Emits `call_tir` of a PrimFunc of one output; `arguments` are values of the new function: `activations`
        activations, then constants."""
        gvar = self.builder.add_func(with_spec(func, kind, activations, Attributes(**attributes)), kind)
        output = func.params[-1]
        out_type = relax.TensorType([int(d) for d in output.shape], output.dtype)
        return self.emit(relax.call_tir(gvar, arguments, out_type))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """A view, emitted only where the shape changes."""
        if shape_of(value) == tuple(shape):
            return value
        return self.emit(relax.op.reshape(value, list(shape)))
