"""`Network`: TVM's TFLite converter with reading errors corrected, and the registry of operator converters.

A converter is a function of the network and a file operator, registered under TFLite's operator name (`converts`,
`converts_hybrid`); each neighbouring file has a single family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.importers.interface import check_size
from tvm_cascade.importers.tflite.kept import Key, Part, Variables, tensor_key
from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.importers.tflite.sparsity import dense
from tvm_cascade.operators.fixed_point import activation_range
from tvm_cascade.passes.main_rewriting import Value, relax
from tvm_cascade.passes.origin import marked
from tvm_cascade.tensor_spec import TensorSpec

Operator: TypeAlias = Any  # of the file
Convert: TypeAlias = Callable[["Network", Operator], Any]

CONVERTERS: dict[str, Convert] = {}  # TFLite's name of an operator -> its converter
HYBRID: dict[str, Convert] = {}  # the same of operators with integer weights and float activations


def converts(*operators: str) -> Callable[[Convert], Convert]:
    """Register a function as the converter of operators, by TFLite's names."""

    def mark(convert: Convert) -> Convert:
        CONVERTERS.update(dict.fromkeys(operators, convert))
        return convert

    return mark


def converts_hybrid(*operators: str) -> Callable[[Convert], Convert]:
    """Register a function as converter for hybrid operators."""

    def mark(convert: Convert) -> Convert:
        HYBRID.update(dict.fromkeys(operators, convert))
        return convert

    return mark


def scale_of(tensor: Any) -> np.float32:
    """Return a quantized tensor's scale; raises `OpNotImplemented` for per-channel scales."""
    scales = tensor.qnn_params["scale"].value.numpy()
    if scales.size != 1:
        raise UnsupportedForm("an activation with a scale for every channel")
    return np.float32(scales.reshape(-1)[0])


def zero_point_of(tensor: Any) -> int:
    """Return a quantized tensor's zero point."""
    return int(tensor.qnn_params["zero_point"].value.numpy().reshape(-1)[0])


