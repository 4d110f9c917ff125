"""Converter of UNIDIRECTIONAL_SEQUENCE_LSTM. States always start at zero; TFLite's interpreter keeps them between runs,
unless its variables are reset. (Relax's importer couples the input gate to the forget gate, even if the file does not.)

`i, f, o = sigmoid(W x + R h + b)`, `g = tanh(W x + R h + b)`, `c = f c + i g`, `h = o tanh(c)`. Float ones are unrolled
over their steps, with one product of the inputs of all steps; they may clip `c` and project `h`. Quantized ones are
converted to the integer kernel here, because `passes.LowerQuantized` could not derive their arithmetic from a float form.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm

from tvm_cascade.importers.tflite_moves import Operator, Value, converts, relax, scale_of, tflite, zero_point_of
from tvm_cascade.importers.tflite_svdf import SvdfConverters
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.lstm import GATE_BITS, LARGEST_CELL, Gates, States, lower_lstm

_GATES = ("input", "forget", "cell", "output")  # in the order of the operator's tensors
_WEIGHTS, _RECURRENT, _PEEPHOLES, _BIASES, _PROJECTION, _STATES, _NORMS = 1, 5, 9, 12, 16, 18, 20
_HIDDEN = 4  # among the intermediates of an operator: the output before any projection


class LstmConverters(SvdfConverters):
    """The converter of the LSTM, float and quantized."""

    @converts("UNIDIRECTIONAL_SEQUENCE_LSTM")
    def _lstm(self, op: Operator) -> Value:
        tensors = self.get_input_tensors(op)
        options = self.options(op, tflite.UnidirectionalSequenceLSTMOptions)
        self._check_lstm(tensors, options)
        coupled = tensors[_WEIGHTS].tensor_idx < 0
        shape = self._shape(tensors[0])
        major = bool(options.TimeMajor())
        if len(shape) != 3 or 0 in shape:
            raise tvm.error.OpNotImplemented("an LSTM over something other than a sequence")
        if tensors[0].qnn_params:
            return self._integer_lstm(op, tensors, options)
        steps, batch, depth = shape if major else [shape[1], shape[0], shape[2]]
        x = self.get_tensor_expr(tensors[0])
        x = x if major else relax.op.permute_dims(x, [1, 0, 2])
        flat = self.bb.emit(relax.op.reshape(x, [steps * batch, depth]))
        used = [k for k in range(4) if k or not coupled]
        weights, recurrent, bias = (
            np.concatenate([np.asarray(self.get_tensor_value(tensors[at + k])) for k in used])
            for at in (_WEIGHTS, _RECURRENT, _BIASES)
        )
        states = recurrent.shape[1]
        inputs = self.bb.emit(relax.op.add(relax.op.matmul(flat, _const(weights.T)), _const(bias)))
        hidden = cell = None
        made = []
        for step in range(steps):
            gates = relax.op.strided_slice(inputs, axes=[0], begin=[step * batch], end=[(step + 1) * batch])
            if hidden is not None:
                gates = relax.op.add(self.bb.emit(gates), relax.op.matmul(hidden, _const(recurrent.T)))
            hidden, cell = self._lstm_step(self.bb.emit(gates), cell, coupled, options.CellClip())
            hidden = self._projected(hidden, tensors, options.ProjClip())
            made.append(self.bb.emit(relax.op.reshape(hidden, [1, batch, states])))
        result = made[0] if steps == 1 else relax.op.concat(made, 0)
        return result if major else relax.op.permute_dims(result, [1, 0, 2])

    def _lstm_step(self, gates: Value, cell: Value | None, coupled: bool, clip: float) -> tuple[Value, Value]:
        """Hidden and cell state, `[batch, units]`, after a step. `gates` are the sums before their activations, `[batch,
        4 * units]` (3 if the input gate is coupled to the forget gate); `cell` is the state before, None for zero; `clip`
        bounds the magnitude of the state after, 0 for no bound."""
        names = _GATES[1:] if coupled else _GATES
        units = int(gates.ty.shape.values[1]) // len(names)
        part = {
            name: self.bb.emit(relax.op.strided_slice(gates, axes=[1], begin=[k * units], end=[(k + 1) * units]))
            for k, name in enumerate(names)
        }
        forget = self.bb.emit(relax.op.sigmoid(part["forget"]))
        one = relax.const(np.float32(1))
        taken = relax.op.subtract(one, forget) if coupled else relax.op.sigmoid(part["input"])
        new = self.bb.emit(relax.op.multiply(taken, relax.op.tanh(part["cell"])))
        cell = new if cell is None else self.bb.emit(relax.op.add(relax.op.multiply(forget, cell), new))
        cell = self._clipped(cell, clip)
        return self.bb.emit(relax.op.multiply(relax.op.sigmoid(part["output"]), relax.op.tanh(cell))), cell

    def _projected(self, hidden: Value, tensors: list[Any], clip: float) -> Value:
        """The output and next state of a step: `hidden`, or its projection, whose magnitude `clip` bounds (0: no bound)."""
        weights, bias = tensors[_PROJECTION : _PROJECTION + 2]
        if weights.tensor_idx < 0:
            return hidden
        matrix = np.asarray(self.get_tensor_value(weights))
        made = self.bb.emit(relax.op.matmul(hidden, _const(matrix.T)))
        if bias.tensor_idx >= 0:
            made = self.bb.emit(relax.op.add(made, _const(np.asarray(self.get_tensor_value(bias)))))
        return self._clipped(made, clip)

    def _clipped(self, value: Value, clip: float) -> Value:
        return self.bb.emit(relax.op.clip(value, min=-clip, max=clip)) if clip > 0 else value

    def _check_lstm(self, tensors: list[Any], options: Any) -> None:
        beyond = {"peepholes": range(_PEEPHOLES, _BIASES), "layer normalization": range(_NORMS, len(tensors))}
        if tensors[0].qnn_params:
            beyond["a projection of integers"] = range(_PROJECTION, _STATES)
        for what, places in beyond.items():
            if any(tensors[k].tensor_idx >= 0 for k in places):
                raise tvm.error.OpNotImplemented(f"an LSTM with {what}")
        if options.FusedActivationFunction() != tflite.ActivationFunctionType.TANH:
            raise tvm.error.OpNotImplemented("an LSTM with another activation than tanh")

    def _integer_lstm(self, op: Operator, tensors: list[Any], options: Any) -> Value:
        """An LSTM of int8 with an int16 cell state, in the reference's arithmetic."""
        output, hidden = self.get_output_tensors(op)[0], self._hidden(op)
        state, cell = tensors[_STATES : _STATES + 2]
        for tensor, what, dtype in ((tensors[0], "input", "int8"), (state, "state", "int8"), (cell, "cell", "int16")):
            if self.get_tensor_type_str(tensor.tensor.Type()) != dtype or not tensor.qnn_params:
                raise tvm.error.OpNotImplemented(f"an integer LSTM whose {what} is not {dtype}")
        exponent = round(math.log2(scale_of(cell)))
        if abs(math.log2(scale_of(cell)) - exponent) > 1e-3 or not -15 <= exponent <= LARGEST_CELL - 15:
            raise tvm.error.OpNotImplemented(f"an integer LSTM whose cell has the scale {scale_of(cell):g}")
        used = [k for k in range(4) if k or tensors[_WEIGHTS].tensor_idx >= 0]
        weights, recurrent = ([self._gate_weights(tensors[at + k]) for k in used] for at in (_WEIGHTS, _RECURRENT))
        unit = np.float32(2.0**-GATE_BITS)
        gates = Gates(
            np.stack([w for w, _ in weights]),
            np.stack([w for w, _ in recurrent]),
            np.stack([np.asarray(self.get_tensor_value(tensors[_BIASES + k]), "int32") for k in used]),
            tuple(np.float32(s * scale_of(tensors[0])) / unit for _, s in weights),
            tuple(np.float32(s * scale_of(state)) / unit for _, s in recurrent),
            zero_point_of(tensors[0]),
            zero_point_of(state),
        )
        clip = int(min(np.float32(options.CellClip()) / scale_of(cell), np.float32(32767)))
        scale = np.float32(2.0**-30 / float(scale_of(hidden)))
        if output.qnn_params is None or self.get_tensor_type_str(output.tensor.Type()) != "int8":
            raise tvm.error.OpNotImplemented("an integer LSTM whose output is not int8")
        x = self.get_tensor_expr(tensors[0])
        return lower_lstm(
            Emitter(self.bb, {}, "lstm"),
            x,
            self._shape(tensors[0]),
            bool(options.TimeMajor()),
            gates,
            States(exponent, clip, scale, zero_point_of(hidden)),
        )

    def _hidden(self, op: Operator) -> Any:
        """The intermediate tensor whose scale and zero point the output is computed with."""
        index = op.Intermediates(_HIDDEN) if op.IntermediatesLength() > _HIDDEN else -1
        hidden = self.get_tensors([index])[0] if 0 <= index < self.subgraph.TensorsLength() else None
        if hidden is None or not hidden.qnn_params:
            raise tvm.error.OpNotImplemented("an integer LSTM without the scale of its output (intermediate 4)")
        return hidden

    def _gate_weights(self, tensor: Any) -> tuple[np.ndarray, np.float32]:
        """The int8 matrix of one gate and its scale."""
        if tensor.tensor_idx < 0 or self.has_expr(tensor.tensor_idx) or not tensor.qnn_params:
            raise tvm.error.OpNotImplemented("an integer LSTM whose weights are no int8 constants")
        data = np.asarray(self.get_tensor_value(tensor))
        if data.dtype != np.int8 or data.ndim != 2 or tensor.qnn_params["scale"].value.numpy().size != 1:
            raise tvm.error.OpNotImplemented("an integer LSTM whose weights are no int8 matrix of one scale")
        return data, scale_of(tensor)


def _const(data: np.ndarray) -> Value:
    return relax.const(np.ascontiguousarray(data, "float32"))
