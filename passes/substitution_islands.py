"""Islands of quantized operators as operators of substitution graphs, and back.

`quantize([relax.clip or relu](add(conv2d(dequantize(x), dequantize(w)), dequantize(b))))` is read as one `qconv2d` on
stored values (dense or depthwise), the same with `matmul` as one `qmatmul`, `quantize(add(dequantize(x), dequantize(y)))`
as one `qadd`, `quantize(concat(dequantize(x), dequantize(y)))` as a plain concatenation where all quantizations are equal.
Written back, an island is what `frontend.load` would have made of the rewritten operator, so `LowerQuantized` gives it the
same integers: per output channel nothing has changed. Any other island stays opaque, binding for binding.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.rules_quantized import quantized_sum

_R: Any = relax.op
_STORED = ("int8", "uint8")
_DENSE = ("HWIO", "OIHW", "OHWI")
_KERNELS = {
    "HWIO": (3, 2, 0, 1),
    "OIHW": (0, 1, 2, 3),
    "OHWI": (0, 3, 1, 2),
    "HWOI": (2, 3, 0, 1),
    "IHWO": (3, 0, 1, 2),
}


class IslandReader:
    """Recognizes islands behind their last operator, the `quantize`."""

    def __init__(
        self, pool: Pool, definitions: Mapping[Any, Any], ref: Callable[[Any], Ref], leaf: Callable[[np.ndarray], Ref]
    ) -> None:
        """`ref` gives the graph's value of a stored tensor, `leaf` makes a weight."""
        self._pool, self._definitions, self._ref, self._leaf = pool, definitions, ref, leaf

    def read(self, quantize: Any) -> Ref | None:
        """The operator that the island is, None where no rule knows it."""
        quantum, dtype = self._quantum(quantize), str(quantize.ty.dtype)
        if quantum is None or dtype not in _STORED:
            return None
        core, act = self._activation(self._define(quantize.args[0]))
        if _name(core) == "concat":
            return self._concat(core, quantum, dtype) if act == "" else None
        info = np.iinfo(dtype)
        end = {"y_quantum": quantum, "act": act, "dtype": dtype, "range": (int(info.min), int(info.max))}
        bias = None
        if _name(core) == "add":
            left, right = (self._define(a) for a in core.args)
            if _name(left) == _name(right) == "dequantize":
                return self._sum(left, right, end)
            core, bias = left, right
            if _name(bias) != "dequantize":
                return None
        if _name(core) == "matmul":
            return self._product(core, bias, end)
        return self._convolution(core, bias, end)

    def _define(self, expr: Any) -> Any:
        while isinstance(expr, relax.Var) and expr in self._definitions:
            expr = self._definitions[expr]
        return expr

    def _value(self, expr: Any) -> np.ndarray | None:
        held: Any = getattr(self._define(expr), "value", None)
        return held.numpy() if hasattr(held, "numpy") else None

    def _quantum(self, call: Any) -> tuple[float, int] | None:
        """Scale and zero point of a tensor that has one of each."""
        scale, zero = (self._value(a) for a in call.args[1:3])
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return None
        return float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])

    def _activation(self, call: Any) -> tuple[Any, Any]:
        """The operator in front of a float activation, and that: '', 'relu' or its bounds."""
        if _name(call) == "nn.relu":
            return self._define(call.args[0]), "relu"
        if _name(call) == "clip":
            low, high = (float(getattr(a, "value", a)) for a in call.args[1:3])
            return self._define(call.args[0]), (low, high)
        return call, ""

    def _concat(self, core: Any, quantum: tuple[float, int], dtype: str) -> Ref | None:
        fields = getattr(self._define(core.args[0]), "fields", None)
        parts = [self._define(f) for f in fields or ()]
        if not parts or any(_name(p) != "dequantize" or self._quantum(p) != quantum for p in parts):
            return None
        stored = [p.args[0] for p in parts]
        if any(self._value(s) is not None or str(s.ty.dtype) != dtype for s in stored):
            return None
        axis = 0 if core.attrs.axis is None else int(core.attrs.axis)
        return self._pool.make("concat", *(self._ref(s) for s in stored), axis=axis % len(core.ty.shape.values))

    def _sum(self, left: Any, right: Any, end: Mapping[str, Any]) -> Ref | None:
        quanta, stored = [self._quantum(d) for d in (left, right)], [d.args[0] for d in (left, right)]
        if None in quanta or any(not self._activation_of(s) for s in stored):
            return None
        if str(stored[0].ty.dtype) != str(stored[1].ty.dtype) or str(stored[0].ty.dtype) != end["dtype"]:
            return None
        a, b = (self._ref(s) for s in stored)
        return quantized_sum(self._pool, a, quanta[0], b, quanta[1], **end) if a.shape == b.shape else None

    def _activation_of(self, stored: Any) -> bool:
        """Whether these are values of 8 bits that are computed."""
        return str(stored.ty.dtype) in _STORED and self._value(stored) is None

    def _product(self, core: Any, bias: Any, end: Mapping[str, Any]) -> Ref | None:
        x, w = (self._define(a) for a in core.args)
        found = self._matrix(w)
        quantum = self._quantum(x) if _name(x) == "dequantize" else None
        if found is None or quantum is None or not self._activation_of(x.args[0]) or len(x.ty.shape.values) != 2:
            return None
        weights, scales, zero = found
        operands = self._operands(weights, scales, bias)
        if operands is None:
            return None
        return self._pool.make("qmatmul", self._ref(x.args[0]), *operands, w_zero=zero, x_quantum=quantum, **end)

    def _matrix(self, call: Any) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Weights (in, out), a scale for every output, the one zero point."""
        if _name(call) != "dequantize":
            return None
        stored, turned = self._define(call.args[0]), False
        if _name(stored) == "permute_dims":
            stored, turned = self._define(stored.args[0]), True
        data, (scale, zero) = self._value(stored), (self._value(a) for a in call.args[1:3])
        if data is None or scale is None or zero is None or data.ndim != 2 or np.unique(zero).size != 1:
            return None
        data = np.ascontiguousarray(data.T if turned else data)
        if str(data.dtype) not in _STORED or (scale.size != 1 and int(call.attrs.axis) % 2 != 1):
            return None
        return data, _spread(scale, data.shape[1]), int(zero.reshape(-1)[0])

    def _operands(self, weights: np.ndarray, scales: np.ndarray, bias: Any) -> list[Ref] | None:
        """Weights, scales and what a bias has, as leaves; None for a bias that is not int32 per output."""
        values = [weights, scales]
        if bias is not None:
            found = self._bias(bias, len(scales))
            if found is None:
                return None
            values += found
        return [self._leaf(v) for v in values]

    def _convolution(self, core: Any, bias: Any, end: Mapping[str, Any]) -> Ref | None:
        if _name(core) != "nn.conv2d" or str(core.attrs.data_layout) != "NHWC":
            return None
        x, layout, groups = self._define(core.args[0]), str(core.attrs.kernel_layout), int(core.attrs.groups)
        if _name(x) != "dequantize" or not self._activation_of(x.args[0]):
            return None
        quantum, weights = self._quantum(x), self._kernel(core, layout, groups)
        if quantum is None or weights is None:
            return None
        kernel, scales, zero = weights
        operands = self._operands(kernel, scales, bias)
        if operands is None:
            return None
        geometry = {k: tuple(int(v) for v in getattr(core.attrs, k)) for k in ("strides", "padding", "dilation")}
        return self._pool.make(
            "qconv2d", self._ref(x.args[0]), *operands, groups=groups, layout="NHWC", w_zero=zero, x_quantum=quantum,
            **end, **geometry,
        )  # fmt: skip

    def _kernel(self, core: Any, layout: str, groups: int) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Of a dense convolution, or of a depthwise one: HWOI, or what importers reshape to that, (1, h, w, out)."""
        w = self._define(core.args[1])
        if groups > 1:
            if layout != "HWOI" or int(core.args[0].ty.shape.values[3]) != groups:
                return None
            if _name(w) == "reshape":
                w, layout = self._define(w.args[0]), "IHWO"
        elif layout not in _DENSE:
            return None
        return self._weights(w, layout) if _name(w) == "dequantize" else None

    def _weights(self, call: Any, layout: str) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Weights (out, in, height, width), a scale for every output, the one zero point."""
        stored, scale, zero = (self._value(a) for a in call.args[:3])
        if stored is None or scale is None or zero is None or np.unique(zero).size != 1 or stored.dtype not in _STORED:
            return None
        if stored.ndim != 4 or (layout in ("HWOI", "IHWO") and stored.shape[layout.index("I")] != 1):
            return None
        axis = int(call.attrs.axis) % 4
        if scale.size != 1 and (axis != layout.index("O") or scale.size != stored.shape[axis]):
            return None
        kernel = np.ascontiguousarray(stored.transpose(_KERNELS[layout]))
        return kernel, _spread(scale, kernel.shape[0]), int(zero.reshape(-1)[0])

    def _bias(self, call: Any, channels: int) -> tuple[np.ndarray, np.ndarray] | None:
        stored, scale, zero = (self._value(a) for a in call.args[:3])
        if stored is None or scale is None or zero is None or zero.any() or stored.dtype != np.int32:
            return None
        if stored.shape != (channels,) or scale.size not in (1, channels):
            return None
        return stored, _spread(scale, channels)


class IslandWriter:
    """Writes quantized operators as the islands that they stand for."""

    def __init__(self, emit: Callable[[Any], Any], constant: Callable[[Ref], np.ndarray]) -> None:
        self._emit, self._constant = emit, constant

    def write(self, node: Node, read: Sequence[Any]) -> Any:
        """The stored result; `read` are the stored operands that are computed."""
        core = {"qconv2d": self._conv2d, "qmatmul": self._matmul, "qadd": self._add}[node.kind]
        return self._end(node, core(node, read))

    def _add(self, node: Node, read: Sequence[Any]) -> Any:
        quanta = node["quanta"]
        return self._emit(_R.add(*(self._real(x, q) for x, q in zip(read, quanta, strict=True))))  # type: ignore[call-overload]

    def _matmul(self, node: Node, read: Sequence[Any]) -> Any:
        weights, scales, *bias = (self._constant(r) for r in node.inputs[1:])
        stored = self._emit(_R.permute_dims(relax.const(np.ascontiguousarray(weights.T)), [1, 0]))
        real = self._emit(_dequantize(stored, _joint(scales), _zero(node["w_zero"]), 1))
        return self._biased(self._emit(_R.matmul(self._real(read[0], node["x_quantum"]), real)), bias)

    def _conv2d(self, node: Node, read: Sequence[Any]) -> Any:
        kernel, scales, *bias = (self._constant(r) for r in node.inputs[1:])
        groups, layout = int(node["groups"]), "HWIO"  # type: ignore[call-overload]
        if groups == 1:
            stored = relax.const(np.ascontiguousarray(kernel.transpose(2, 3, 1, 0)))
            weights = self._emit(_dequantize(stored, _joint(scales), _zero(node["w_zero"]), 3))
        else:
            layout, (out, _, kh, kw) = "HWOI", kernel.shape
            stored = relax.const(np.ascontiguousarray(kernel.transpose(1, 2, 3, 0)))
            weights = self._emit(_dequantize(stored, _joint(scales), _zero(node["w_zero"]), 3))
            weights = self._emit(_R.reshape(weights, (kh, kw, out, 1)))
        geometry = {k: list(node[k]) for k in ("strides", "padding", "dilation")}  # type: ignore[call-overload]
        y = _R.nn.conv2d(
            self._real(read[0], node["x_quantum"]), weights, **geometry, groups=groups, data_layout="NHWC",
            kernel_layout=layout, out_layout="NHWC",
        )  # fmt: skip
        return self._biased(self._emit(y), bias)

    def _real(self, x: Any, quantum: Any) -> Any:
        return self._emit(_dequantize(x, *_scalars(quantum), 0))

    def _biased(self, y: Any, bias: Sequence[np.ndarray]) -> Any:
        if not bias:
            return y
        return self._emit(_R.add(y, self._emit(_dequantize(relax.const(bias[0]), _joint(bias[1]), _zero(0), 0))))

    def _end(self, node: Node, y: Any) -> Any:
        act = node["act"]
        if act:
            y = self._emit(_R.nn.relu(y) if act == "relu" else _R.clip(y, *act))  # type: ignore[misc]
        dtype = str(node["dtype"])
        y = self._emit(_R.quantize(y, *_scalars(node["y_quantum"]), 0, dtype))
        info = np.iinfo(dtype)
        low, high = node["range"]  # type: ignore[misc]
        return y if (low, high) == (info.min, info.max) else self._emit(_R.clip(y, float(low), float(high)))


def _name(call: Any) -> str:
    return str(getattr(getattr(call, "op", None), "name", "")).removeprefix("relax.")


def _spread(scale: np.ndarray, channels: int) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(scale.reshape(-1), (channels,)))


def _joint(scales: np.ndarray) -> Any:
    """One scale where all are equal, as the source had it."""
    return relax.const(scales[0] if (scales == scales[0]).all() else scales)


def _zero(value: Any) -> Any:
    return relax.const(np.int32(value))


def _scalars(quantum: Any) -> tuple[Any, Any]:
    return relax.const(np.float32(quantum[0])), _zero(quantum[1])


def _dequantize(x: Any, scale: Any, zero: Any, axis: int) -> Any:
    return _R.dequantize(x, scale, zero, axis, "float32")
