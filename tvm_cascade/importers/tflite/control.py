"""Converters of control flow: loops of a fixed number of steps are unrolled, branches are chosen when the network is compiled.

The condition and the body of a WHILE are subgraphs. What the loop carries is a constant (a counter), a value, or a list of
`tflite_lists`. The condition is computed from the constants, and while it holds the body is converted once more; operators
on counters are folded as those on shapes are (`tflite_shapes`). A branch by a computed condition computes both of its ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite.coverage import Unsupported
from tvm_cascade.importers.tflite.lists import Part
from tvm_cascade.importers.tflite.moves import Operator, Value, converts, relax, tflite
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.importers.tflite.states import VariableConverters
from tvm_cascade.passes.integer.island import STORED_TYPES

MAX_UNROLLED = 1 << 13  # operators of all steps together
_MAX_DEPTH = 4  # of subgraphs inside of one another
Carried: TypeAlias = Any  # an array, the parts of a list, or a value of Relax


class ControlConverters(VariableConverters):
    """Converters of WHILE, IF and CALL_ONCE."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.unrolled = [0]  # operators converted inside of subgraphs so far, one count for a whole network

    @converts("WHILE")
    def _while(self, op: Operator) -> None:
        options = self.options(op, tflite.WhileOptions)
        inputs, outputs = self.get_input_tensors(op), self.get_output_tensors(op)
        condition, body = (self._subgraph(k) for k in (options.CondSubgraphIndex(), options.BodySubgraphIndex()))
        counts = {len(inputs), len(outputs), body.InputsLength(), body.OutputsLength(), condition.InputsLength()}
        if len(counts) > 1 or condition.OutputsLength() != 1:
            raise InvalidForm("subgraphs of other numbers of inputs and outputs")
        kept = [body.Inputs(k) == body.Outputs(k) for k in range(len(inputs))]
        values = [
            self._given(t) if same else self._as_activation(self._given(t), t)
            for t, same in zip(inputs, kept, strict=True)
        ]
        while self._holds(self._inlined(condition, values)[0]):
            values = self._inlined(body, values)
        for output, value in zip(outputs, values, strict=True):
            self._take(output, value)

    @converts("IF")
    def _if(self, op: Operator) -> None:
        options = self.options(op, tflite.IfOptions)
        (condition, *inputs), outputs = self.get_input_tensors(op), self.get_output_tensors(op)
        ways = [self._subgraph(k) for k in (options.ThenSubgraphIndex(), options.ElseSubgraphIndex())]
        if {(w.InputsLength(), w.OutputsLength()) for w in ways} != {(len(inputs), len(outputs))}:
            raise InvalidForm("subgraphs of other numbers of inputs and outputs")
        values = [self._given(t) for t in inputs]
        chosen = self._given(condition)
        if isinstance(chosen, np.ndarray):
            made = self._inlined(ways[0 if chosen.all() else 1], values)
        else:
            kept = dict(self.variables.now)
            both = [self._inlined(way, values) for way in ways]
            if kept != self.variables.now:
                raise UnsupportedForm("a recurrent operator inside of a branch that the network chooses")
            made = [self._either(chosen, *pair) for pair in zip(*both, strict=True)]
        for output, value in zip(outputs, made, strict=True):
            self._take(output, value)

    @converts("CALL_ONCE")
    def _call_once(self, op: Operator) -> None:
        """What its subgraph assigns is what the variables hold before the first call."""
        self.variables.at_start = True
        self._inlined(self._subgraph(self.options(op, tflite.CallOnceOptions).InitSubgraphIndex()), [])
        self.variables.at_start = False

    def _subgraph(self, index: int) -> Any:
        if not 0 < index < self.model.SubgraphsLength():
            raise InvalidForm(f"subgraph {index} of {self.model.SubgraphsLength()}")
        return self.model.Subgraphs(index)

    def _inlined(self, graph: Any, values: Sequence[Carried]) -> list[Carried]:
        """What a subgraph makes of `values`, its operators converted here."""
        if self.depth >= _MAX_DEPTH:
            raise UnsupportedForm(f"subgraphs more than {_MAX_DEPTH} deep")
        self.unrolled[0] += max(graph.OperatorsLength(), 1)  # a loop of none ends too
        if self.unrolled[0] > MAX_UNROLLED:
            raise UnsupportedForm(f"loops of more than {MAX_UNROLLED} operators, all steps counted")
        inner = type(self)(self.model, graph, stock.ExprTable(), self.bb, self.conversion_state)
        inner.nested, inner.depth, inner.unrolled = True, self.depth + 1, self.unrolled
        inner.variables = self.variables
        for tensor, value in zip(inner.get_tensors(graph.InputsAsNumpy()), values, strict=True):
            inner._take(tensor, value)
        inner.check_unsupported_ops()
        try:
            inner.convert_op_to_relax()
        except Unsupported as error:
            raise UnsupportedForm(f"in its subgraph, {'; '.join(error.operators.values())}") from error
        return [inner._given(t) for t in inner.get_tensors(graph.OutputsAsNumpy())]

    def _given(self, tensor: Any) -> Carried:
        """What a tensor holds, in the form in which another subgraph takes it."""
        if tensor.tensor_idx in self.parts:
            return self.parts[tensor.tensor_idx]
        if self.has_expr(tensor.tensor_idx):
            return self.get_expr(tensor.tensor_idx)
        if self.get_tensor_type_str(tensor.tensor.Type()) not in _NUMBERS:
            raise UnsupportedForm("tensors that are no numbers")
        return np.asarray(self.get_tensor_value(tensor))

    def _take(self, tensor: Any, value: Carried) -> None:
        """Let a tensor of this subgraph hold `value`."""
        if isinstance(value, np.ndarray):
            self._fold(tensor, value)
        elif isinstance(value, tuple):
            self.parts[tensor.tensor_idx] = value
        elif self.nested:
            self.exp_tab.set_expr(stock.get_tensor_name(self.subgraph, tensor.tensor_idx), value)
        else:
            self._bind(tensor, value)

    def _as_activation(self, value: Carried, tensor: Any) -> Carried:
        """A stored constant that the steps replace, as a value: quantized operators take no constants where they take
        activations."""
        if not isinstance(value, np.ndarray) or not tensor.qnn_params or str(value.dtype) not in STORED_TYPES:
            return value
        return self.bb.emit(relax.op.reshape(relax.const(value, str(value.dtype)), list(value.shape)))

    def _holds(self, condition: Carried) -> bool:
        if not isinstance(condition, np.ndarray):
            raise UnsupportedForm("a loop whose number of steps the network computes: give it a fixed one")
        return bool(condition.all())

    def _either(self, condition: Value, *ways: Carried) -> Carried:
        """The result of the first way where the scalar `condition` holds, else that of the second."""
        made = [self._expression(way) for way in ways]
        if len({(str(m.ty.dtype), tuple(int(d) for d in m.ty.shape.values)) for m in made}) > 1:
            raise UnsupportedForm("a branch whose ways have results of different shapes")
        return self.bb.emit(relax.op.where(condition, *made))

    def _expression(self, value: Carried) -> Value:
        if isinstance(value, tuple):
            if not value:
                raise UnsupportedForm("a list without elements")
            return self.bb.emit(relax.op.concat([p.expression() for p in value], 0))
        return Part(0, value).expression()


_NUMBERS = frozenset(("float32", "int32", "uint8", "int64", "bool", "int16", "int8"))
