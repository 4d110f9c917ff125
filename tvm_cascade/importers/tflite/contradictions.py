"""Find operators in `.tflite` files that contradict TFLite's specification, and that its kernels compute in ways of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from typing import Any

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import scale_of, zero_point_of

_LOWEST = -(1 << 15)
_OF_TWO = frozenset(("ADD", "MAXIMUM", "MINIMUM", "MUL", "SQUARED_DIFFERENCE", "SUB"))  # inputs of one type
_BY_WEIGHTS = frozenset(("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"))  # their second input
_ORDERS = frozenset(("GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"))
_AS_STORED = frozenset((tflite.TensorType.INT16, tflite.TensorType.INT32, tflite.TensorType.INT64))  # compared, joined
_OF_ONE = frozenset(  # operators whose output has the type of their first input
    (
        *("ABS", "AVERAGE_POOL_2D", "EXP", "GELU", "HARD_SWISH", "L2_NORMALIZATION", "LEAKY_RELU", "LOG", "LOGISTIC"),
        *("LOG_SOFTMAX", "MAX_POOL_2D", "MEAN", "NEG", "PRELU", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "RELU"),
        *("RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "RSQRT", "SQRT", "SUM"),
        *("TANH", "CEIL", "CONV_2D", "COS", "CUMSUM", "DEPTHWISE_CONV_2D", "ELU", "FLOOR", "ROUND", "SIN", "SVDF"),
        *("BATCH_TO_SPACE_ND", "BROADCAST_TO", "CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "GATHER_ND"),
        *("MIRROR_PAD", "PACK", "PAD", "PADV2", "RESHAPE", "REVERSE_V2", "SLICE", "SPACE_TO_BATCH_ND"),
        *("SPACE_TO_DEPTH", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK", *_OF_TWO),
    )
)


def contradiction(name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Return the part of an operator that contradicts the specification; "" for a correct operator."""
    types = tflite.TensorType
    for tensor in (*inputs, *outputs):
        if tensor.qnn_params and tensor.tensor.Type() == types.INT16 and _zero(tensor):
            lowest = zero_point_of(tensor) == _LOWEST  # of a softmax of int8, whose results are none below 0
            if not lowest or (name != "QUANTIZE" and (name != "SOFTMAX" or inputs[0].tensor.Type() != types.INT8)):
                return "a tensor of int16 with a zero point, which TFLite defines as 0"
    compared = [*inputs[: 2 if name in _OF_TWO else 1], *outputs] if name in _OF_ONE else []
    if name in ("SELECT", "SELECT_V2"):
        compared = [*inputs[1:], *outputs]
    if name == "BATCH_MATMUL" and outputs[0].tensor.Type() != types.INT32:
        compared = [inputs[0], *outputs]
    if len({tensor.tensor.Type() for tensor in compared}) > 1:
        return "its input and output are of unequal types"
    stored = all(tensor.qnn_params and tensor.tensor.Type() in _AS_STORED for tensor in inputs)
    scales = {(scale_of(tensor), zero_point_of(tensor)) for tensor in inputs} if stored else set()
    if name in _ORDERS and len(scales) > 1:
        return "it orders integers of unequal scales, which TFLite compares as if they were equal"
    if name == "CONCATENATION" and stored and len(scales | {(scale_of(outputs[0]), zero_point_of(outputs[0]))}) > 1:
        return "it joins integers of unequal scales, which TFLite copies as if they were equal"
    if name == "PRELU":
        kinds = {inputs[0].tensor.Type(), *([types.INT8] if inputs[0].tensor.Type() == types.INT16 else [])}
        if inputs[1].tensor.Type() not in kinds:
            return "its slopes are of another type than its input"
    if name in _BY_WEIGHTS and inputs[1].qnn_params and inputs[1].tensor.Type() == types.INT8 and _zero(inputs[1]):
        return "weights of int8 with a zero point, which TFLite defines as 0"
    return _of_softmax(inputs[0], outputs[0]) if name == "SOFTMAX" else ""


def _of_softmax(data: Any, made: Any) -> str:
    types, (kind, result) = tflite.TensorType, (t.tensor.Type() for t in (data, made))
    if kind in (types.FLOAT32, types.UINT8) and (result != kind or (kind == types.UINT8 and not made.qnn_params)):
        return "its input and output are of unequal types"
    if kind == types.UINT8 and (not isclose(scale_of(made), 1 / 256, rel_tol=1e-3) or zero_point_of(made)):
        return "an output of uint8 whose scale is not 1/256"
    return ""


def _zero(tensor: Any) -> bool:
    return bool(tensor.qnn_params["zero_point"].value.numpy().any())
