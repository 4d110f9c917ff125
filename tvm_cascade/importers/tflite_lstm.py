"""Converter of UNIDIRECTIONAL_SEQUENCE_LSTM. The network keeps its states between calls, as TFLite's interpreter does, or they
start at zero in each (`stateless`). (Relax's importer couples the input gate to the forget gate, even if the file does not.)

Float ones become the kernel of `passes.recurrent`. Quantized ones are converted to the integer kernel here, because
`passes.LowerQuantized` could not derive their arithmetic from a float form.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm

from tvm_cascade.importers.tflite_moves import Operator, Value, converts, relax, scale_of, tflite, zero_point_of
from tvm_cascade.importers.tflite_svdf import SvdfConverters
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.passes.integer.lstm import GATE_BITS, LARGEST_CELL, Gates, Kept, Projection, States, lower_lstm
from tvm_cascade.passes.recurrent.cells import Recurrence
from tvm_cascade.passes.recurrent.functions import SIGMOID, TANH
from tvm_cascade.passes.recurrent.lower import Operands, Wanted, lower_recurrence
from tvm_cascade.passes.recurrent.rounding import Rounding

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
        used = [k for k in range(4) if k or not coupled]
        rounding = self._rounding(tensors, used, options)
        weights, recurrent, bias = (
            np.stack([np.asarray(self.get_tensor_value(tensors[at + k])) for k in used])[None]
            for at in (_WEIGHTS, _RECURRENT, _BIASES)
        )
        axes, derived = "sbu" if major else "bsu", "input" if coupled else ""
        layer = Recurrence(
            "lstm",
            ((SIGMOID, TANH, TANH),),
            cell_clip=float(options.CellClip()),
            projection_clip=float(options.ProjClip()),
            derived=derived,
            input_axes=axes,
            output_axes=axes,
            state_axes="bu",
        )
        projection, shift = (
            None if t.tensor_idx < 0 else np.asarray(self.get_tensor_value(t))[None]
            for t in tensors[_PROJECTION : _PROJECTION + 2]
        )
        x = self.get_tensor_expr(tensors[0])
        operands = Operands(
            x,
            weights,
            recurrent,
            bias,
            peepholes=self._peepholes(tensors, used),
            hidden=self.held_state(tensors[_STATES]),
            cell=self.held_state(tensors[_STATES + 1]),
            projection=projection,
            projection_bias=shift,
            rounding=rounding,
        )
        made, _, last = lower_recurrence(self.bb, layer, operands, Wanted(cell=operands.cell is not None))
        self._keep_states(tensors, made, last, major)
        return made

    def _keep_states(self, tensors: list[Any], made: Value, cell: Value | None, major: bool) -> None:
        """Let the next call begin with the last step of the output and with `cell`, where the network keeps its states."""
        state, cells = tensors[_STATES : _STATES + 2]
        if self.held_state(state) is not None:
            axis, steps = (0 if major else 1), shape_of(made)[0 if major else 1]
            last = relax.op.strided_slice(made, axes=[axis], begin=[steps - 1], end=[steps])
            self.keep_state(state, self.bb.emit(relax.op.reshape(self.bb.emit(last), self._shape(state))))
        if cell is not None:
            self.keep_state(cells, cell)

    def _rounding(self, tensors: list[Any], used: list[int], options: Any) -> Rounding | None:
        """How a float LSTM of int8 weights computes; None for one of float weights."""
        matrices = [tensors[at + k] for at in (_WEIGHTS, _RECURRENT) for k in used]
        matrices += [tensors[_PROJECTION]] if tensors[_PROJECTION].tensor_idx >= 0 else []
        if not any(t.qnn_params for t in matrices):
            return None
        scales = tuple(float(self._gate_weights(t)[1]) for t in matrices)
        if any(zero_point_of(t) for t in matrices):
            raise tvm.error.OpNotImplemented("an LSTM whose weights have a zero point")
        gates = len(used)
        return Rounding(bool(options.AsymmetricQuantizeInputs()), scales[:gates], scales[gates : 2 * gates], scales[-1])

    def _check_lstm(self, tensors: list[Any], options: Any) -> None:
        beyond = {"layer normalization": range(_NORMS, len(tensors))}
        if tensors[0].qnn_params:
            beyond["peepholes of integers"] = range(_PEEPHOLES, _BIASES)
        for what, places in beyond.items():
            if any(tensors[k].tensor_idx >= 0 for k in places):
                raise tvm.error.OpNotImplemented(f"an LSTM with {what}")
        if options.FusedActivationFunction() != tflite.ActivationFunctionType.TANH:
            raise tvm.error.OpNotImplemented("an LSTM with another activation than tanh")

    def _peepholes(self, tensors: list[Any], used: list[int]) -> np.ndarray | None:
        """The weights by which gates look at the cell, [1, 3, units], those of a coupled gate zero; None without any."""
        wanted = [_PEEPHOLES + k for k in range(3) if k or 0 in used]
        given = {k for k in range(_PEEPHOLES, _BIASES) if tensors[k].tensor_idx >= 0}
        if not given:
            return None
        if given != set(wanted) or any(self.has_expr(tensors[k].tensor_idx) for k in given):
            raise tvm.error.OpNotImplemented("an LSTM with peepholes of some gates only, or computed ones")
        found = [self._peephole(tensors[k]) for k in wanted]
        return np.stack([*([np.zeros_like(found[0])] if 0 not in used else []), *found])[None]

    def _peephole(self, tensor: Any) -> np.ndarray:
        """The weights of a peephole as floats."""
        data = np.asarray(self.get_tensor_value(tensor))
        return data.astype("float32") * scale_of(tensor) if tensor.qnn_params else data

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
        projection, zero = self._projection(tensors, hidden, float(options.ProjClip())), zero_point_of(hidden)
        held = self.held_state(state), self.held_state(cell)
        kept = None if held[0] is None or held[1] is None else Kept(held[0], held[1])
        made, last = lower_lstm(
            Emitter(self.bb, {}, "lstm"),
            x,
            bool(options.TimeMajor()),
            gates,
            States(exponent, clip, scale, zero if projection is None else -zero),
            projection,
            kept,
        )
        if kept is not None:
            self._keep_states(tensors, made, last, bool(options.TimeMajor()))
        return made

    def _projection(self, tensors: list[Any], hidden: Any, clip: float) -> Projection | None:
        """The projection of an integer LSTM, from its units in the quantization of `hidden` to its state. The reference takes
        the zero point of `hidden` from the units in front of a projection, where it adds it to an output, and adds it back."""
        matrix, shift = tensors[_PROJECTION : _PROJECTION + 2]
        if matrix.tensor_idx < 0:
            return None
        state = tensors[_STATES]
        weights, step = self._gate_weights(matrix)
        bias = np.zeros(len(weights), "int32") if shift.tensor_idx < 0 else np.asarray(self.get_tensor_value(shift))
        sums = weights.astype("int64").sum(axis=1) * zero_point_of(hidden)
        scale = np.float32(np.float32(step * scale_of(hidden)) / scale_of(state))
        bound = int(min(max(np.float32(clip) / scale_of(state), np.float32(-128)), np.float32(127)))
        return Projection(weights, (bias + sums).astype("int32"), scale, zero_point_of(state), max(bound, 0))

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
            raise tvm.error.OpNotImplemented("an LSTM whose weights are no int8 constants")
        data = np.asarray(self.get_tensor_value(tensor))
        if data.dtype != np.int8 or data.ndim != 2 or tensor.qnn_params["scale"].value.numpy().size != 1:
            raise tvm.error.OpNotImplemented("an LSTM whose weights are no int8 matrix of one scale")
        return data, scale_of(tensor)