CONVOLUTIONS = {"CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}
_FUSED_BOUNDS = {
    tflite.ActivationFunctionType.RELU: (0.0, None),
    tflite.ActivationFunctionType.RELU6: (0.0, 6.0),
    tflite.ActivationFunctionType.RELU_N1_TO_1: (-1.0, 1.0),
}


class Network(stock.OperatorConverter):
    """A network during conversion: its tensors and values, with services for converters.

    `known` has the folded values by tensor index, `parts` the lists not emitted.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.known: dict[int, np.ndarray] = {}
        self.parts: dict[int, tuple[Part, ...]] = {}
        self.handles: dict[int, Key] = {}
        self.variables = Variables()
        self.nested = False  # in a loop or branch
        self.depth = 0  # of subgraphs inside of one another
        self.unrolled = [0]  # operators converted inside of subgraphs so far, one count for a whole network
        self._wrappers: dict[int, stock.TensorWrapper] = {}

    def get_expr(self, input_tensor_idx: int) -> Value:
        """Return a tensor's value; emit a list."""
        parts = self.parts.pop(input_tensor_idx, None)
        if parts is not None:
            if not parts:
                raise UnsupportedForm("a list without elements")
            (wrapper,) = self.get_tensors([input_tensor_idx])
            values = [p.expression() for p in parts]
            self.bind(wrapper, values[0] if len(values) == 1 else relax.op.concat(values, 0))
        return super().get_expr(input_tensor_idx)

    def has_expr(self, input_tensor_idx: int) -> bool:
        """Return True if a tensor is computed by the network; False for constants, folded tensors included."""
        if input_tensor_idx in self.parts:
            return True
        return input_tensor_idx not in self.known and super().has_expr(input_tensor_idx)

    def get_tensor_shape(self, tensor_wrapper: stock.TensorWrapper) -> Any:
        """Return a tensor's shape: from its parts, its folded value or its imported value, else the declared shape,
        which a file may leave empty for computed tensors.
        """
        index = tensor_wrapper.tensor_idx
        if index in self.parts:
            return self._shape_of_list(tensor_wrapper, self.parts[index])
        if index in self.known:
            return np.array(self.known[index].shape, "int64")
        if index >= 0 and self.has_expr(index):
            shape = getattr(self.get_expr(index).ty, "shape", None)
            if shape is not None and hasattr(shape, "values"):
                parts = self.is_complex(tensor_wrapper)  # the last axis of the value, which the file does not count
                return np.array([int(d) for d in shape.values][: len(shape.values) - parts], "int64")
        return self.declared_shape(tensor_wrapper)

    def is_complex(self, tensor: stock.TensorWrapper) -> bool:
        """Return True for a tensor of complex numbers, whose value has an axis more, for real and imaginary parts."""
        wrapped: Any = tensor.tensor
        return wrapped is not None and wrapped.Type() == tflite.TensorType.COMPLEX64

    def _shape_of_list(self, tensor: stock.TensorWrapper, parts: tuple[Part, ...]) -> np.ndarray:
        if not parts:
            return np.array([0, *self.declared_shape(tensor)[1:]], "int64")
        first = parts[0].value
        row = first.shape[1:] if isinstance(first, np.ndarray) else [int(d) for d in first.ty.shape.values[1:]]
        return np.array([sum(p.rows for p in parts), *row], "int64")

    def bind(self, wrapper: stock.TensorWrapper, value: Value) -> None:
        """Bind a tensor's value to a variable with the tensor's name."""
        name = stock.get_tensor_name(self.subgraph, wrapper.tensor_idx)
        bound = self.bb.emit(value, name_hint=marked(name))
        try:
            check_size(bound.ty)
        except ValueError as error:
            raise InvalidForm(str(error)) from error
        self.exp_tab.set_expr(name, bound)

    def options(self, op: Operator, kind: type) -> Any:
        """Return the operator's option table."""
        options = kind()
        table = op.BuiltinOptions()
        if table is None:
            raise InvalidForm(f"{kind.__name__} are missing")
        options.Init(table.Bytes, table.Pos)
        return options

    def shape(self, tensor: stock.TensorWrapper) -> list[int]:
        return stock.to_int_list(self.get_tensor_shape(tensor))

    def ints(self, tensor: stock.TensorWrapper) -> list[int]:
        """Return a constant integer operand's elements, flattened; raises `OpNotImplemented` for a computed one."""
        if self.has_expr(tensor.tensor_idx):
            raise UnsupportedForm("an operand that must be constant is computed")
        return [int(v) for v in self.get_tensor_value(tensor).reshape(-1)]

    def known_shape(self, tensor: stock.TensorWrapper, called: str) -> list[int] | None:
        """Return the elements of a shape operand; None if computed, since files then declare the shape as well.

        Raises `UnsupportedForm` for a network input: its future value is unknown.
        """
        if not self.has_expr(tensor.tensor_idx):
            return self.ints(tensor)
        if not self.nested and tensor.tensor_idx in self.subgraph.InputsAsNumpy():
            raise UnsupportedForm(
                f"its {called} is an input of the network, and has to be constant: fix it by --input-value"
            )
        return None

    def real(self, tensor: stock.TensorWrapper, value: Value | None = None) -> Value:
        """Return a tensor as real numbers; `value` has its elements if they were moved."""
        value = self.get_tensor_expr(tensor) if value is None else value
        return self.dequantize(value, tensor) if tensor.qnn_params else value

    def stored(self, value: Value, op: Operator) -> Value:
        """Return real numbers in the form of the operator's output: quantized or not."""
        output = self.get_output_tensors(op)[0]
        return self.quantize(value, output) if output.qnn_params else value

    def places(self, indices: stock.TensorWrapper, extent: int | np.ndarray) -> Value:
        """Return indices as int32; check constant ones against `extent`."""
        if self.has_expr(indices.tensor_idx):
            return relax.op.astype(self.get_expr(indices.tensor_idx), "int32")
        table = np.asarray(self.get_tensor_value(indices))
        if table.size and not (np.all(table >= 0) and np.all(table < extent)):
            raise InvalidForm("indices lie outside of the tensor")
        return relax.const(table.astype("int32"), "int32")

    def get_tensor_value(self, tensor_wrapper: stock.TensorWrapper, is_sparse: bool = False) -> np.ndarray:
        """Return the value of a constant in the file, or of a tensor folded here; sparse values in dense form."""
        tensor, found = tensor_wrapper, self.known.get(tensor_wrapper.tensor_idx)
        if found is None and tensor.tensor_idx >= 0 and (sparsity := tensor.tensor.Sparsity()) is not None:
            stored = super().get_tensor_value(tensor, is_sparse=True)
            found = self.known[tensor.tensor_idx] = dense(sparsity, self.declared_shape(tensor).tolist(), stored)
        return super().get_tensor_value(tensor, is_sparse) if found is None else found

    def declared_shape(self, tensor: stock.TensorWrapper) -> np.ndarray:
        """Return a tensor's shape in the file."""
        wrapped: Any = tensor.tensor
        return np.asarray(wrapped.ShapeAsNumpy(), "int64")

    def fold(self, output: stock.TensorWrapper, value: np.ndarray) -> None:
        """Make a tensor a constant."""
        value = value.astype(self.get_tensor_type_str(output.tensor.Type()))
        self.known[output.tensor_idx] = value
        if not self.nested and output.tensor_idx in stock.to_int_list(self.subgraph.OutputsAsNumpy()):
            name = stock.get_tensor_name(self.subgraph, output.tensor_idx)
            self.exp_tab.set_expr(name, self.bb.emit(relax.const(value, str(value.dtype)), name_hint=name))

    def fix(self, fixed: Sequence[FixedInput], inputs: Sequence[TensorSpec]) -> None:
        """Make inputs of the file constants, unless quantized; quantized inputs stay values with a known constant."""
        values = {one.name: one for one in fixed}
        for spec, index in zip(inputs, stock.to_int_list(self.subgraph.InputsAsNumpy()), strict=True):
            if spec.name in values and spec.scale is None:
                self.known[index] = values[spec.name].of_input(spec.dtype, spec.shape).array.copy()
                self.exp_tab.exprs.pop(stock.get_tensor_name(self.subgraph, index), None)

    def held_state(self, tensor: stock.TensorWrapper) -> Value | None:
        """Return a recurrent operator's state from before; None if it restarts in every call."""
        key, held = self._key_of(tensor), self.variables
        if self.nested and not held.stateless:
            raise UnsupportedForm(
                "a recurrent operator inside of a loop or a branch, whose state would be kept from call to call: take it out, or "
                "let every call begin anew (--stateless)"
            )
        if not self.nested and key not in held.states:
            return None
        if key not in held.now:
            zero = zero_point_of(tensor) if tensor.qnn_params else 0
            first = np.full(self.shape(tensor), zero, self.get_tensor_type_str(tensor.tensor.Type()))
            held.initial[key] = first
            held.now[key] = relax.const(first, str(first.dtype)) if self.nested else self.get_expr(tensor.tensor_idx)
        return held.now[key]

    def keep_state(self, tensor: stock.TensorWrapper, value: Value) -> None:
        """Keep `value` as the state in a tensor for the next call."""
        self.variables.now[self._key_of(tensor)] = value

    def _key_of(self, tensor: stock.TensorWrapper) -> Key:
        """Return a state's key: in a loop or branch, which has tensors of its own, with its subgraph's position in the
        file.
        """
        own = tensor_key(tensor.tensor_idx)
        return (str(self.subgraph._tab.Pos).encode(), own[1]) if self.nested else own

    def get_tensors(self, tensors_idx_list: Any) -> list[stock.TensorWrapper]:
        """Return tensors, each read once, with two corrections: the quantization axis is 0 with a single scale, and is
        clamped to the rank (some converters' rank-1 biases exceed it); one zero point may serve many scales, which the
        importer refuses.
        """
        return [self._wrapper(index) for index in self._indices_or_empty(tensors_idx_list)]

    def get_input_tensors(self, op: Operator) -> list[stock.TensorWrapper]:
        """Return input tensors without an absent bias, which the importer takes for a tensor."""
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
        """Return True: the reference copies or compares stored values regardless of scales; unequal scales are no
        error.
        """
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
