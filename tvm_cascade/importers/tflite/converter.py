"""`Converter`: Relax's TFLite operator converter with its defects corrected, for the importer's parameter `op_converter`.

Each method says which defect it corrects. Quantized operators are imported as `dequantize -> float operator ->
quantize` islands or, for operators that only move or compare stored values, directly on integers;
`passes.LowerQuantized` turns both into integer arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.interface import check_size
from tvm_cascade.importers.tflite.contradictions import contradiction
from tvm_cascade.importers.tflite.control import ControlConverters
from tvm_cascade.importers.tflite.coverage import Unsupported, coverage
from tvm_cascade.importers.tflite.forms import check_form
from tvm_cascade.importers.tflite.hybrid import HYBRID
from tvm_cascade.importers.tflite.kept import Variables
from tvm_cascade.importers.tflite.model import kind_of
from tvm_cascade.importers.tflite.moves import (
    CONVERTERS,
    CONVOLUTIONS,
    Operator,
    Value,
    converts,
    relax,
    scale_of,
    tflite,
    zero_point_of,
)
from tvm_cascade.importers.tflite.site import InvalidForm, Site, UnsupportedForm, described
from tvm_cascade.messages import last_line
from tvm_cascade.passes.integer.activations import activation_range
from tvm_cascade.passes.origin import marked
from tvm_cascade.search_monitor import counted

# Operators whose conversion is right on stored integers although the importer's list leaves them out.
_MOVES_ONLY = frozenset((
    "ARG_MAX", "ARG_MIN", "ASSIGN_VARIABLE", "BATCH_TO_SPACE_ND", "BROADCAST_TO", "DEPTH_TO_SPACE", "DYNAMIC_UPDATE_SLICE",
    "EMBEDDING_LOOKUP", "EXPAND_DIMS", "GATHER", "GATHER_ND", "IF", "MIRROR_PAD", "PACK", "PAD", "PADV2", "READ_VARIABLE",
    "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SELECT", "SELECT_V2", "SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH",
    "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TOPK_V2", "TRANSPOSE", "UNPACK", "WHILE",
))  # fmt: skip
_FOLDED = frozenset(("DENSIFY", "FILL", "RANK", "SHAPE"))
# the LSTM is refused by its converter, which says why
_IN_ISLANDS = frozenset((
    "BATCH_MATMUL", "ELU", "GELU", "L2_NORMALIZATION", "PRELU", "RELU_0_TO_1", "SVDF",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
))  # fmt: skip
_FUSED_BOUNDS = {
    tflite.ActivationFunctionType.RELU: (0.0, None),
    tflite.ActivationFunctionType.RELU6: (0.0, 6.0),
    tflite.ActivationFunctionType.RELU_N1_TO_1: (-1.0, 1.0),
}


class Refused(Exception):
    """A network that cannot be imported as it is; the message says why and what to do."""

    def __init__(self, message: str, *at: int, invalid: bool = False) -> None:
        """`at`: the positions of the operators that are refused; `invalid`: whether they break TFLite's rules."""
        super().__init__(message)
        self.at = at
        self.invalid = invalid


_UNSUPPORTED = (tvm.error.OpNotImplemented, tvm.error.OpAttributeUnImplemented, NotImplementedError)


