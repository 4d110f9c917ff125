"""Converts quantized islands (dequantize, operator, quantize) to single operators of substitution graphs, and back.

`quantize([relax.clip or relu](add(conv2d(dequantize(x), dequantize(w)), dequantize(b))))` is read as one `qconv2d` on
stored values (dense or depthwise), the same with `matmul` as one `qmatmul`, `quantize(add(dequantize(x), dequantize(y)))`
as one `qadd`, `quantize(concat(dequantize(x), dequantize(y)))` as a plain concatenation where all quantizations are equal.
A rewritten operator is written back as the island that `frontend.load` would import for it, so `LowerQuantized` computes
the same integers: scales per output channel are preserved. The bindings of any other island become opaque operators.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.passes.integer.convolution import kernel_of
from tvm_cascade.passes.integer.dense import operands_of
from tvm_cascade.passes.integer.expressions import constant, name_of, shape_of
from tvm_cascade.passes.integer.island import BYTE_TYPES, Matched, Quantized, Reader
from tvm_cascade.passes.read.relax_names import convolution_attributes, oihw_axes
from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.rules_quantized import quantized_sum

_R: Any = relax.op


class IslandReader:
    """Islands as operators of the graph.

    They are recognised, and their quantizations and weights read, as `LowerQuantized` does it (`integer.island`). That pass
    accepts any core that has a lowering function, and layout operators behind it. This class accepts only the cores that
    substitution rules rewrite, and only if writing the island back gives the same integers.
    """

    def __init__(
        self, pool: Pool, definitions: Mapping[Any, Any], ref: Callable[[Any], Ref], leaf: Callable[[np.ndarray], Ref]
    ) -> None:
        """`ref` maps the Relax expression of a stored tensor to its graph value; `leaf` adds a weight to the graph."""
        self._pool, self._reader, self._ref, self._leaf = pool, Reader(definitions), ref, leaf

    def read(self, quantize: Any) -> Ref | None:
        """The graph operator of the island that ends in `quantize`; None if no rule rewrites it. Raises `NotLowered` for
        quantizations and weights that no integer operator supports."""
        island = self._reader.island(quantize)
        if island.dtype not in BYTE_TYPES or island.moves or self._reader.explicit(island.core):
            return None
        if name_of(island.core) == "relax.concat":
            return self._concat(island) if island.bounds is None else None
        info, bounds = np.iinfo(island.dtype), island.bounds
        act = "" if bounds is None else "relu" if bounds[1] is None else bounds
        end = {
            "y_quantum": _quantum(island),
            "act": act,
            "dtype": island.dtype,
            "range": (int(info.min), int(info.max)),
        }
        return self._computed(island.core, end)

    def _computed(self, core: Any, end: Mapping[str, Any]) -> Ref | None:
        bias = None
        if name_of(core) == "relax.add":
            left, right = (self._reader.define(a) for a in core.args)
            if name_of(left) == name_of(right) == "relax.dequantize":
                return self._sum(left, right, end)
            core, bias = left, right
            if name_of(bias) != "relax.dequantize":
                return None
        product = name_of(core) == "relax.matmul"
        if not product and name_of(core) != "relax.nn.conv2d":
            return None
        x, weights = self._activation(core.args[0]), (self._matrix if product else self._kernel)(core)
        if x is None or weights is None:
            return None
        values, scales, zero = weights
        biases = () if bias is None else self._bias(bias, len(scales))
        if biases is None:
            return None
        operands = [self._leaf(v) for v in (values, scales, *biases)]
        kind, attrs = ("qmatmul", {}) if product else ("qconv2d", convolution_attributes(core.attrs))
        return self._pool.make(kind, self._ref(x.value), *operands, w_zero=zero, x_quantum=_quantum(x), **end, **attrs)

    def _activation(self, expr: Any) -> Quantized | None:
        """The 8-bit activation that `expr` dequantizes; None unless it has a single scale."""
        stored = self._reader.dequantized(expr)
        if stored is None or stored.constant is not None or stored.dtype not in BYTE_TYPES or stored.scale.size != 1:
            return None
        return stored

    def _concat(self, island: Matched) -> Ref | None:
        core = island.core
        fields = getattr(self._reader.define(core.args[0]), "fields", None)
        parts = [self._activation(f) for f in fields or ()]
        like = (_quantum(island), island.dtype)
        if not parts or any(p is None or (_quantum(p), p.dtype) != like for p in parts):
            return None
        axis = 0 if core.attrs.axis is None else int(core.attrs.axis)
        refs = [self._ref(p.value) for p in parts if p is not None]
        return self._pool.make("concat", *refs, axis=axis % len(core.ty.shape.values))

    def _sum(self, left: Any, right: Any, end: Mapping[str, Any]) -> Ref | None:
        x, y = self._activation(left), self._activation(right)
        if x is None or y is None or not x.dtype == y.dtype == end["dtype"]:
            return None
        a, b = self._ref(x.value), self._ref(y.value)
        return quantized_sum(self._pool, a, _quantum(x), b, _quantum(y), **end) if a.shape == b.shape else None

    def _matrix(self, core: Any) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Weights (in, out), scales (out), zero point of a matmul; None if they are not bytes."""
        _, weights, data = operands_of(self._reader, core)
        if weights.dtype not in BYTE_TYPES:
            return None
        return np.ascontiguousarray(data.T), _spread(weights.scale, len(data)), weights.zero_point

    def _kernel(self, core: Any) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Weights (out, in / groups, height, width), scales (out), zero point of a convolution; None if not supported.

        Dense convolutions are, and depthwise ones: HWOI, or (1, height, width, out) that the importer reshapes to HWOI.
        """
        layout, groups = str(core.attrs.kernel_layout), int(core.attrs.groups)
        depthwise = groups > 1
        if layout != ("HWOI" if depthwise else "HWIO") or (depthwise and shape_of(core.args[0])[3] != groups):
            return None
        weights, data = kernel_of(self._reader, core)
        if depthwise:
            data = data.reshape(*data.shape[:2], 1, -1)
        if weights.dtype not in BYTE_TYPES or weights.scale.size not in (1, data.shape[3]):
            return None
        kernel = np.ascontiguousarray(data.transpose(oihw_axes("HWIO")))
        return kernel, _spread(weights.scale, len(kernel)), weights.zero_point

    def _bias(self, call: Any, channels: int) -> tuple[np.ndarray, np.ndarray] | None:
        bias = self._reader.dequantized(call)
        if bias is None or bias.constant is None or bias.zero_point or bias.dtype != "int32":
            return None
        if bias.shape != (channels,) or bias.scale.size not in (1, channels):
            return None
        return bias.constant, _spread(bias.scale, channels)


class IslandWriter:
    """Writes quantized graph operators back as islands of Relax operators."""

    def __init__(self, emit: Callable[[Any], Any], constant: Callable[[Ref], np.ndarray]) -> None:
        self._emit, self._constant = emit, constant

    def write(self, node: Node, read: Sequence[Any]) -> Any:
        """The stored result of an operator; `read` are its non-constant operands, as stored integers."""
        core = {"qconv2d": self._conv2d, "qmatmul": self._matmul, "qadd": self._add}[node.kind]
        return self._end(node, core(node, read))

    def _add(self, node: Node, read: Sequence[Any]) -> Any:
        quanta = node["quanta"]
        return self._emit(_R.add(*(self._real(x, q) for x, q in zip(read, quanta, strict=True))))  # type: ignore[call-overload]

    def _matmul(self, node: Node, read: Sequence[Any]) -> Any:
        weights, scales, *bias = (self._constant(r) for r in node.inputs[1:])
        stored = self._emit(_R.permute_dims(constant(weights.T), [1, 0]))
        real = self._emit(_dequantize(stored, _joint(scales), _zero(node["w_zero"]), 1))
        return self._biased(self._emit(_R.matmul(self._real(read[0], node["x_quantum"]), real)), bias)

    def _conv2d(self, node: Node, read: Sequence[Any]) -> Any:
        kernel, scales, *bias = (self._constant(r) for r in node.inputs[1:])
        groups, dense = int(node["groups"]), node["groups"] == 1  # type: ignore[call-overload]
        stored = constant(kernel.transpose((2, 3, 1, 0) if dense else (1, 2, 3, 0)))
        weights = self._emit(_dequantize(stored, _joint(scales), _zero(node["w_zero"]), 3))
        if not dense:
            out, _, height, width = kernel.shape
            weights = self._emit(_R.reshape(weights, (height, width, out, 1)))
        geometry = {k: list(node[k]) for k in ("strides", "padding", "dilation")}  # type: ignore[call-overload]
        y = _R.nn.conv2d(
            self._real(read[0], node["x_quantum"]), weights, **geometry, groups=groups, data_layout="NHWC",
            kernel_layout="HWIO" if dense else "HWOI", out_layout="NHWC",
        )  # fmt: skip
        return self._biased(self._emit(y), bias)

    def _real(self, x: Any, quantum: Any) -> Any:
        return self._emit(_dequantize(x, *_scalars(quantum), 0))

    def _biased(self, y: Any, bias: Sequence[np.ndarray]) -> Any:
        if not bias:
            return y
        return self._emit(_R.add(y, self._emit(_dequantize(constant(bias[0]), _joint(bias[1]), _zero(0), 0))))

    def _end(self, node: Node, y: Any) -> Any:
        act = node["act"]
        if act:
            y = self._emit(_R.nn.relu(y) if act == "relu" else _R.clip(y, *act))  # type: ignore[misc]
        dtype = str(node["dtype"])
        y = self._emit(_R.quantize(y, *_scalars(node["y_quantum"]), 0, dtype))
        info = np.iinfo(dtype)
        low, high = node["range"]  # type: ignore[misc]
        return y if (low, high) == (info.min, info.max) else self._emit(_R.clip(y, float(low), float(high)))


def _quantum(tensor: Matched | Quantized) -> tuple[float, int]:
    """Scale and zero point of a tensor of one scale, as attributes of the graph's operators."""
    return float(tensor.step), tensor.zero_point


def _spread(scale: np.ndarray, channels: int) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(scale.reshape(-1), (channels,)))


def _joint(scales: np.ndarray) -> Any:
    """The scales as a constant: a scalar if all are equal, as in the imported file, else one per channel."""
    return constant(scales[0] if (scales == scales[0]).all() else scales)


def _zero(value: Any) -> Any:
    return relax.const(value, "int32")


def _scalars(quantum: Any) -> tuple[Any, Any]:
    return relax.const(quantum[0], "float32"), _zero(quantum[1])


def _dequantize(x: Any, scale: Any, zero: Any, axis: int) -> Any:
    return _R.dequantize(x, scale, zero, axis, "float32")
