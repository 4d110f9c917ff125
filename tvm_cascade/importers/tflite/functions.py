"""Converters of TFLite operators that compute, pad or broadcast, where Relax's importer refuses their quantized form or
converts their float form wrongly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite.moves import Operator, Value, converts, relax, scale_of, tflite, zero_point_of
from tvm_cascade.importers.tflite.shapes import ShapeConverters
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.gathering import Grid, nearest_sources
from tvm_cascade.passes.integer.island import EXPLICIT_AXIS, STORED_TYPES, Elementwise, Output
from tvm_cascade.passes.integer.reduction import IntegerMean
from tvm_cascade.passes.integer.requantize import requantized_wide
from tvm_cascade.passes.integer.top_k import lower_top_k
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, tirx


def _bounded(index: Index, value: Tensor) -> Scalar:
    """Return an element of `value` as float32 kernels of TFLite bound it: infinities become the largest number, NaN stays."""
    largest = tirx.const(float(np.finfo("float32").max), "float32")
    element, least = value[index], -largest
    return tirx.Select(element > largest, largest, tirx.Select(element < least, least, element))


class FunctionConverters(ShapeConverters):
    """Converters of operators that compute, pad or broadcast."""

    @converts("ELU")
    def _elu(self, op: Operator) -> Value:
        """`relu(x) - relu(1 - exp(x))`, as Relax's importer has it; a quantized one between dequantize and quantize."""
        x = self._real(self.get_input_tensors(op)[0])
        one = relax.const(1, "float32")
        below = relax.op.nn.relu(relax.op.subtract(one, relax.op.exp(x)))
        return self._stored(relax.op.add(relax.op.multiply(relax.const(-1, "float32"), below), relax.op.nn.relu(x)), op)

    @converts("L2_NORMALIZATION")
    def _l2_normalization(self, op: Operator) -> Value:
        """L2 normalization along the last axis. The reference bounds the norm of floats from below by 1e-6."""
        tensor = self.get_input_tensors(op)[0]
        x = self.bb.emit(self._real(tensor))
        total = relax.op.sum(relax.op.square(x), axis=len(self._shape(tensor)) - 1, keepdims=True)
        output = self.get_output_tensors(op)[0]
        if output.qnn_params:
            return self.quantize(relax.op.divide(x, relax.op.sqrt(total)), output)
        norm = relax.op.maximum(relax.op.sqrt(total), relax.const(1e-6, "float32"))
        options = self.options(op, tflite.L2NormOptions) if op.BuiltinOptions() is not None else None
        activation = options.FusedActivationFunction() if options is not None else 0
        return self.convert_fused_activation_function(relax.op.divide(x, norm), activation)

    @converts("BATCH_MATMUL")
    def _batch_matmul(self, op: Operator) -> Value:
        """A matmul, which broadcasts batches, of operands transposed before their dequantize. They get at least rank 3:
        a product of rank 2 would be lowered as a fully connected layer, which rounds differently."""
        options = self.options(op, tflite.BatchMatMulOptions)
        tensors, operands = self.get_input_tensors(op), []
        for tensor, swapped in zip(tensors, (options.AdjX(), options.AdjY()), strict=True):
            shape = self._shape(tensor)
            wide = [1] * (3 - len(shape)) + shape
            order = [*range(len(wide) - 2), len(wide) - 1, len(wide) - 2] if swapped else None
            operands.append(self._moved(tensor, wide, order))
        rank = max(len(self._shape(t)) for t in tensors)
        result = self.bb.emit(self._stored(relax.op.matmul(*operands), op))
        made = [int(d) for d in result.ty.shape.values]
        return relax.op.reshape(result, made[-rank:]) if rank < 3 else result

    def _moved(self, tensor: stock.TensorWrapper, shape: list[int], order: list[int] | None) -> Value:
        """A tensor reshaped and transposed, before its dequantize if it is quantized; a constant is folded."""
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

    @converts("BROADCAST_TO")
    def _broadcast_to(self, op: Operator) -> Value:
        """A broadcast, of stored values where they are quantized."""
        x, shape = self.get_input_tensors(op)
        return relax.op.broadcast_to(self.get_tensor_expr(x), self._ints(shape))

    @converts("DEQUANTIZE")
    def _dequantize(self, op: Operator) -> Value:
        """Mark a DEQUANTIZE of the file by `EXPLICIT_AXIS`: its readers are float operators, which round differently."""
        tensor = self.get_input_tensors(op)[0]
        if not self.has_expr(tensor.tensor_idx) or not tensor.qnn_params or not self._shape(tensor):
            return self.convert_dequantize(op)
        params = tensor.qnn_params
        value = self.get_expr(tensor.tensor_idx)
        return relax.op.dequantize(value, params["scale"], params["zero_point"], axis=EXPLICIT_AXIS)

    @converts("QUANTIZE")
    def _quantize(self, op: Operator) -> Value:
        """Stored integers from or to int32, which no island holds, are requantized here."""
        source, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        given, made = (self.get_tensor_type_str(t.tensor.Type()) for t in (source, output))
        if "int32" not in (given, made):
            return self.convert_quantize(op)
        if not source.qnn_params or not output.qnn_params or not {given, made} <= {*STORED_TYPES, "int32"}:
            raise UnsupportedForm(f"QUANTIZE of {given} to {made}")
        out = Output.unbounded(tuple(self._shape(source)), made, scale_of(output), zero_point_of(output))
        x = self.get_tensor_expr(source)
        return requantized_wide(Emitter(self.bb, {}, "quantize"), x, scale_of(source), zero_point_of(source), out)

    def _convert_reduce(self, relax_op: Callable[..., Value], op: Operator) -> Value:
        """A reduction along axes that may be named from the end, and twice, which the importer refuses."""
        data, axis = self.get_input_tensors(op)
        count = len(self._shape(data))
        along = sorted({a % count for a in self._ints(axis)}) if count else []
        options = self.options(op, tflite.ReducerOptions) if op.BuiltinOptions() is not None else None
        kept = options is not None and bool(options.KeepDims())
        if self.get_op_code_str(op) == "MEAN" and data.tensor.Type() == tflite.TensorType.INT32 and along:
            return self._mean_of_integers(data, along, kept)
        return self._stored(relax_op(self._real(data), along, kept), op)

    def _mean_of_integers(self, data: stock.TensorWrapper, along: list[int], kept: bool) -> Value:
        """A mean of int32 as the reference has it: the sum of 64 bits, divided toward zero."""
        value, shape = self.bb.emit(self.get_tensor_expr(data)), self._shape(data)
        reduced = [1 if axis in along else extent for axis, extent in enumerate(shape)]
        mean = Emitter(self.bb, {}, "mean").call("mean", IntegerMean(tuple(shape), tuple(along)), [value])
        return mean if kept else relax.op.reshape(mean, [d for axis, d in enumerate(reduced) if axis not in along])

    @converts("DIV")
    def _div(self, op: Operator) -> Value:
        """Quotients by a constant that holds 0 end at the largest float, as the reference bounds every result."""
        divisor, output = self.get_input_tensors(op)[1], self.get_output_tensors(op)[0]
        result = self._convert_elemwise(op, relax.op.divide)
        if output.tensor.Type() != tflite.TensorType.FLOAT32 or self.has_expr(divisor.tensor_idx):
            return result
        if np.asarray(self.get_tensor_value(divisor)).all():
            return result
        result = self.bb.emit(result)
        bounded = Elementwise(tuple(int(d) for d in result.ty.shape.values), _bounded, "bounded")
        return Emitter(self.bb, {}, "quotient").call("bounded", bounded, [result])

    @converts("SQUARED_DIFFERENCE")
    def _squared_difference(self, op: Operator) -> Value:
        """A product, for integers too, which have no powers."""
        if self.get_output_tensors(op)[0].qnn_params:
            return self.convert_squared_difference(op)
        difference = self.bb.emit(self._convert_elemwise(op, relax.op.subtract))
        return relax.op.multiply(difference, difference)

    @converts("CUMSUM")
    def _cumsum(self, op: Operator) -> Value:
        """A reversed sum is that of the reversed tensor."""
        data, axis = self.get_input_tensors(op)
        options, dtype = self.options(op, tflite.CumsumOptions), self.get_tensor_type_str(data.tensor.Type())
        shape, (along,) = self._shape(data), self._ints(axis)
        along, value = along % len(shape), self.get_tensor_expr(data)
        value = self._reversed(value, shape, [along]) if options.Reverse() else value
        value = self.bb.emit(relax.op.cumsum(self.bb.emit(value), along, dtype, bool(options.Exclusive())))
        return self._reversed(value, shape, [along]) if options.Reverse() else value

    def _convert_resize(self, method: str, op: Operator) -> Value:
        """The reference copies what is stored: an output of another scale than the input's is not rescaled."""
        options = self.options(
            op, tflite.ResizeBilinearOptions if method == "linear" else tflite.ResizeNearestNeighborOptions
        )
        if options.AlignCorners() and options.HalfPixelCenters():
            return self._resize_nearest_by_both(method, op)
        source, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        own = output.qnn_params
        try:
            output.qnn_params = source.qnn_params
            return super()._convert_resize(method, op)
        finally:
            output.qnn_params = own

    def _resize_nearest_by_both(self, method: str, op: Operator) -> Value:
        """A nearest resize with align_corners and half_pixel_centers, which Relax lacks: rows and columns are gathered."""
        if method == "linear":
            raise InvalidForm("align_corners and half_pixel_centers at once")
        data, size = self.get_input_tensors(op)
        value, shape = self.get_tensor_expr(data), self._shape(data)
        for axis, extent in zip((1, 2), self._ints(size), strict=True):
            sources = nearest_sources(Grid(shape[axis], extent, align_corners=True, half_pixel=True))
            places = relax.const(sources.astype("int32"), "int32")
            value = self.bb.emit(relax.op.take(value, places, axis=axis, mode="fast"))
        return value

    @converts("TOPK_V2")
    def _top_k(self, op: Operator) -> Value:
        """Values and places along the last axis, among equals the first ones, as the reference orders them."""
        data, count = self.get_input_tensors(op)
        (k,), shape = self._ints(count), self._shape(data)
        if not shape or not 0 < k <= shape[-1]:
            raise InvalidForm(f"k of {k} for {shape}")
        values, places = lower_top_k(Emitter(self.bb, {}, "top_k"), self.get_tensor_expr(data), k)
        declared = self.get_tensor_type_str(self.get_output_tensors(op)[1].tensor.Type())
        return relax.Tuple([values, places if declared == "int32" else relax.op.astype(places, declared)])

    @converts("GELU")
    def _gelu(self, op: Operator) -> Value:
        """Corrects that the importer ignores the option `approximate` and refuses quantized operators."""
        tensor = self.get_input_tensors(op)[0]
        approximate = op.BuiltinOptions() is not None and self.options(op, tflite.GeluOptions).Approximate()
        return self._stored((relax.op.nn.gelu_tanh if approximate else relax.op.nn.gelu)(self._real(tensor)), op)

    @converts("SQRT")
    def _sqrt(self, op: Operator) -> Value:
        """The reference rounds the quantized root toward zero."""
        tensor, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        root = relax.op.sqrt(self._real(tensor))
        if not output.qnn_params:
            return root
        step = output.qnn_params["scale"]
        return self.quantize(relax.op.multiply(relax.op.floor(relax.op.divide(root, step)), step), output)

    @converts("REVERSE_V2")
    def _reverse(self, op: Operator) -> Value:
        """A strided slice with steps of -1 along all given axes, where the importer supports one; stored values stay."""
        data, axes = self.get_input_tensors(op)
        shape = self._shape(data)
        return self._reversed(self.get_tensor_expr(data), shape, sorted({a % len(shape) for a in self._ints(axes)}))

    def _reversed(self, value: Value, shape: list[int], along: list[int]) -> Value:
        """A value of `shape` with the order of elements along axes reversed."""
        return relax.op.strided_slice(
            value,
            axes=along,
            begin=[shape[a] - 1 for a in along],
            end=[-shape[a] - 1 for a in along],
            strides=[-1] * len(along),
        )

    @converts("SOFTMAX")
    def _softmax(self, op: Operator) -> Value:
        """The importer drops beta: here it multiplies the logits."""
        options = self.options(op, tflite.SoftmaxOptions)
        logits = self._real(self.get_input_tensors(op)[0])
        if options.Beta() != 1.0:
            logits = relax.op.multiply(logits, relax.const(options.Beta(), "float32"))
        return self._stored(relax.op.nn.softmax(logits, axis=-1), op)

    @converts("RELU_0_TO_1")
    def _relu_0_to_1(self, op: Operator) -> Value:
        """A clip to [0, 1]; the importer refuses quantized operators."""
        return self._stored(relax.op.clip(self._real(self.get_input_tensors(op)[0]), min=0, max=1), op)

    @converts("PAD", "PADV2")
    def _pad(self, op: Operator) -> Value:
        """PAD fills with the output's zero point, which may differ from the input's; PADV2 with the stored constant."""
        inputs = self.get_input_tensors(op)
        output = self.get_output_tensors(op)[0]
        value = 0.0
        if len(inputs) == 3 and inputs[2].tensor_idx >= 0:
            value = float(self.get_tensor_value(inputs[2]).reshape(-1)[0])
        elif output.qnn_params:
            value = float(zero_point_of(output))
        widths = [int(v) for v in self.get_tensor_value(inputs[1]).reshape(-1)]
        return relax.op.nn.pad(self.get_tensor_expr(inputs[0]), pad_width=widths, pad_value=value)

    @converts("AVERAGE_POOL_2D")
    def _average_pool(self, op: Operator) -> Value:
        """The average of stored values, whatever their scales, without the padding, as the reference computes it."""
        return self.convert_pool2d(op, pool_type="average")

    @converts("PRELU")
    def _prelu(self, op: Operator) -> Value:
        """One slope per channel becomes `prelu`; the importer flattens all slopes and refuses quantized operators."""
        x, slopes = self.get_input_tensors(op)
        shape, given = self._shape(x), self._shape(slopes)
        data, alpha = self._real(x), self._real(slopes)
        if int(np.prod(given)) == given[-1] == shape[-1]:
            result = relax.op.nn.prelu(data, relax.op.reshape(alpha, [shape[-1]]), axis=len(shape) - 1)
        else:
            result = relax.op.add(
                relax.op.nn.relu(data), relax.op.multiply(alpha, relax.op.minimum(data, relax.const(0.0, "float32")))
            )
        return self._stored(result, op)
