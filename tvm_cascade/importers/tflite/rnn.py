"""Converters for RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN, and code shared with the LSTMs.

Every direction becomes a kernel in `passes.recurrent`. It continues from the last call's state, like TFLite's
interpreter, or restarts (`stateless`). Weights are float, or int8 with float activations (hybrid).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts, converts_hybrid, scale_of, zero_point_of
from tvm_cascade.importers.tflite.site import UnsupportedForm
from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.passes.main_rewriting import Value, relax
from tvm_cascade.passes.recurrent.cells import Recurrence
from tvm_cascade.passes.recurrent.functions import IDENTITY, RELU, SIGMOID, TANH, Activation
from tvm_cascade.passes.recurrent.lower import Operands, Wanted, lower_recurrence
from tvm_cascade.passes.recurrent.rounding import Rounding

_WEIGHTS, _RECURRENT, _BIAS, _STATE = range(4)  # of a direction, behind the first of its tensors
_AUXILIARY = 9  # of a bidirectional layer: another input, and the weights of each direction for it
_KIND = tflite.ActivationFunctionType
ACTIVATIONS = MappingProxyType(
    {
        _KIND.NONE: IDENTITY,
        _KIND.RELU: RELU,
        _KIND.RELU_N1_TO_1: Activation("Clip", -1.0, 1.0),
        _KIND.RELU6: Activation("Clip", 0.0, 6.0),
        _KIND.TANH: TANH,
    }
)
_Direction = Callable[[Value, bool, Sequence[Any]], Value]  # of its input, whether backward, weights of auxiliary input


@converts("RNN")
@converts_hybrid("RNN")
def _step(net: Network, op: Operator) -> Value:
    """Convert a one-step sequence."""
    tensors, options = net.get_input_tensors(op), net.options(op, tflite.RNNOptions)
    x = net.get_tensor_expr(tensors[0])
    steps = net.bb.emit(relax.op.expand_dims(x, 1))
    made = _simple(net, tensors[1:5], steps, sequence_layer(net, "rnn", options, False), options)
    return relax.op.squeeze(made, [1])


@converts("UNIDIRECTIONAL_SEQUENCE_RNN")
@converts_hybrid("UNIDIRECTIONAL_SEQUENCE_RNN")
def _sequence(net: Network, op: Operator) -> Value:
    tensors, options = net.get_input_tensors(op), net.options(op, tflite.SequenceRNNOptions)
    layer = sequence_layer(net, "rnn", options, bool(options.TimeMajor()))
    return _simple(net, tensors[1:5], sequence_of(net, tensors[0]), layer, options)


@converts("BIDIRECTIONAL_SEQUENCE_RNN")
@converts_hybrid("BIDIRECTIONAL_SEQUENCE_RNN")
def _both_ways(net: Network, op: Operator) -> Value:
    tensors, options = net.get_input_tensors(op), net.options(op, tflite.BidirectionalSequenceRNNOptions)
    reads = [t.tensor_idx >= 0 for t in tensors[_AUXILIARY : _AUXILIARY + 2]]
    if reads == [True, False] and not options.TimeMajor():  # there the reference takes the first input for both
        raise UnsupportedForm("directions of different inputs whose steps come behind the batch: put them first")

    def direction(x: Value, backward: bool, more: Sequence[Any]) -> Value:
        layer = sequence_layer(net, "rnn", options, bool(options.TimeMajor()), backward)
        return _simple(net, tensors[5:9] if backward else tensors[1:5], x, layer, options, more)

    return both_directions(net, tensors, bool(options.MergeOutputs()), _AUXILIARY, direction)


def _simple(
    net: Network, tensors: Sequence[Any], x: Value, layer: Recurrence, options: Any, more: Sequence[Any] = ()
) -> Value:
    """Return the states for all steps of `x` in one direction, from its weights, recurrent weights, bias and state, and
    weights for `more` input.
    """
    rounding = rounding_of(net, [tensors[_WEIGHTS]], [tensors[_RECURRENT]], options)
    weights = gates_by_input(net, tensors[_WEIGHTS : _WEIGHTS + 1], more)
    recurrent, bias = (np.asarray(net.get_tensor_value(tensors[k])) for k in (_RECURRENT, _BIAS))
    held = net.held_state(tensors[_STATE])
    operands = Operands(x, weights, recurrent[None, None], bias[None, None], hidden=held, rounding=rounding)
    made = net.bb.emit(lower_recurrence(net.bb, layer, operands, Wanted())[0])
    keep_last(net, tensors[_STATE], made, layer.input_axes[0] == "s", layer.backward[0])
    return made


def sequence_of(net: Network, tensor: Any) -> Value:
    """Return a layer's input with three axes."""
    shape = net.shape(tensor)
    if len(shape) != 3 or 0 in shape:
        raise UnsupportedForm("a recurrent layer over something other than a sequence")
    return net.get_tensor_expr(tensor)


