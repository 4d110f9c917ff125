"""Islands of quantized operators as operators of substitution graphs, and back.

`quantize([relax.clip or relu](add(conv2d(dequantize(x), dequantize(w)), dequantize(b))))` is read as one `qconv2d` on
stored values, `quantize(concat(dequantize(x), dequantize(y)))` as a plain concatenation where all quantizations are equal.
Written back, an island is what `frontend.load` would have made of the rewritten operator, so `LowerQuantized` gives it the
same integers: per output channel nothing has changed. Any other island stays opaque, binding for binding.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.substitution.dag import Node, Pool, Ref

_R: Any = relax.op
_STORED = ("int8", "uint8")
_KERNELS = {"HWIO": (3, 2, 0, 1), "OIHW": (0, 1, 2, 3), "OHWI": (0, 3, 1, 2)}


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
        return self._convolution(core, act, quantum, dtype)

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

    def _convolution(self, core: Any, act: Any, quantum: tuple[float, int], dtype: str) -> Ref | None:
        bias = None
        if _name(core) == "add":
            core, bias = self._define(core.args[0]), self._define(core.args[1])
            if _name(bias) != "dequantize":
                return None
        if _name(core) != "nn.conv2d" or int(core.attrs.groups) != 1 or str(core.attrs.data_layout) != "NHWC":
            return None
        x, w = (self._define(a) for a in core.args[:2])
        layout = str(core.attrs.kernel_layout)
        if _name(x) != "dequantize" or _name(w) != "dequantize" or layout not in _KERNELS:
            return None
        x_quantum, weights = self._quantum(x), self._weights(w, layout)
        stored = x.args[0]
        if (
            x_quantum is None
            or weights is None
            or str(stored.ty.dtype) not in _STORED
            or self._value(stored) is not None
        ):
            return None
        kernel, scales, zero = weights
        operands = [self._leaf(kernel), self._leaf(scales)]
        if bias is not None:
            found = self._bias(bias, len(scales))
            if found is None:
                return None
            operands += [self._leaf(v) for v in found]
        info = np.iinfo(dtype)
        geometry = {k: tuple(int(v) for v in getattr(core.attrs, k)) for k in ("strides", "padding", "dilation")}
        return self._pool.make(
            "qconv2d", self._ref(stored), *operands, groups=1, layout="NHWC", act=act, dtype=dtype, w_zero=zero,
            x_quantum=x_quantum, y_quantum=quantum, range=(int(info.min), int(info.max)), **geometry,
        )  # fmt: skip

    def _weights(self, call: Any, layout: str) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Weights (out, in, height, width), a scale for every output, the one zero point."""
        stored, scale, zero = (self._value(a) for a in call.args[:3])
        if stored is None or scale is None or zero is None or np.unique(zero).size != 1 or stored.dtype not in _STORED:
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
    """Writes a `qconv2d` as the island that it stands for."""

    def __init__(self, emit: Callable[[Any], Any], constant: Callable[[Ref], np.ndarray]) -> None:
        self._emit, self._constant = emit, constant

    def write(self, node: Node, x: Any) -> Any:
        """The stored result."""
        kernel, scales, *bias = (self._constant(r) for r in node.inputs[1:])
        wide = self._emit(_dequantize(x, *_scalars(node["x_quantum"]), 0))
        weights = relax.const(np.ascontiguousarray(kernel.transpose(2, 3, 1, 0)))
        weights = self._emit(_dequantize(weights, _joint(scales), _zero(node["w_zero"]), 3))
        geometry = {k: list(node[k]) for k in ("strides", "padding", "dilation")}  # type: ignore[call-overload]
        y = self._emit(
            _R.nn.conv2d(wide, weights, **geometry, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC")
        )
        if bias:
            y = self._emit(_R.add(y, self._emit(_dequantize(relax.const(bias[0]), _joint(bias[1]), _zero(0), 0))))
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
