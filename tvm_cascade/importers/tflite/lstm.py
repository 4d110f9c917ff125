"""Converters for LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM. States persist between calls, as
in TFLite's interpreter, or start at zero (`stateless`). (Relax's importer always couples the input gate to the forget
gate.)

Float layers become the kernel in `passes.recurrent`. Quantized layers become the integer kernel here:
`passes.LowerQuantized` could not derive the arithmetic from a float form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts, converts_hybrid, scale_of, zero_point_of
from tvm_cascade.importers.tflite.rnn import (
    both_directions,
    gate_weights,
    gates_by_input,
    keep_last,
    rounding_of,
    sequence_layer,
    sequence_of,
)
from tvm_cascade.importers.tflite.site import UnsupportedForm
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.lstm import GATE_BITS, LARGEST_CELL, Gates, Kept, Projection, States, lower_lstm
from tvm_cascade.passes.main_rewriting import Value, relax
from tvm_cascade.passes.recurrent.lower import Operands, Wanted, lower_recurrence

_GATES = ("input", "forget", "cell", "output")  # in the order of the operator's tensors
_NORMS = 20  # of an LSTM of one direction: weights of layer normalization
_AUXILIARY = 39  # of a bidirectional one: another input, and the weights of each direction for it
_HIDDEN = 4  # among the intermediates of an operator: the output before any projection


class _Places(NamedTuple):
    """The first tensor for each sort, in an operator's single direction."""

    weights: int = 1
    recurrent: int = 5
    peepholes: int = 9
    biases: int = 12
    projection: int = 16
    states: int = 18


_FORWARD, _FORWARD_OF_TWO, _BACKWARD = _Places(), _Places(states=35), _Places(18, 22, 26, 29, 33, 37)


@converts("LSTM")
@converts_hybrid("LSTM")
def _lstm_step(net: Network, op: Operator) -> Value:
    """Convert a one-step sequence, in floats or hybrid."""
    tensors, options = net.get_input_tensors(op), net.options(op, tflite.LSTMOptions)
    if options.KernelType() != tflite.LSTMKernelType.FULL or tensors[0].qnn_params:
        raise UnsupportedForm("an LSTM of one step that is basic, or of integers")
    _check_lstm(net, tensors)
    steps = net.bb.emit(relax.op.expand_dims(net.get_tensor_expr(tensors[0]), 1))
    made = _float_lstm(net, tensors, _FORWARD, steps, options, False)
    return relax.op.squeeze(made, [1])


