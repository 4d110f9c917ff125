"""Fold shapes that a `.tflite` network computes at run time.

Without a fixed batch size, a converter leaves shape arithmetic in the network: SHAPE, a slice, a pack with constants, a
RESHAPE. The file declares 1 for every unknown extent: in an input's shape the batch size, in an inner tensor's shape
any extent. So inner shapes are read from the operators imported so far. Folded values are constants for every reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.interface import MAX_ELEMENTS
from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator
from tvm_cascade.importers.tflite.site import InvalidForm
from tvm_cascade.importers.tflite.slices import slices

_MOST = 64  # elements: shapes are short


def fold_shape(net: Network, name: str, op: Operator) -> bool:
    """Fold `op` if it computes a shape, or densifies a constant; return True if folded. A network output is also bound
    as a constant.
    """
    value = _shape_value(net, name, op)
    if value is None:
        return False
    net.fold(net.get_output_tensors(op)[0], np.asarray(value))
    return True


def _shape_value(net: Network, name: str, op: Operator) -> Any:
    inputs = net.get_input_tensors(op)
    if name == "SHAPE":
        return net.shape(inputs[0])
    if name == "RANK":
        return len(net.shape(inputs[0]))
    if name == "FILL":
        return _filled(net, *inputs)
    if name == "DENSIFY" and not net.has_expr(inputs[0].tensor_idx):
        return net.get_tensor_value(inputs[0])
    evaluate = _EVALUATE.get(name)
    if evaluate is None or not any(t.tensor_idx in net.known for t in inputs):
        return None
    if any(net.has_expr(t.tensor_idx) for t in inputs if t.tensor_idx >= 0):
        return None
    values = [np.asarray(net.get_tensor_value(t)) for t in inputs if t.tensor_idx >= 0]
    if any(v.size > _MOST or v.dtype.kind not in "iub" for v in values) or any(t.qnn_params for t in inputs):
        return None
    return evaluate(net, op, *values)


def _filled(net: Network, extents: stock.TensorWrapper, value: stock.TensorWrapper) -> np.ndarray | None:
    """Return a FILL's value for constant operands, such as initial recurrent states; None for a computed operand."""
    if any(net.has_expr(t.tensor_idx) for t in (extents, value)):
        return None
    shape = [int(d) for d in net.get_tensor_value(extents).reshape(-1)]
    if min(shape, default=0) < 0 or prod(shape) > MAX_ELEMENTS:
        raise InvalidForm(f"a constant of shape {shape}")
    return np.full(shape, net.get_tensor_value(value).reshape(())[()])


def _strided_slice_of_shape(
    net: Network, op: Operator, data: np.ndarray, begin: np.ndarray, end: np.ndarray, strides: np.ndarray
) -> Any:
    options = net.options(op, tflite.StridedSliceOptions)
    taken = slices(options, data.shape, begin.tolist(), end.tolist(), strides.tolist())
    index = tuple(slice(a.begin, a.end if a.end >= 0 else None, a.stride) for a in taken.axes)
    return data[index].reshape(taken.shape)


_Evaluate = Callable[..., Any]


def _reduction(function: Callable[..., Any]) -> _Evaluate:
    def evaluate(net: Network, op: Operator, data: np.ndarray, axes: np.ndarray) -> Any:
        kept = bool(net.options(op, tflite.ReducerOptions).KeepDims())
        return function(data, axis=tuple(axes.reshape(-1).tolist()), keepdims=kept)

    return evaluate


def _of_two(function: Callable[..., Any], options: type | None = None) -> _Evaluate:
    def evaluate(net: Network, op: Operator, a: np.ndarray, b: np.ndarray) -> Any:
        table = None if options is None or op.BuiltinOptions() is None else net.options(op, options)
        fused = 0 if table is None else table.FusedActivationFunction()
        if fused == tflite.ActivationFunctionType.RELU:
            return np.maximum(function(a, b), 0)
        return function(a, b) if fused == tflite.ActivationFunctionType.NONE else None

    return evaluate


def _squeezed(net: Network, op: Operator, x: np.ndarray) -> np.ndarray:
    options = net.options(op, tflite.SqueezeOptions) if op.BuiltinOptions() is not None else None
    axes = tuple(options.SqueezeDimsAsNumpy().tolist()) if options is not None and options.SqueezeDimsLength() else None
    return np.squeeze(x, axes)


_EVALUATE: Mapping[str, _Evaluate] = MappingProxyType(
    {
        "STRIDED_SLICE": _strided_slice_of_shape,
        "SLICE": lambda _n, _o, x, begin, size: x[
            tuple(slice(b, None if e < 0 else b + e) for b, e in zip(begin.tolist(), size.tolist(), strict=True))
        ],
        "PACK": lambda net, op, *parts: np.stack(parts, net.options(op, tflite.PackOptions).Axis()),
        "CONCATENATION": lambda net, op, *parts: np.concatenate(
            parts, net.options(op, tflite.ConcatenationOptions).Axis()
        ),
        "GATHER": lambda net, op, x, at: np.take(x, at, axis=net.options(op, tflite.GatherOptions).Axis()),
        "CAST": lambda _n, _o, x: x,
        "RESHAPE": lambda _n, _o, x, shape: x.reshape(shape.tolist()),
        "EXPAND_DIMS": lambda _n, _o, x, axis: np.expand_dims(x, int(axis.reshape(()))),
        "SQUEEZE": _squeezed,
        "ADD": _of_two(np.add, tflite.AddOptions),
        "SUB": _of_two(np.subtract, tflite.SubOptions),
        "MUL": _of_two(np.multiply, tflite.MulOptions),
        "LESS": _of_two(np.less),
        "LESS_EQUAL": _of_two(np.less_equal),
        "GREATER": _of_two(np.greater),
        "GREATER_EQUAL": _of_two(np.greater_equal),
        "EQUAL": _of_two(np.equal),
        "NOT_EQUAL": _of_two(np.not_equal),
        "LOGICAL_AND": _of_two(np.logical_and),
        "LOGICAL_OR": _of_two(np.logical_or),
        "LOGICAL_NOT": lambda _n, _o, x: np.logical_not(x),
        "FLOOR_DIV": _of_two(np.floor_divide),
        "FLOOR_MOD": _of_two(np.mod),
        "MAXIMUM": _of_two(np.maximum),
        "MINIMUM": _of_two(np.minimum),
        "REDUCE_PROD": _reduction(np.prod),
        "SUM": _reduction(np.sum),
    }
)
