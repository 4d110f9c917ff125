"""Converters of RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN, and what they share with those of the LSTMs.

Every direction of a layer becomes a kernel of `passes.recurrent`, and goes on where the last call left its state, as in TFLite's
interpreter, or begins anew in each (`stateless`). Float weights, and hybrid ones of int8 with float activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.importers.tflite.moves import Operator, Value, converts, relax, scale_of, tflite, zero_point_of
from tvm_cascade.importers.tflite.site import UnsupportedForm
from tvm_cascade.importers.tflite.svdf import SvdfConverters
from tvm_cascade.passes.integer.expressions import shape_of
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


class RnnConverters(SvdfConverters):
    """The converters of simple recurrent layers."""

    @converts("RNN")
    def _step(self, op: Operator) -> Value:
        """A sequence of one step."""
        tensors, options = self.get_input_tensors(op), self.options(op, tflite.RNNOptions)
        x = self.get_tensor_expr(tensors[0])
        steps = self.bb.emit(relax.op.expand_dims(x, 1))
        made = self._simple(tensors[1:5], steps, self.sequence_layer("rnn", options, False), options)
        return relax.op.squeeze(made, [1])

    @converts("UNIDIRECTIONAL_SEQUENCE_RNN")
    def _sequence(self, op: Operator) -> Value:
        tensors, options = self.get_input_tensors(op), self.options(op, tflite.SequenceRNNOptions)
        layer = self.sequence_layer("rnn", options, bool(options.TimeMajor()))
        return self._simple(tensors[1:5], self.sequence_of(tensors[0]), layer, options)

    @converts("BIDIRECTIONAL_SEQUENCE_RNN")
    def _both_ways(self, op: Operator) -> Value:
        tensors, options = self.get_input_tensors(op), self.options(op, tflite.BidirectionalSequenceRNNOptions)
        reads = [t.tensor_idx >= 0 for t in tensors[_AUXILIARY : _AUXILIARY + 2]]
        if reads == [True, False] and not options.TimeMajor():  # there the reference takes the first input for both
            raise UnsupportedForm("directions of different inputs whose steps come behind the batch: put them first")

        def direction(x: Value, backward: bool, more: Sequence[Any]) -> Value:
            layer = self.sequence_layer("rnn", options, bool(options.TimeMajor()), backward)
            return self._simple(tensors[5:9] if backward else tensors[1:5], x, layer, options, more)

        return self.both_directions(tensors, bool(options.MergeOutputs()), _AUXILIARY, direction)

    def _simple(
        self, tensors: Sequence[Any], x: Value, layer: Recurrence, options: Any, more: Sequence[Any] = ()
    ) -> Value:
        """The states of all steps of `x` in one direction, from its weights, recurrent weights, bias and state, and weights
        of `more` input."""
        rounding = self.rounding_of([tensors[_WEIGHTS]], [tensors[_RECURRENT]], options)
        weights = self.gates_by_input(tensors[_WEIGHTS : _WEIGHTS + 1], more)
        recurrent, bias = (np.asarray(self.get_tensor_value(tensors[k])) for k in (_RECURRENT, _BIAS))
        held = self.held_state(tensors[_STATE])
        operands = Operands(x, weights, recurrent[None, None], bias[None, None], hidden=held, rounding=rounding)
        made = self.bb.emit(lower_recurrence(self.bb, layer, operands, Wanted())[0])
        self.keep_last(tensors[_STATE], made, layer.input_axes[0] == "s", layer.backward[0])
        return made

    def sequence_of(self, tensor: Any) -> Value:
        """The input of a layer, whose shape has three axes."""
        shape = self._shape(tensor)
        if len(shape) != 3 or 0 in shape:
            raise UnsupportedForm("a recurrent layer over something other than a sequence")
        return self.get_tensor_expr(tensor)

    def sequence_layer(self, kind: str, options: Any, major: bool, backward: bool = False, **how: Any) -> Recurrence:
        """A float layer of one direction whose input has steps in front of the batch (`major`) or behind it."""
        fused = options.FusedActivationFunction()
        if fused not in ACTIVATIONS:
            raise UnsupportedForm(f"a recurrent layer with the activation {fused}")
        own, axes = ACTIVATIONS[fused], "sbu" if major else "bsu"
        functions = (own,) if kind == "rnn" else (SIGMOID, own, own)
        ends = {"input_axes": axes, "output_axes": axes, "state_axes": "bu"}
        return Recurrence(kind, (functions,), (backward,), **ends, **how)

    def keep_last(self, state: Any, made: Value, major: bool, backward: bool = False) -> None:
        """Let the next call begin with the step of `made` that was computed last, where the network keeps the state."""
        if self.held_state(state) is None:
            return
        axis = 0 if major else 1
        last = 0 if backward else shape_of(made)[axis] - 1
        step = relax.op.strided_slice(made, axes=[axis], begin=[last], end=[last + 1])
        self.keep_state(state, self.bb.emit(relax.op.reshape(self.bb.emit(step), self._shape(state))))

    def rounding_of(
        self, by_input: Sequence[Any], by_state: Sequence[Any], options: Any, more: Any = None
    ) -> Rounding | None:
        """How a layer computes whose weights are int8, those of every gate by input and by state, and of a projection; None
        for float weights."""
        matrices = [*by_input, *by_state, *([] if more is None else [more])]
        if not any(t.qnn_params for t in matrices):
            return None
        scales = tuple(float(self.gate_weights(t)[1]) for t in matrices)
        if any(zero_point_of(t) for t in matrices):
            raise UnsupportedForm("a recurrent layer whose weights have a zero point")
        gates = len(by_input)
        return Rounding(bool(options.AsymmetricQuantizeInputs()), scales[:gates], scales[gates : 2 * gates], scales[-1])

    def gate_weights(self, tensor: Any) -> tuple[np.ndarray, np.float32]:
        """The int8 matrix of one gate and its scale."""
        if tensor.tensor_idx < 0 or self.has_expr(tensor.tensor_idx) or not tensor.qnn_params:
            raise UnsupportedForm("a recurrent layer whose weights are no int8 constants")
        data = np.asarray(self.get_tensor_value(tensor))
        if data.dtype != np.int8 or data.ndim != 2 or tensor.qnn_params["scale"].value.numpy().size != 1:
            raise UnsupportedForm("a recurrent layer whose weights are no int8 matrix of one scale")
        return data, scale_of(tensor)

    def gates_by_input(self, gates: Sequence[Any], more: Sequence[Any]) -> np.ndarray:
        """The weights of the input, [1, gates, units, depth], with those of `more` input behind them."""
        held = [np.stack([np.asarray(self.get_tensor_value(t)) for t in some])[None] for some in (gates, more) if some]
        return np.concatenate(held, 3)

    def both_directions(self, tensors: Sequence[Any], merged: bool, auxiliary: int, direction: _Direction) -> Value:
        """The outputs of a bidirectional layer: forward and backward, side by side where they are `merged`.

        Another layer's output may be at `auxiliary`: it is more input of both directions, which have more weights for it, or
        without these the backward direction's only input.
        """
        x, more = self.sequence_of(tensors[0]), tensors[auxiliary + 1 :]
        given = [t for t in more if t.tensor_idx >= 0]
        if given and len(given) < len(more):
            raise UnsupportedForm("a bidirectional layer with some of the weights of its auxiliary input")
        inputs = [x, x]
        if tensors[auxiliary].tensor_idx >= 0:
            inputs[1] = self.sequence_of(tensors[auxiliary])
        if given and any(t.qnn_params for t in given):
            raise UnsupportedForm("a bidirectional layer of int8 weights with an auxiliary input")
        if given:
            inputs = [self.bb.emit(relax.op.concat(inputs, 2))] * 2
        half = len(given) // 2
        made = [direction(x, k > 0, given[k * half : (k + 1) * half]) for k, x in enumerate(inputs)]
        return relax.op.concat(made, 2) if merged else relax.Tuple(made)