def sequence_layer(
    net: Network, kind: str, options: Any, major: bool, backward: bool = False, **how: Any
) -> Recurrence:
    """Return a float layer in a single direction, with steps before the batch (`major`) or behind."""
    fused = options.FusedActivationFunction()
    if fused not in ACTIVATIONS:
        raise UnsupportedForm(f"a recurrent layer with the activation {fused}")
    own, axes = ACTIVATIONS[fused], "sbu" if major else "bsu"
    functions = (own,) if kind == "rnn" else (SIGMOID, own, own)
    ends = {"input_axes": axes, "output_axes": axes, "state_axes": "bu"}
    return Recurrence(kind, (functions,), (backward,), **ends, **how)


def keep_last(net: Network, state: Any, made: Value, major: bool, backward: bool = False) -> None:
    """Start the next call from the last computed step of `made`, if the network keeps the state."""
    if net.held_state(state) is None:
        return
    axis = 0 if major else 1
    last = 0 if backward else shape_of(made)[axis] - 1
    step = relax.op.strided_slice(made, axes=[axis], begin=[last], end=[last + 1])
    net.keep_state(state, net.bb.emit(relax.op.reshape(net.bb.emit(step), net.shape(state))))


def rounding_of(
    net: Network, by_input: Sequence[Any], by_state: Sequence[Any], options: Any, more: Any = None
) -> Rounding | None:
    """Return the rounding for int8 weights: per gate by input and by state, and for a projection; None for float
    weights.
    """
    matrices = [*by_input, *by_state, *([] if more is None else [more])]
    if not any(t.qnn_params for t in matrices):
        return None
    scales = tuple(float(gate_weights(net, t)[1]) for t in matrices)
    if any(zero_point_of(t) for t in matrices):
        raise UnsupportedForm("a recurrent layer whose weights have a zero point")
    gates = len(by_input)
    return Rounding(bool(options.AsymmetricQuantizeInputs()), scales[:gates], scales[gates : 2 * gates], scales[-1])


def gate_weights(net: Network, tensor: Any) -> tuple[np.ndarray, np.float32]:
    """Return a single gate's int8 matrix and scale."""
    if tensor.tensor_idx < 0 or net.has_expr(tensor.tensor_idx) or not tensor.qnn_params:
        raise UnsupportedForm("a recurrent layer whose weights are no int8 constants")
    data = np.asarray(net.get_tensor_value(tensor))
    if data.dtype != np.int8 or data.ndim != 2 or tensor.qnn_params["scale"].value.numpy().size != 1:
        raise UnsupportedForm("a recurrent layer whose weights are no int8 matrix of one scale")
    return data, scale_of(tensor)


def gates_by_input(net: Network, gates: Sequence[Any], more: Sequence[Any]) -> np.ndarray:
    """Return the input weights, [1, gates, units, depth], followed by the weights for `more` input."""
    held = [np.stack([np.asarray(net.get_tensor_value(t)) for t in some])[None] for some in (gates, more) if some]
    return np.concatenate(held, 3)


def both_directions(net: Network, tensors: Sequence[Any], merged: bool, auxiliary: int, direction: _Direction) -> Value:
    """Return a bidirectional layer's outputs: forward and backward, side by side if `merged`.

    A preceding layer's output at `auxiliary` is more input for both directions, given weights for it; without such
    weights it is the backward direction's only input.
    """
    x, more = sequence_of(net, tensors[0]), tensors[auxiliary + 1 :]
    given = [t for t in more if t.tensor_idx >= 0]
    if given and len(given) < len(more):
        raise UnsupportedForm("a bidirectional layer with some of the weights of its auxiliary input")
    inputs = [x, x]
    if tensors[auxiliary].tensor_idx >= 0:
        inputs[1] = sequence_of(net, tensors[auxiliary])
    if given and any(t.qnn_params for t in given):
        raise UnsupportedForm("a bidirectional layer of int8 weights with an auxiliary input")
    if given:
        inputs = [net.bb.emit(relax.op.concat(inputs, 2))] * 2
    half = len(given) // 2
    made = [direction(x, k > 0, given[k * half : (k + 1) * half]) for k, x in enumerate(inputs)]
    return relax.op.concat(made, 2) if merged else relax.Tuple(made)
