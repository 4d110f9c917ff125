"""Reads a program's quantized operators as operators in substitution graphs.

A convolution, dense or depthwise, is one `qconv2d` on stored values, a product by a matrix one `qmatmul`, a sum one `qadd`,
a concatenation a plain one where all quantizations are equal. Only operators that substitution rules rewrite are read, and
only those of which the island that is written (`islands.writer`) gives the same integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm_cascade.operators.table import PRODUCTS
from tvm_cascade.passes.integer.convolution import kernel_of
from tvm_cascade.passes.integer.dense import operands_of
from tvm_cascade.passes.read.relax_names import oihw_axes
from tvm_cascade.program.operator import Operand, Operator, Quantized, quantized
from tvm_cascade.program.quant import BYTE_TYPES, Quant
from tvm_cascade.substitution.dag import Pool, Ref
from tvm_cascade.substitution.rules_quantized import quantized_sum

# (out, in / groups, height, width) or (in, out); scales (out); zero point
_Weights = tuple[np.ndarray, np.ndarray, int]


class QuantizedReader:
    """Adds quantized operators to a graph."""

    def __init__(self, pool: Pool, ref: Callable[[Any], Ref], leaf: Callable[[np.ndarray], Ref]) -> None:
        """Take `ref`, from the source of a stored tensor to the graph value, and `leaf`, which adds a weight to the graph."""
        self._pool, self._ref, self._leaf = pool, ref, leaf

    def read(self, operator: Operator) -> Ref | None:
        """Return the graph's operator; None if no rule rewrites it. Raises `NotLowered` for quantizations and weights that no
        integer operator supports."""
        quant, bounds = operator.quant, operator.bounds
        if quant is None or quant.dtype not in BYTE_TYPES or operator.moves or operator.explicit:
            return None
        if operator.kind == "concat":
            return self._concat(operator, quant) if bounds is None else None
        info, act = np.iinfo(quant.dtype), "" if bounds is None else "relu" if bounds[1] is None else bounds
        end = {
            "y_quantum": _quantum(quant),
            "act": act,
            "dtype": quant.dtype,
            "range": (int(info.min), int(info.max)),
        }
        if operator.kind == "add":
            return self._sum(operator, end)
        return self._product(operator, end) if operator.kind in PRODUCTS else None

    def _product(self, operator: Operator, end: Mapping[str, Any]) -> Ref | None:
        is_matrix = operator.kind == "matmul"
        x, weights = _activation(operator.operands[0]), (_matrix if is_matrix else _kernel)(operator)
        if x is None or weights is None:
            return None
        values, scales, zero = weights
        biases = _bias(operator.operands[2], len(scales)) if len(operator.operands) > 2 else ()
        if biases is None:
            return None
        operands = [self._leaf(v) for v in (values, scales, *biases)]
        kind, attrs = ("qmatmul", {}) if is_matrix else ("qconv2d", _geometry(operator.attributes))
        quanta = {"w_zero": zero, "x_quantum": _quantum(x.quant)}
        return self._pool.make(kind, self._ref(x.source), *operands, **quanta, **end, **attrs)

    def _concat(self, operator: Operator, quant: Quant) -> Ref | None:
        fields = operator.operands[0]
        parts = [_activation(f) for f in fields] if isinstance(fields, tuple) else []
        like = (_quantum(quant), quant.dtype)
        if not parts or any(p is None or (_quantum(p.quant), p.dtype) != like for p in parts):
            return None
        refs = [self._ref(p.source) for p in parts if p is not None]
        return self._pool.make("concat", *refs, axis=(operator.attributes["axis"] or 0) % len(operator.output.shape))

    def _sum(self, operator: Operator, end: Mapping[str, Any]) -> Ref | None:
        x, y = (_activation(o) for o in operator.operands)
        if x is None or y is None or not x.dtype == y.dtype == end["dtype"]:
            return None
        a, b = self._ref(x.source), self._ref(y.source)
        quanta = _quantum(x.quant), _quantum(y.quant)
        return quantized_sum(self._pool, a, quanta[0], b, quanta[1], **end) if a.shape == b.shape else None


def _activation(operand: Operand) -> Quantized | None:
    """Return the 8-bit activation that an operand is; None unless it has a single scale."""
    stored = quantized(operand)
    if stored is None or stored.is_constant or stored.dtype not in BYTE_TYPES or stored.scale.size != 1:
        return None
    return stored


def _matrix(operator: Operator) -> _Weights | None:
    """Return the weights of a product; None if they are not bytes."""
    _, weights, data = operands_of(operator)
    if weights.dtype not in BYTE_TYPES:
        return None
    return np.ascontiguousarray(data.T), _spread(weights.scale, len(data)), weights.zero_point


def _kernel(operator: Operator) -> _Weights | None:
    """Return the weights of a convolution; None if not supported.

    Dense convolutions are, and depthwise ones: HWOI, or (1, height, width, out) that the importer reshapes to HWOI.
    """
    layout, groups = operator.attributes["kernel_layout"], operator.attributes["groups"]
    depthwise = groups > 1
    if layout != ("HWOI" if depthwise else "HWIO") or (depthwise and operator.value(0).shape[3] != groups):
        return None
    weights, data = kernel_of(operator)
    if depthwise:
        data = data.reshape(*data.shape[:2], 1, -1)
    if weights.dtype not in BYTE_TYPES or weights.scale.size not in (1, data.shape[3]):
        return None
    kernel = np.ascontiguousarray(data.transpose(oihw_axes("HWIO")))
    return kernel, _spread(weights.scale, len(kernel)), weights.zero_point


def _bias(operand: Operand, channels: int) -> tuple[np.ndarray, np.ndarray] | None:
    bias = quantized(operand)
    data = None if bias is None else bias.constant
    if bias is None or data is None or bias.zero_point or bias.dtype != "int32":
        return None
    if bias.shape != (channels,) or bias.scale.size not in (1, channels):
        return None
    return data, _spread(bias.scale, channels)


def _geometry(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operator table's attributes of a convolution."""
    sliding = {k: attributes[k] for k in ("strides", "padding", "dilation", "groups")}
    return {**sliding, "layout": attributes["data_layout"]}


def _quantum(quant: Quant) -> tuple[float, int]:
    """Return scale and zero point of a tensor with a single scale, as attributes of the graph's operators."""
    return float(quant.step), quant.zero_point


def _spread(scale: np.ndarray, channels: int) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(scale.reshape(-1), (channels,)))