class Converter(ControlConverters):
    """TVM's `OperatorConverter`, corrected; its variables have the names of the model's tensors (`passes.origin`)."""

    _SUPPORTED_QUANTIZED_OPS = stock.OperatorConverter._SUPPORTED_QUANTIZED_OPS | _MOVES_ONLY | _FOLDED | _IN_ISLANDS

    def __init__(
        self,
        *args: object,
        missing: dict[int, str] | None = None,
        variables: Variables | None = None,
        **kwargs: object,
    ) -> None:
        """With `missing`, operators that cannot be converted are added to it and give zeros; else they raise."""
        self._wrappers: dict[int, stock.TensorWrapper] = {}
        super().__init__(*args, **kwargs)
        self.variables = variables or self.variables
        self._missing = missing
        self._absent: dict[int, str] = {}
        self._hybrid: dict[int, str] = {}
        self.convert_map.update({name: getattr(self, method) for name, method in CONVERTERS.items()})

    def convert_op_to_relax(self) -> None:
        """Converts every operator; binds each result under its tensor's name, which reports and tests look for.

        Raises
        ------
        Unsupported, Refused
            For operators that cannot be converted, or not in their form, with their names.
        """
        missing: dict[int, str] = {}
        for i in counted("operators of the file", range(self.subgraph.OperatorsLength())):
            op = self.subgraph.Operators(i)
            name = kind_of(self.model, op)
            try:
                if i in self._absent:
                    missing[i] = self._absent[i]
                    self._stand_in(op)
                    continue
                try:
                    self._convert(self.get_op_code_str(op), op, i in self._hybrid)
                except Exception as error:
                    if not isinstance(error, _UNSUPPORTED) and not self._quantizes_wide(op):
                        raise
                    missing[i] = f"{name} (operator {i}): {self._reason(op, error)}"
                    self._stand_in(op)
            except Exception as error:  # malformed operators, and what reads stand-ins, raise whatever breaks first
                if missing:
                    raise Unsupported(missing | {k: v for k, v in self._absent.items() if k > i}) from error
                text = f"operator {i}, {name}, is not supported in this form: {self._reason(op, error)}"
                raise Refused(text, i, invalid=isinstance(error, InvalidForm)) from error
        if missing and self._missing is None:
            raise Unsupported(missing)
        if self._missing is not None:
            self._missing.update(missing)
        if not self.nested:
            self.put_states()

    def _quantizes_wide(self, op: Operator) -> bool:
        """Whether an operator writes quantized numbers of 32 bits or more, for which the importer has no form."""
        wide = (tflite.TensorType.INT32, tflite.TensorType.INT64)
        return any(t.qnn_params and t.tensor.Type() in wide for t in self.get_output_tensors(op))

    def _stand_in(self, op: Operator) -> None:
        """Bind zeros to the outputs of an operator that cannot be converted, so that later operators are checked too."""
        for output in self.get_output_tensors(op):
            dtype = self.get_tensor_type_str(output.tensor.Type())
            self._bind(output, relax.op.zeros(self._shape(output), dtype))

    def check_unsupported_ops(self) -> None:
        """Record operators that cannot be converted; refuse those with quantized weights and float activations that have no
        converter for that."""
        self._absent, self._hybrid = coverage(self, self.convert_map, self._SUPPORTED_QUANTIZED_OPS)
        refused = {i: name for i, name in self._hybrid.items() if name not in HYBRID}
        if refused:
            raise Refused(
                f"its weights are quantized and its activations are float ({', '.join(dict.fromkeys(refused.values()))}): "
                "convert it again with a representative data set (full integer quantization), or without quantization",
                *refused,
            )

    def _site(self, op: Operator) -> Site:
        """An operator as its requirements see it."""
        name, inputs = self.get_op_code_str(op), self.get_input_tensors(op)
        shapes = [tuple(self._shape(t)) if t.tensor_idx >= 0 else () for t in inputs]
        return Site(name, inputs, self.get_output_tensors(op), shapes, _attributes(op), self._value)

    def _value(self, tensor: stock.TensorWrapper) -> np.ndarray | None:
        """The value of a tensor that is known; None of one that is computed."""
        return None if self.has_expr(tensor.tensor_idx) else np.asarray(self.get_tensor_value(tensor))

    def _reason(self, op: Operator, error: Exception) -> str:
        """What is wrong with an operator: the error's words where they are for readers, else what the operator is made of."""
        if isinstance(error, (InvalidForm, *_UNSUPPORTED, Unsupported, Refused)):
            return last_line(error)
        return described(self._site(op))

    def _convert(self, name: str, op: Operator, hybrid: bool = False) -> None:
        check_form(self._site(op))
        if reason := contradiction(name, self.get_input_tensors(op), self.get_output_tensors(op)):
            raise UnsupportedForm(reason)
        if hybrid:
            result = self.convert_hybrid(name, op)
        else:
            result = None if self.fold_shape(name, op) else self.convert_map[name](op=op)
        if result is None:
            return
        outputs = self.get_output_tensors(op)
        if len(outputs) == 1:
            self._bind(outputs[0], result)
            return
        if isinstance(result, (relax.Tuple, list)):
            for output, value in zip(outputs, getattr(result, "fields", result), strict=True):
                if value is not None:  # of a list, an output that nobody reads
                    self._bind(output, value)
            return
        result = self.bb.emit(result)
        for k, output in enumerate(outputs):
            self._bind(output, relax.TupleGetItem(result, k))

    def get_tensors(self, tensors_idx_list: Any) -> list[stock.TensorWrapper]:
        """Corrects the axis of quantization: 0 with one scale, clamped where it exceeds the rank (rank-1 biases of some
        converters); and allows one zero point for many scales, which the importer refuses. Every tensor is read once."""
        return [self._wrapper(index) for index in self._indices_or_empty(tensors_idx_list)]

    def get_input_tensors(self, op: Operator) -> list[stock.TensorWrapper]:
        """A bias that a convolution leaves out is none at all; the importer takes it for a tensor."""
        tensors = super().get_input_tensors(op)
        left_out = len(tensors) == 3 and tensors[2].tensor_idx < 0 and self.get_op_code_str(op) in CONVOLUTIONS
        return tensors[:2] if left_out else tensors

    def _wrapper(self, index: int) -> stock.TensorWrapper:
        if index < 0:
            return stock.TensorWrapper(index, 0, 0)
        if index not in self._wrappers:
            tensor = self.subgraph.Tensors(index)
            buffer = self.model.Buffers(tensor.Buffer())
            self._wrappers[index] = stock.TensorWrapper(index, tensor, buffer, _quantization(tensor))
        return self._wrappers[index]

    def has_same_qnn_params(self, lhs_tensor: object, rhs_tensor: object) -> bool:
        """Always True: the reference copies or compares stored values whatever their scales; unequal ones are no error."""
        return True

    def convert_fused_activation_function(self, in_expr: Value, fused_activation_fn: int) -> Value:
        """Bounds alone: kernels ignore others, such as a fused TANH."""
        if fused_activation_fn not in (tflite.ActivationFunctionType.NONE, *_FUSED_BOUNDS):
            name = self.activation_fn_type.get(fused_activation_fn, str(fused_activation_fn))
            raise UnsupportedForm(f"a fused activation {name}, which TFLite's kernels ignore")
        return super().convert_fused_activation_function(in_expr, fused_activation_fn)

    def convert_qnn_fused_activation_function(
        self, expr: Value, fused_activation_fn: int, scale: float, zero_point: int, dtype: str
    ) -> Value:
        """Clip to an activation's bounds, rounded half away from zero in float32 as in the reference, not half to even."""
        if fused_activation_fn == tflite.ActivationFunctionType.NONE:
            return expr
        if fused_activation_fn not in _FUSED_BOUNDS:
            name = self.activation_fn_type.get(fused_activation_fn, str(fused_activation_fn))
            raise UnsupportedForm(f"the quantized fused activation {name}")
        lo, hi = activation_range(_FUSED_BOUNDS[fused_activation_fn], np.float32(scale), zero_point, dtype)
        return relax.op.clip(expr, min=float(lo), max=float(hi))

    def dequantize(self, expr: Value, tensor: stock.TensorWrapper) -> Value:
        """Casts the int64 biases of int16 networks, which Relax cannot dequantize, to int32; raises if they do not fit."""
        if isinstance(expr, tvm.ir.GenericConst):
            data: Any = getattr(expr, "value").numpy()  # noqa: B009  (a field of run time)
            if data.dtype == np.int64:
                if data.size and np.abs(data).max() >= 1 << 31:
                    raise UnsupportedForm("a bias beyond 32 bits")
                expr = relax.const(data.astype("int32"), "int32")
        return super().dequantize(expr, tensor)

    def _bind(self, wrapper: stock.TensorWrapper, value: Value) -> None:
        name = stock.get_tensor_name(self.subgraph, wrapper.tensor_idx)
        bound = self.bb.emit(value, name_hint=marked(name))
        try:
            check_size(bound.ty)
        except ValueError as error:
            raise InvalidForm(str(error)) from error
        self.exp_tab.set_expr(name, bound)

    @converts("TRANSPOSE_CONV")
    def _transpose_conv(self, op: Operator) -> Value:
        """The output has the size that an operand gives, or, where that is computed, the file declares; the importer computes
        it from the padding alone.

        Float convolutions are emitted in NCHW, the only layout that Relax legalizes.
        """
        inputs, output = self.get_input_tensors(op), self.get_output_tensors(op)[0]
        options = self.options(op, tflite.TransposeConvOptions)
        weights, x = inputs[1], inputs[2]
        if self.has_expr(weights.tensor_idx):
            raise UnsupportedForm("TRANSPOSE_CONV with computed weights")
        declared = self._shape(output)
        shape = declared if len(declared) == 4 and self.has_expr(inputs[0].tensor_idx) else self._ints(inputs[0])
        size, extents = self._shape(x)[1:3], shape[1:3]
        kernel = self._shape(weights)[1:3]
        strides = [options.StrideH(), options.StrideW()]
        padding, extra = _transposed_padding(size, extents, kernel, strides, options.Padding() == tflite.Padding.SAME)
        data = self.get_tensor_value(weights).transpose(3, 0, 1, 2)
        w = relax.const(np.ascontiguousarray(data), str(data.dtype))
        value = self.get_tensor_expr(x)
        window = {"strides": strides, "padding": padding, "output_padding": extra, "kernel_layout": "IOHW"}
        if x.qnn_params:
            params: Any = weights.qnn_params
            scaled = relax.op.dequantize(w, params["scale"], params["zero_point"], axis=1 if data.ndim else 0)
            result = relax.op.nn.conv2d_transpose(self.dequantize(value, x), scaled, data_layout="NHWC", **window)
        else:
            planes = relax.op.nn.conv2d_transpose(relax.op.permute_dims(value, [0, 3, 1, 2]), w, **window)
            result = relax.op.permute_dims(planes, [0, 2, 3, 1])
        if len(inputs) == 4 and inputs[3].tensor_idx >= 0:
            result = relax.op.add(result, self._real(inputs[3]))
        return self._activated(result, output, options.FusedActivationFunction())

    def _activated(self, value: Value, output: stock.TensorWrapper, activation: int) -> Value:
        """A float result with its fused activation, quantized if `output` is."""
        if not output.qnn_params:
            return self.convert_fused_activation_function(value, activation)
        return self.convert_qnn_fused_activation_function(
            self.quantize(value, output),
            activation,
            float(scale_of(output)),
            zero_point_of(output),
            self.get_tensor_type_str(output.tensor.Type()),
        )

    @converts("FULLY_CONNECTED")
    def _fully_connected(self, op: Operator) -> Value:
        """TFLite flattens every input to [-1, K] and gives the result the output's declared shape; the importer fails on
        rank 4 and assumes keep_num_dims."""
        inputs = self.get_input_tensors(op)
        if inputs[1].tensor_idx < 0 or len(self._shape(inputs[1])) != 2:
            raise UnsupportedForm("FULLY_CONNECTED with weights that are no matrix")
        units, depth = self._shape(inputs[1])
        shape = self._shape(inputs[0])
        flat = [int(np.prod(shape)) // depth, depth]
        if shape == flat:
            result = self.convert_fully_connected(op)
        else:  # meanwhile its input is bound to a reshape to [-1, K]
            name = stock.get_tensor_name(self.subgraph, inputs[0].tensor_idx)
            plain = self.get_tensor_expr(inputs[0])
            self.exp_tab.set_expr(name, self.bb.emit(relax.op.reshape(plain, flat)), force_override=True)
            try:
                result = self.convert_fully_connected(op)
            finally:
                self.exp_tab.set_expr(name, plain, force_override=True)
        declared = self._shape(self.get_output_tensors(op)[0])
        known = declared and int(np.prod(declared)) == flat[0] * units
        if not known and self.options(op, tflite.FullyConnectedOptions).KeepNumDims():
            declared, known = [*shape[:-1], units], True
        if known and declared != [flat[0], units]:
            result = relax.op.reshape(result, declared)
        return result


def _transposed_padding(
    size: list[int], extents: list[int], kernel: list[int], strides: list[int], same: bool
) -> tuple[list[int], list[int]]:
    """Padding [t, l, b, r] and output padding [rows, columns] of a transposed convolution of `size` into `extents`."""
    before, after, extra = [], [], []
    for n, m, k, s in zip(size, extents, kernel, strides, strict=True):
        total = max((-(-m // s) - 1) * s + k - m, 0) if same else 0
        before.append(total // 2)
        after.append(total - total // 2)
        left = m - ((n - 1) * s + k - total)
        after[-1] += max(-left, 0)  # what the declared size cuts off
        extra.append(max(left, 0))
    return [*before, *after], extra


_OPTIONS = {code: name for name, code in vars(tflite.BuiltinOptions).items() if isinstance(code, int)}


def _attributes(op: Operator) -> Any:
    """The operator's table of options; None where the file has none, or one of an unknown type."""
    table, name = op.BuiltinOptions(), _OPTIONS.get(op.BuiltinOptionsType(), "")
    if table is None or not hasattr(tflite, name):
        return None
    options = getattr(tflite, name)()
    options.Init(table.Bytes, table.Pos)
    return options


def _quantization(tensor: Any) -> dict[str, object] | None:
    q = tensor.Quantization()
    if q is None or q.ScaleLength() == 0:
        return None
    scales = np.asarray(q.ScaleAsNumpy(), "float32")
    zeros = np.asarray(q.ZeroPointAsNumpy(), "int64") if q.ZeroPointLength() else np.zeros(1, "int64")
    if scales.size == 1:
        return {
            "scale": relax.const(float(scales[0]), "float32"),
            "zero_point": relax.const(int(zeros[0]), "int32"),
            "axis": 0,
        }
    if np.any(zeros != 0):
        raise InvalidForm("per-channel quantization with zero points other than 0")
    axis = min(max(int(q.QuantizedDimension()), 0), max(tensor.ShapeLength() - 1, 0))
    return {"scale": relax.const(scales, "float32"), "zero_point": relax.const(0, "int32"), "axis": axis}
