"""Convert control flow: loops with a fixed step count, branches chosen at compile time.

A loop over list rows is a single operator (`importers/tflite/scans.py`); all other loops are unrolled.

A WHILE's condition and body are subgraphs. It carries constants (such as a counter), values, or lists (`tflite_lists`).
The condition is computed from the constants, and while true the body is converted once more; operators on counters fold
like operators on shapes (`tflite_shapes`). A branch with a computed condition computes both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.errors import CascadeError
from tvm_cascade.importers.tflite.coverage import Unsupported
from tvm_cascade.importers.tflite.kept import Part
from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts
from tvm_cascade.importers.tflite.scans import NotScan, inner_network, roles_of, scanned
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.passes.main_rewriting import Value, relax
from tvm_cascade.program.quant import STORED_TYPES, NotLowered

MAX_UNROLLED = 1 << 13  # operators of all steps together
_MAX_DEPTH = 4  # of subgraphs inside of one another
Carried: TypeAlias = Any  # an array, the parts of a list, or a value of Relax


@converts("WHILE")
def _while(net: Network, op: Operator) -> None:
    options = net.options(op, tflite.WhileOptions)
    inputs, outputs = net.get_input_tensors(op), net.get_output_tensors(op)
    condition, body = (_subgraph(net, k) for k in (options.CondSubgraphIndex(), options.BodySubgraphIndex()))
    counts = {len(inputs), len(outputs), body.InputsLength(), body.OutputsLength(), condition.InputsLength()}
    if len(counts) > 1 or condition.OutputsLength() != 1:
        raise InvalidForm("subgraphs of other numbers of inputs and outputs")
    kept = [body.Inputs(k) == body.Outputs(k) for k in range(len(inputs))]
    values = [
        _given(net, t) if same else _as_activation(net, _given(net, t), t) for t, same in zip(inputs, kept, strict=True)
    ]
    made = _scanned(net, [_given(net, t) for t in inputs], outputs, condition, body)
    if made is not None:
        for output, value in zip(outputs, made, strict=True):
            if value is not None:
                _take(net, output, value)
        return
    while _holds(net, _inlined(net, condition, values)[0]):
        values = _inlined(net, body, values)
    for output, value in zip(outputs, values, strict=True):
        _take(net, output, value)


def _scanned(net: Network, values: Sequence[Carried], outputs: Sequence[Any], condition: Any, body: Any) -> Any:
    """Convert a loop over `values` as a single operator; return None for a loop that is written out."""
    if net.depth >= _MAX_DEPTH or net.variables.unrolled:
        return None
    used, kept = net.unrolled[0], dict(net.variables.now)
    inner = inner_network(net, body)
    read = [_is_read(net, output.tensor_idx) for output in outputs]
    same = [body.Inputs(k) == body.Outputs(k) for k in range(len(values))]

    def holds(given: Sequence[Carried]) -> bool:
        net.unrolled[0] = used
        made = _inlined(net, condition, given)[0]
        if not isinstance(made, np.ndarray):
            raise NotScan
        return bool(made.all())

    try:
        made = scanned(net, inner, roles_of(inner, values, same, holds), values, read, _converted)
    except (NotScan, NotLowered, CascadeError, UnsupportedForm, InvalidForm, Unsupported):
        made = None
    changed = kept != net.variables.now
    net.unrolled[0] = used
    net.variables.now.clear()
    net.variables.now.update(kept)
    return None if changed else made


def _is_read(net: Network, tensor: int) -> bool:
    """Return True for a tensor that is an output of this subgraph or read by an operator."""
    graph = net.subgraph
    operators = (graph.Operators(k) for k in range(graph.OperatorsLength()))
    return tensor in graph.OutputsAsNumpy() or any(tensor in op.InputsAsNumpy() for op in operators)


@converts("IF")
def _if(net: Network, op: Operator) -> None:
    options = net.options(op, tflite.IfOptions)
    (condition, *inputs), outputs = net.get_input_tensors(op), net.get_output_tensors(op)
    ways = [_subgraph(net, k) for k in (options.ThenSubgraphIndex(), options.ElseSubgraphIndex())]
    if {(w.InputsLength(), w.OutputsLength()) for w in ways} != {(len(inputs), len(outputs))}:
        raise InvalidForm("subgraphs of other numbers of inputs and outputs")
    values = [_given(net, t) for t in inputs]
    chosen = _given(net, condition)
    if isinstance(chosen, np.ndarray):
        made = _inlined(net, ways[0 if chosen.all() else 1], values)
    else:
        kept = dict(net.variables.now)
        both = [_inlined(net, way, values) for way in ways]
        if kept != net.variables.now:
            raise UnsupportedForm("a recurrent operator inside of a branch that the network chooses")
        made = [_either(net, chosen, *pair) for pair in zip(*both, strict=True)]
    for output, value in zip(outputs, made, strict=True):
        _take(net, output, value)


@converts("CALL_ONCE")
def _call_once(net: Network, op: Operator) -> None:
    """Set the variables before the first call to the values assigned by a subgraph."""
    net.variables.at_start = True
    _inlined(net, _subgraph(net, net.options(op, tflite.CallOnceOptions).InitSubgraphIndex()), [])
    net.variables.at_start = False


def _subgraph(net: Network, index: int) -> Any:
    if not 0 < index < net.model.SubgraphsLength():
        raise InvalidForm(f"subgraph {index} of {net.model.SubgraphsLength()}")
    return net.model.Subgraphs(index)


def _inlined(net: Network, graph: Any, values: Sequence[Carried]) -> list[Carried]:
    """Convert a subgraph's operators here, and return its results for `values`."""
    if net.depth >= _MAX_DEPTH:
        raise UnsupportedForm(f"subgraphs more than {_MAX_DEPTH} deep")
    net.unrolled[0] += max(graph.OperatorsLength(), 1)  # a loop of none ends too
    if net.unrolled[0] > MAX_UNROLLED:
        raise UnsupportedForm(f"loops of more than {MAX_UNROLLED} operators, all steps counted")
    return _converted(inner_network(net, graph), values)


