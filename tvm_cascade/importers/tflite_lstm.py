"""Float UNIDIRECTIONAL_SEQUENCE_LSTM, unrolled over its steps (Relax's importer couples the input gate to the forget
gate, whether the file does or not).

`i, f, o = sigmoid(W x + R h + b)`, `g = tanh(W x + R h + b)`, `c = f c + i g`, `h = o tanh(c)`, from states of zero. The
products with the input are made for all steps at once. Quantized ones are refused: their gates are computed in
gemmlowp's fixed point, which has no lowering here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from tvm_cascade.importers.tflite_dilated import DilatedConverters
from tvm_cascade.importers.tflite_moves import Operator, Value, relax, tflite

_GATES = ("input", "forget", "cell", "output")  # in the order of the operator's tensors
_WEIGHTS, _RECURRENT, _PEEPHOLES, _BIASES, _PROJECTION, _NORMS = 1, 5, 9, 12, 16, 20


class LstmConverters(DilatedConverters):
    """Entries for `convert_map`, by TFLite's names in `recurrent`."""

    def recurrent(self) -> dict[str, Any]:
        """What this class converts."""
        return {"UNIDIRECTIONAL_SEQUENCE_LSTM": self._lstm}

    def _lstm(self, op: Operator) -> Value:
        tensors = self.get_input_tensors(op)
        options = self.options(op, tflite.UnidirectionalSequenceLSTMOptions)
        self._check_lstm(tensors, options)
        coupled = tensors[_WEIGHTS].tensor_idx < 0
        shape = self._shape(tensors[0])
        major = bool(options.TimeMajor())
        steps, batch, depth = (shape if major else [shape[1], shape[0], shape[2]]) if len(shape) == 3 else (0, 0, 0)
        if not steps:
            raise tvm.error.OpNotImplemented("an LSTM over something other than a sequence")
        x = self.get_tensor_expr(tensors[0])
        x = x if major else relax.op.permute_dims(x, [1, 0, 2])
        flat = self.bb.emit(relax.op.reshape(x, [steps * batch, depth]))
        used = [k for k in range(4) if k or not coupled]
        weights, recurrent, bias = (
            np.concatenate([np.asarray(self.get_tensor_value(tensors[at + k])) for k in used])
            for at in (_WEIGHTS, _RECURRENT, _BIASES)
        )
        units = recurrent.shape[1]
        inputs = self.bb.emit(relax.op.add(relax.op.matmul(flat, _const(weights.T)), _const(bias)))
        hidden = cell = None
        made = []
        for step in range(steps):
            gates = relax.op.strided_slice(inputs, axes=[0], begin=[step * batch], end=[(step + 1) * batch])
            if hidden is not None:
                gates = relax.op.add(self.bb.emit(gates), relax.op.matmul(hidden, _const(recurrent.T)))
            hidden, cell = self._lstm_step(self.bb.emit(gates), cell, units, coupled)
            made.append(self.bb.emit(relax.op.reshape(hidden, [1, batch, units])))
        result = made[0] if steps == 1 else relax.op.concat(made, 0)
        return result if major else relax.op.permute_dims(result, [1, 0, 2])

    def _lstm_step(self, gates: Value, cell: Value | None, units: int, coupled: bool) -> tuple[Value, Value]:
        """States after one step; `cell` None is a state of zero."""
        names = _GATES[1:] if coupled else _GATES
        part = {
            name: self.bb.emit(relax.op.strided_slice(gates, axes=[1], begin=[k * units], end=[(k + 1) * units]))
            for k, name in enumerate(names)
        }
        forget = self.bb.emit(relax.op.sigmoid(part["forget"]))
        one = relax.const(np.float32(1))
        taken = relax.op.subtract(one, forget) if coupled else relax.op.sigmoid(part["input"])
        new = self.bb.emit(relax.op.multiply(taken, relax.op.tanh(part["cell"])))
        cell = new if cell is None else self.bb.emit(relax.op.add(relax.op.multiply(forget, cell), new))
        return self.bb.emit(relax.op.multiply(relax.op.sigmoid(part["output"]), relax.op.tanh(cell))), cell

    def _check_lstm(self, tensors: list[Any], options: Any) -> None:
        if any(t.tensor_idx >= 0 and t.qnn_params for t in tensors):
            raise tvm.error.OpNotImplemented("a quantized LSTM: convert it as float, or unrolled")
        beyond = {"peepholes": range(_PEEPHOLES, _BIASES), "a projection": (_PROJECTION, _PROJECTION + 1)}
        for what, places in (beyond | {"layer normalization": range(_NORMS, len(tensors))}).items():
            if any(tensors[k].tensor_idx >= 0 for k in places):
                raise tvm.error.OpNotImplemented(f"an LSTM with {what}")
        if options.FusedActivationFunction() != tflite.ActivationFunctionType.TANH:
            raise tvm.error.OpNotImplemented("an LSTM with another activation than tanh")
        if options.CellClip() or options.ProjClip():
            raise tvm.error.OpNotImplemented("an LSTM that clips its states")


def _const(data: np.ndarray) -> Value:
    return relax.const(np.ascontiguousarray(data, "float32"))
