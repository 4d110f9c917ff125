"""States in `.tflite` files: variables (VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE), initialized through CALL_ONCE.

A variable both read and assigned becomes a network state. The tensor written by its first READ_VARIABLE becomes a
further input, and an output for the last assigned value. A variable never assigned is a constant; one never read is
ignored.

Recurrent operators keep states in variable tensors of the main subgraph, which become inputs and outputs in the same
way. One-step filters keep nothing; operators in a loop body are refused unless every call restarts.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.cut import CutOut
from tvm_cascade.importers.tflite.cut import with_ends
from tvm_cascade.importers.tflite.kept import FileState, Key, tensor_key
from tvm_cascade.importers.tflite.model import ELEMENT_TYPES, MalformedModel, Model, open_model, tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.tensor_spec import free_name, unique_names

_OPERATORS = tflite.BuiltinOperator
_USES = (_OPERATORS.VAR_HANDLE, _OPERATORS.READ_VARIABLE, _OPERATORS.ASSIGN_VARIABLE)
_STATES_OF = MappingProxyType(
    {
        _OPERATORS.BIDIRECTIONAL_SEQUENCE_LSTM: (35, 36, 37, 38),
        _OPERATORS.BIDIRECTIONAL_SEQUENCE_RNN: (4, 8),
        _OPERATORS.LSTM: (18, 19),
        _OPERATORS.RNN: (4,),
        _OPERATORS.SVDF: (4,),
        _OPERATORS.UNIDIRECTIONAL_SEQUENCE_LSTM: (18, 19),
        _OPERATORS.UNIDIRECTIONAL_SEQUENCE_RNN: (4,),
    }
)  # their inputs
_FEATURES = 1  # of an SVDF, the input of weights with a row a filter


def file_states(model: Model, recurrent: bool = True) -> tuple[FileState, ...]:
    """Return a model's variables both read and assigned in its main subgraph, and with `recurrent` its recurrent
    operators' states.
    """
    found, names = _variables(model), model.Subgraphs(0).names
    kept = _kept_by_operators(model) if recurrent else []
    titles = unique_names([*(state.name for state in found), *(names[t] for t in kept)])[len(found) :]
    return (*found, *(FileState(n, t, tensor_key(t)) for n, t in zip(titles, kept, strict=True)))


def _kept_by_operators(model: Model) -> list[int]:
    """Return the tensors kept between calls by recurrent operators in the main subgraph."""
    graph: Any = model.Subgraphs(0)
    found: dict[int, None] = {}
    for code, op in _operators(model):
        places = [p for p in _STATES_OF.get(code, ()) if p < op.InputsLength()]
        held = [int(op.Inputs(p)) for p in places]
        if not held or any(not 0 <= t < graph.TensorsLength() or not graph.Tensors(t).IsVariable() for t in held):
            continue  # the converter refuses operators that lack inputs
        if code != _OPERATORS.SVDF or _steps(graph, held[0], int(op.Inputs(_FEATURES))) > 1:
            found |= dict.fromkeys(held)
    return list(found)


def _steps(graph: Any, state: int, features: int) -> int:
    """Count the steps seen by an SVDF's filters."""
    count = int(np.prod(graph.Tensors(state).ShapeAsNumpy()[1:]))
    return count // max(int(graph.Tensors(features).Shape(0)), 1) if 0 <= features < graph.TensorsLength() else 0


def _variables(model: Model) -> tuple[FileState, ...]:
    """Return a model's variables both read and assigned in its main subgraph."""
    handles, reads, assigned = dict[int, Key](), dict[Key, int](), set[Key]()
    for code, op in _operators(model):
        if code == _OPERATORS.VAR_HANDLE:
            handles[int(op.Outputs(0))] = key_of(op)
        elif code in _USES:
            key = handles.get(int(op.Inputs(0)))
            if key is None:
                raise MalformedModel("a variable is used that no VAR_HANDLE names")
            if code == _OPERATORS.READ_VARIABLE:
                reads.setdefault(key, int(op.Outputs(0)))
            else:
                assigned.add(key)
    kept = [key for key in reads if key in assigned]
    names = unique_names(key[1].decode("utf-8", "replace") or "variable" for key in kept)
    return tuple(FileState(name, reads[key], key) for name, key in zip(names, kept, strict=True))


