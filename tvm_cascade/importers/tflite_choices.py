"""TFLite operators that choose or reorder values, and functions by a table, where Relax's importer refuses their
quantized form or gets their float form wrong."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import tvm
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite_lstm import LstmConverters
from tvm_cascade.importers.tflite_moves import Operator, Value, relax, tflite
from tvm_cascade.passes.integer.island import EXPLICIT_AXIS


class ChoiceConverters(LstmConverters):
    """Entries for `convert_map`, by TFLite's names in `choices`."""

    def choices(self) -> dict[str, Any]:
        """What this class converts."""
        return {
            "BROADCAST_TO": self._broadcast_to,
            "DEQUANTIZE": self._dequantize,
            "GATHER": self._gather_or_batches,
            "GATHER_ND": self._gather_nd,
            "GELU": self._gelu,
            "REVERSE_V2": self._reverse,
            "SQRT": self._sqrt,
        }

    def _broadcast_to(self, op: Operator) -> Value:
        """Of stored values."""
        x, shape = self.get_input_tensors(op)
        return relax.op.broadcast_to(self.get_tensor_expr(x), self._ints(shape))

    def _dequantize(self, op: Operator) -> Value:
        """Marked by its axis: what reads the file's own floats is no quantized operator, and rounds otherwise."""
        tensor = self.get_input_tensors(op)[0]
        if not self.has_expr(tensor.tensor_idx) or not tensor.qnn_params or not self._shape(tensor):
            return self.convert_dequantize(op)
        params = tensor.qnn_params
        value = self.get_expr(tensor.tensor_idx)
        return relax.op.dequantize(value, params["scale"], params["zero_point"], axis=EXPLICIT_AXIS)

    def _gelu(self, op: Operator) -> Value:
        """The approximation where the file asks for it, which the importer ignores; quantized too."""
        tensor = self.get_input_tensors(op)[0]
        approximate = op.BuiltinOptions() is not None and self.options(op, tflite.GeluOptions).Approximate()
        result = (relax.op.nn.gelu_tanh if approximate else relax.op.nn.gelu)(self._real(tensor))
        output = self.get_output_tensors(op)[0]
        return self.quantize(result, output) if output.qnn_params else result

    def _sqrt(self, op: Operator) -> Value:
        """The reference rounds the quantized root toward zero."""
        tensor, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        root = relax.op.sqrt(self._real(tensor))
        if not output.qnn_params:
            return root
        step = output.qnn_params["scale"]
        return self.quantize(relax.op.multiply(relax.op.floor(relax.op.divide(root, step)), step), output)

    def _reverse(self, op: Operator) -> Value:
        """A slice backwards, along any axes (the importer: one), of stored values."""
        data, axes = self.get_input_tensors(op)
        shape = self._shape(data)
        along = sorted({a % len(shape) for a in self._ints(axes)})
        return relax.op.strided_slice(
            self.get_tensor_expr(data),
            axes=along,
            begin=[shape[a] - 1 for a in along],
            end=[-shape[a] - 1 for a in along],
            strides=[-1] * len(along),
        )

    def _gather_or_batches(self, op: Operator) -> Value:
        """Indices of their own for every batch, as places in all batches put one after the other."""
        options = self.options(op, tflite.GatherOptions)
        data, indices = self.get_input_tensors(op)
        shape, given = self._shape(data), self._shape(indices)
        count = options.BatchDims() % max(len(given), 1)
        if not count:
            return self._gather(op)
        if options.Axis() % len(shape) != count:
            raise tvm.error.OpNotImplemented("GATHER with batch dimensions along another axis than the next")
        batches, extent = prod(shape[:count]), shape[count]
        flat = self.bb.emit(relax.op.reshape(self.get_tensor_expr(data), [batches * extent, *shape[count + 1 :]]))
        start = (np.arange(batches, dtype="int32") * extent).reshape(*shape[:count], *([1] * (len(given) - count)))
        if self.has_expr(indices.tensor_idx):
            own = relax.op.astype(self.get_expr(indices.tensor_idx), "int32")
            places = self.bb.emit(relax.op.add(own, relax.const(start, "int32")))
        else:
            places = relax.const(self._places(indices, extent) + start, "int32")
        return relax.op.take(flat, places, axis=0, mode="fast")

    def _gather_nd(self, op: Operator) -> Value:
        """Constant indices of several axes, as places along all of them put one after the other."""
        data, indices = self.get_input_tensors(op)
        if self.has_expr(indices.tensor_idx):
            raise tvm.error.OpNotImplemented("GATHER_ND with computed indices")
        shape, table = self._shape(data), np.asarray(self.get_tensor_value(indices))
        extents = shape[: table.shape[-1]]
        if table.size and not (np.all(table >= 0) and np.all(table < np.array(extents))):
            raise tvm.error.OpAttributeInvalid("indices lie outside of the tensor")
        places = np.ravel_multi_index(np.moveaxis(table, -1, 0), extents).astype("int32")
        flat = relax.op.reshape(self.get_tensor_expr(data), [prod(extents), *shape[len(extents) :]])
        return relax.op.take(self.bb.emit(flat), relax.const(places, "int32"), axis=0, mode="fast")

    def _places(self, indices: stock.TensorWrapper, extent: int) -> np.ndarray:
        """Constant indices within `extent`, as int32."""
        table = np.asarray(self.get_tensor_value(indices))
        if table.size and not (int(table.min()) >= 0 and int(table.max()) < extent):
            raise tvm.error.OpAttributeInvalid("indices lie outside of the tensor")
        return table.astype("int32")