def _converted(inner: Network, values: Sequence[Carried]) -> list[Carried]:
    """Convert a network with these values as inputs; return its outputs."""
    graph = inner.subgraph
    for tensor, value in zip(inner.get_tensors(graph.InputsAsNumpy()), values, strict=True):
        _take(inner, tensor, value)
    inner.check_unsupported_ops()
    try:
        inner.convert_op_to_relax()
    except Unsupported as error:
        raise UnsupportedForm(f"in its subgraph, {'; '.join(error.operators.values())}") from error
    return [_given(inner, t) for t in inner.get_tensors(graph.OutputsAsNumpy())]


def _given(net: Network, tensor: Any) -> Carried:
    """Return a tensor's contents, in the form for another subgraph."""
    if tensor.tensor_idx in net.parts:
        return net.parts[tensor.tensor_idx]
    if net.has_expr(tensor.tensor_idx):
        return net.get_expr(tensor.tensor_idx)
    if net.get_tensor_type_str(tensor.tensor.Type()) not in _NUMBERS:
        raise UnsupportedForm("tensors that are no numbers")
    return np.asarray(net.get_tensor_value(tensor))


def _take(net: Network, tensor: Any, value: Carried) -> None:
    """Set a tensor in this subgraph to `value`."""
    if isinstance(value, np.ndarray):
        net.fold(tensor, value)
    elif isinstance(value, tuple):
        net.parts[tensor.tensor_idx] = value
    elif net.nested:
        net.exp_tab.set_expr(stock.get_tensor_name(net.subgraph, tensor.tensor_idx), value)
    else:
        net.bind(tensor, value)


def _as_activation(net: Network, value: Carried, tensor: Any) -> Carried:
    """Return a stored constant, replaced by later steps, as a value: quantized operators refuse constant activations."""
    if not isinstance(value, np.ndarray) or not tensor.qnn_params or str(value.dtype) not in STORED_TYPES:
        return value
    return net.bb.emit(relax.op.reshape(relax.const(value, str(value.dtype)), list(value.shape)))


def _holds(net: Network, condition: Carried) -> bool:
    if not isinstance(condition, np.ndarray):
        raise UnsupportedForm("a loop whose number of steps the network computes: give it a fixed one")
    return bool(condition.all())


def _either(net: Network, condition: Value, *ways: Carried) -> Carried:
    """Return the first way's result if the scalar `condition` is true, else the second's."""
    made = [_expression(net, way) for way in ways]
    if len({(str(m.ty.dtype), tuple(int(d) for d in m.ty.shape.values)) for m in made}) > 1:
        raise UnsupportedForm("a branch whose ways have results of different shapes")
    return net.bb.emit(relax.op.where(condition, *made))


def _expression(net: Network, value: Carried) -> Value:
    if isinstance(value, tuple):
        if not value:
            raise UnsupportedForm("a list without elements")
        return net.bb.emit(relax.op.concat([p.expression() for p in value], 0))
    return Part(0, value).expression()


_NUMBERS = frozenset(("float32", "int32", "uint8", "int64", "bool", "int16", "int8"))