def with_state_ends(data: bytes, model: Model, states: tuple[FileState, ...]) -> Model:
    """Return the model with its states as last inputs and outputs."""
    graph: Any = model.Subgraphs(0)
    tensors = [state.tensor for state in states]
    for t in tensors:
        if graph.Tensors(t).Type() not in ELEMENT_TYPES:
            raise MalformedModel(f"the variable in tensor {graph.names[t]} has an element type that is not supported")
    ends = [
        tuple(graph.names[t] for t in [*(int(side(k)) for k in range(count)), *tensors])
        for side, count in ((graph.Inputs, graph.InputsLength()), (graph.Outputs, graph.OutputsLength()))
    ]
    made = open_model(with_ends(data, model, CutOut(tuple(range(graph.OperatorsLength())), ends[0], ends[1])))
    names: list[str] = made.Subgraphs(0).names
    for state in states:
        names[state.tensor] = free_name(state.name, names)
    return made


def key_of(handle: Operator) -> Key:
    """Return the container and name of a VAR_HANDLE's variable."""
    options, table = tflite.VarHandleOptions(), handle.BuiltinOptions()
    if table is None:
        raise MalformedModel("a VAR_HANDLE without a name")
    options.Init(table.Bytes, table.Pos)
    return options.Container() or b"", options.SharedName() or b""


def _operators(model: Model) -> Iterator[tuple[int, Operator]]:
    """Yield the main subgraph's operators, each with its code."""
    graph: Any = model.Subgraphs(0)
    for i in range(graph.OperatorsLength()):
        op = graph.Operators(i)
        yield model.OperatorCodes(op.OpcodeIndex()).BuiltinCode(), op


@converts("VAR_HANDLE")
def _handle(net: Network, op: Operator) -> None:
    net.handles[int(op.Outputs(0))] = key_of(op)


@converts("READ_VARIABLE")
def _read(net: Network, op: Operator) -> None:
    key, output = _key(net, op), net.get_output_tensors(op)[0]
    held = net.variables
    state = held.states.get(key)
    if state is None:
        if key not in held.initial:
            raise UnsupportedForm("a variable that nothing sets")
        net.fold(output, held.initial[key])
    elif key not in held.now:
        held.now[key] = net.get_expr(state.tensor)
    if state is not None and output.tensor_idx != state.tensor:
        net.bind(output, held.now[key])


@converts("ASSIGN_VARIABLE")
def _assign(net: Network, op: Operator) -> None:
    key, value = _key(net, op), net.get_input_tensors(op)[1]
    held = net.variables
    if held.at_start:
        if net.has_expr(value.tensor_idx):
            raise UnsupportedForm("a variable whose first value is computed")
        held.initial[key] = np.asarray(net.get_tensor_value(value))
    elif key in held.states:
        held.now[key] = net.get_tensor_expr(value)


def _key(net: Network, op: Operator) -> Key:
    if net.depth and not net.variables.at_start:
        raise UnsupportedForm("a variable inside of a loop or a branch: use it outside")
    key = net.handles.get(int(op.Inputs(0)))
    if key is None:
        raise InvalidForm("a variable that no VAR_HANDLE names")
    return key


def put_states(net: Network) -> None:
    """Set the state tensors, which are outputs, to their values after a call."""
    for key, state in net.variables.states.items():
        if key in net.variables.now:
            name = stock.get_tensor_name(net.subgraph, state.tensor)
            net.exp_tab.set_expr(name, net.variables.now[key], force_override=True)
