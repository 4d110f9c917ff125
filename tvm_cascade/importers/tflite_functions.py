"""TFLite operators that compute, where Relax's importer refuses their quantized form or gets their float form wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite_moves import Operator, Value, relax, tflite
from tvm_cascade.importers.tflite_shapes import ShapeConverters


class FunctionConverters(ShapeConverters):
    """Entries for `convert_map`, by TFLite's names in `functions`."""

    def functions(self) -> dict[str, Any]:
        """What this class converts."""
        return {
            "BATCH_MATMUL": self._batch_matmul,
            "ELU": self._elu,
            "L2_NORMALIZATION": self._l2_normalization,
        }

    def _real(self, tensor: stock.TensorWrapper) -> Value:
        value = self.get_tensor_expr(tensor)
        return self.dequantize(value, tensor) if tensor.qnn_params else value

    def _elu(self, op: Operator) -> Value:
        """As the importer spells it, between quantizations where there are any."""
        tensor = self.get_input_tensors(op)[0]
        x = self._real(tensor)
        one = relax.const(np.float32(1))
        below = relax.op.nn.relu(relax.op.subtract(one, relax.op.exp(x)))
        result = relax.op.add(relax.op.multiply(relax.const(np.float32(-1)), below), relax.op.nn.relu(x))
        output = self.get_output_tensors(op)[0]
        return self.quantize(result, output) if output.qnn_params else result

    def _l2_normalization(self, op: Operator) -> Value:
        """Along the last axis. The reference bounds the norm of floats from below by 1e-6."""
        tensor = self.get_input_tensors(op)[0]
        x = self.bb.emit(self._real(tensor))
        total = relax.op.sum(relax.op.square(x), axis=len(self._shape(tensor)) - 1, keepdims=True)
        output = self.get_output_tensors(op)[0]
        if output.qnn_params:
            return self.quantize(relax.op.divide(x, relax.op.sqrt(total)), output)
        norm = relax.op.maximum(relax.op.sqrt(total), relax.const(np.float32(1e-6)))
        options = self.options(op, tflite.L2NormOptions) if op.BuiltinOptions() is not None else None
        activation = options.FusedActivationFunction() if options is not None else 0
        return self.convert_fused_activation_function(relax.op.divide(x, norm), activation)

    def _batch_matmul(self, op: Operator) -> Value:
        """Operands of at least rank 3, transposed as stored, batches broadcast by the product itself: of rank 2 it
        would read as a fully connected layer, which rounds otherwise."""
        options = self.options(op, tflite.BatchMatMulOptions)
        tensors, output = self.get_input_tensors(op), self.get_output_tensors(op)[0]
        operands = []
        for tensor, swapped in zip(tensors, (options.AdjX(), options.AdjY()), strict=True):
            shape = self._shape(tensor)
            wide = [1] * (3 - len(shape)) + shape
            order = [*range(len(wide) - 2), len(wide) - 1, len(wide) - 2] if swapped else None
            operands.append(self._moved(tensor, wide, order))
        result = relax.op.matmul(*operands)
        result = self.quantize(result, output) if output.qnn_params else result
        rank, result = len(self._shape(output)), self.bb.emit(result)
        made = [int(d) for d in result.ty.shape.values]
        return relax.op.reshape(result, made[-rank:]) if rank < 3 else result

    def _moved(self, tensor: stock.TensorWrapper, shape: list[int], order: list[int] | None) -> Value:
        """A tensor reshaped and transposed on stored values, then dequantized; a constant at once."""
        if self.has_expr(tensor.tensor_idx):
            value = self.get_expr(tensor.tensor_idx)
            if self._shape(tensor) != shape:
                value = self.bb.emit(relax.op.reshape(value, shape))
            value = value if order is None else self.bb.emit(relax.op.permute_dims(value, order))
        else:
            data = np.asarray(self.get_tensor_value(tensor)).reshape(shape)
            data = data if order is None else np.ascontiguousarray(data.transpose(order))
            value = relax.const(data, str(data.dtype))
        return self.dequantize(value, tensor) if tensor.qnn_params else value