@converts("UNIDIRECTIONAL_SEQUENCE_LSTM")
@converts_hybrid("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(net: Network, op: Operator) -> Value:
    tensors = net.get_input_tensors(op)
    options = net.options(op, tflite.UnidirectionalSequenceLSTMOptions)
    _check_lstm(net, tensors)
    x = sequence_of(net, tensors[0])
    if tensors[0].qnn_params:
        if options.FusedActivationFunction() != tflite.ActivationFunctionType.TANH:
            raise UnsupportedForm("an integer LSTM with another activation than tanh")
        return _integer_lstm(net, op, tensors, options)
    return _float_lstm(net, tensors, _FORWARD, x, options, bool(options.TimeMajor()))


@converts("BIDIRECTIONAL_SEQUENCE_LSTM")
@converts_hybrid("BIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm_both_ways(net: Network, op: Operator) -> Value:
    tensors, options = net.get_input_tensors(op), net.options(op, tflite.BidirectionalSequenceLSTMOptions)

    def direction(x: Value, backward: bool, more: Sequence[Any]) -> Value:
        places = _BACKWARD if backward else _FORWARD_OF_TWO
        return _float_lstm(net, tensors, places, x, options, bool(options.TimeMajor()), more)

    return both_directions(net, tensors, bool(options.MergeOutputs()), _AUXILIARY, direction)


def _float_lstm(
    net: Network, tensors: Sequence[Any], at: _Places, x: Value, options: Any, major: bool, more: Sequence[Any] = ()
) -> Value:
    """Return the states for all steps of `x` in a single direction, with weights for `more` input."""
    coupled = tensors[at.weights].tensor_idx < 0
    used = [k for k in range(4) if k or not coupled]
    by_input, by_state, shifts = ([tensors[first + k] for k in used] for first in (at.weights, at.recurrent, at.biases))
    last = tensors[at.projection]
    rounding = rounding_of(net, by_input, by_state, options, last if last.tensor_idx >= 0 else None)
    recurrent, bias = (
        np.stack([np.asarray(net.get_tensor_value(t)) for t in some])[None] for some in (by_state, shifts)
    )
    layer = sequence_layer(
        net,
        "lstm",
        options,
        major,
        at is _BACKWARD,
        cell_clip=float(options.CellClip()),
        projection_clip=float(options.ProjClip()),
        derived="input" if coupled else "",
    )
    projection, shift = (
        None if t.tensor_idx < 0 else np.asarray(net.get_tensor_value(t))[None]
        for t in tensors[at.projection : at.projection + 2]
    )
    state, cells = tensors[at.states : at.states + 2]
    operands = Operands(
        x,
        gates_by_input(net, by_input, more),
        recurrent,
        bias,
        peepholes=_peepholes(net, tensors[at.peepholes : at.peepholes + 3], used),
        hidden=net.held_state(state),
        cell=net.held_state(cells),
        projection=projection,
        projection_bias=shift,
        rounding=rounding,
    )
    made, _, cell = lower_recurrence(net.bb, layer, operands, Wanted(cell=operands.cell is not None))
    keep_last(net, state, made, major, at is _BACKWARD)
    if cell is not None:
        net.keep_state(cells, cell)
    return made


def _check_lstm(net: Network, tensors: Sequence[Any]) -> None:
    beyond = {"layer normalization": range(_NORMS, len(tensors))}
    if tensors[0].qnn_params:
        beyond["peepholes of integers"] = range(_FORWARD.peepholes, _FORWARD.biases)
    for what, places in beyond.items():
        if any(tensors[k].tensor_idx >= 0 for k in places):
            raise UnsupportedForm(f"an LSTM with {what}")


def _peepholes(net: Network, tensors: Sequence[Any], used: Sequence[int]) -> np.ndarray | None:
    """Return the peephole weights, [1, 3, units], zero for a coupled gate; None without any."""
    wanted = [k for k in range(3) if k or 0 in used]
    given = [k for k, t in enumerate(tensors) if t.tensor_idx >= 0]
    if not given:
        return None
    if given != wanted or any(net.has_expr(tensors[k].tensor_idx) for k in given):
        raise UnsupportedForm("an LSTM with peepholes of some gates only, or computed ones")
    found = [_peephole(net, tensors[k]) for k in wanted]
    return np.stack([*([np.zeros_like(found[0])] if 0 not in used else []), *found])[None]


def _peephole(net: Network, tensor: Any) -> np.ndarray:
    """Return a peephole's weights as floats."""
    data = np.asarray(net.get_tensor_value(tensor))
    return data.astype("float32") * scale_of(tensor) if tensor.qnn_params else data


def _integer_lstm(net: Network, op: Operator, tensors: list[Any], options: Any) -> Value:
    """Convert an int8 LSTM with an int16 cell state, in the reference's arithmetic."""
    output, hidden = net.get_output_tensors(op)[0], _hidden(net, op)
    state, cell = tensors[_FORWARD.states : _FORWARD.states + 2]
    for tensor, what, dtype in ((tensors[0], "input", "int8"), (state, "state", "int8"), (cell, "cell", "int16")):
        if net.get_tensor_type_str(tensor.tensor.Type()) != dtype or not tensor.qnn_params:
            raise UnsupportedForm(f"an integer LSTM whose {what} is not {dtype}")
    exponent = round(math.log2(scale_of(cell)))
    if abs(math.log2(scale_of(cell)) - exponent) > 1e-3 or not -15 <= exponent <= LARGEST_CELL - 15:
        raise UnsupportedForm(f"an integer LSTM whose cell has the scale {scale_of(cell):g}")
    used = [k for k in range(4) if k or tensors[_FORWARD.weights].tensor_idx >= 0]
    weights, recurrent = (
        [gate_weights(net, tensors[at + k]) for k in used] for at in (_FORWARD.weights, _FORWARD.recurrent)
    )
    unit = np.float32(2.0**-GATE_BITS)
    gates = Gates(
        np.stack([w for w, _ in weights]),
        np.stack([w for w, _ in recurrent]),
        np.stack([np.asarray(net.get_tensor_value(tensors[_FORWARD.biases + k]), "int32") for k in used]),
        tuple(np.float32(s * scale_of(tensors[0])) / unit for _, s in weights),
        tuple(np.float32(s * scale_of(state)) / unit for _, s in recurrent),
        zero_point_of(tensors[0]),
        zero_point_of(state),
    )
    clip = int(min(np.float32(options.CellClip()) / scale_of(cell), np.float32(32767)))
    scale = np.float32(2.0**-30 / float(scale_of(hidden)))
    if output.qnn_params is None or net.get_tensor_type_str(output.tensor.Type()) != "int8":
        raise UnsupportedForm("an integer LSTM whose output is not int8")
    x = net.get_tensor_expr(tensors[0])
    projection, zero = _projection(net, tensors, hidden, float(options.ProjClip())), zero_point_of(hidden)
    held = net.held_state(state), net.held_state(cell)
    kept = None if held[0] is None or held[1] is None else Kept(held[0], held[1])
    made, last = lower_lstm(
        Emitter(net.bb, {}, "lstm"),
        x,
        bool(options.TimeMajor()),
        gates,
        States(exponent, clip, scale, zero if projection is None else -zero),
        projection,
        kept,
    )
    if kept is not None:
        keep_last(net, state, made, bool(options.TimeMajor()))
        net.keep_state(cell, last)
    return made


def _projection(net: Network, tensors: list[Any], hidden: Any, clip: float) -> Projection | None:
    """Return an integer LSTM's projection, from units quantized like `hidden` to its state; None without one. The
    reference adds `hidden`'s zero point to an output, takes it off before a projection, and adds it back.
    """
    matrix, shift = tensors[_FORWARD.projection : _FORWARD.projection + 2]
    if matrix.tensor_idx < 0:
        return None
    state = tensors[_FORWARD.states]
    weights, step = gate_weights(net, matrix)
    bias = np.zeros(len(weights), "int32") if shift.tensor_idx < 0 else np.asarray(net.get_tensor_value(shift))
    sums = weights.astype("int64").sum(axis=1) * zero_point_of(hidden)
    scale = np.float32(np.float32(step * scale_of(hidden)) / scale_of(state))
    bound = int(min(max(np.float32(clip) / scale_of(state), np.float32(-128)), np.float32(127)))
    return Projection(weights, (bias + sums).astype("int32"), scale, zero_point_of(state), max(bound, 0))


def _hidden(net: Network, op: Operator) -> Any:
    """Return the intermediate tensor with the output's scale and zero point."""
    index = op.Intermediates(_HIDDEN) if op.IntermediatesLength() > _HIDDEN else -1
    hidden = net.get_tensors([index])[0] if 0 <= index < net.subgraph.TensorsLength() else None
    if hidden is None or not hidden.qnn_params:
        raise UnsupportedForm("an integer LSTM without the scale of its output (intermediate 4)")
    return hidden
