"""Write quantized operators from substitution graphs as islands.

Each island equals the import by `frontend.load`, so `LowerQuantized` computes the same integers: scales per output
channel are preserved.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.substitution.dag import Node, Ref

_R: Any = relax.op


class IslandWriter:
    """Writes quantized graph operators back as islands of Relax operators."""

    def __init__(self, emit: Callable[[Any], Any], constant: Callable[[Ref], np.ndarray]) -> None:
        self._emit, self._constant = emit, constant

    def write(self, node: Node, read: Sequence[Any]) -> Any:
        """Return an operator's stored result; `read` are its non-constant operands, as stored integers."""
        core = {"qconv2d": self._conv2d, "qmatmul": self._matmul, "qadd": self._add}[node.kind]
        return self._end(node, core(node, read))

    def _add(self, node: Node, read: Sequence[Any]) -> Any:
        quanta = node["quanta"]
        return self._emit(_R.add(*(self._real(x, q) for x, q in zip(read, quanta, strict=True))))  # type: ignore[call-overload]

    def _matmul(self, node: Node, read: Sequence[Any]) -> Any:
        weights, scales, *bias = (self._constant(r) for r in node.inputs[1:])
        stored = self._emit(_R.permute_dims(constant(weights.T), [1, 0]))
        real = self._emit(Stored(stored, _joint(scales), _zero(node["w_zero"]), 1).reals)
        return self._biased(self._emit(_R.matmul(self._real(read[0], node["x_quantum"]), real)), bias)

    def _conv2d(self, node: Node, read: Sequence[Any]) -> Any:
        kernel, scales, *bias = (self._constant(r) for r in node.inputs[1:])
        groups, dense = int(node["groups"]), node["groups"] == 1  # type: ignore[call-overload]
        stored = constant(kernel.transpose((2, 3, 1, 0) if dense else (1, 2, 3, 0)))
        weights = self._emit(Stored(stored, _joint(scales), _zero(node["w_zero"]), 3).reals)
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
        return self._emit(Stored(x, *_scalars(quantum), 0).reals)

    def _biased(self, y: Any, bias: Sequence[np.ndarray]) -> Any:
        if not bias:
            return y
        return self._emit(_R.add(y, self._emit(Stored(constant(bias[0]), _joint(bias[1]), _zero(0), 0).reals)))

    def _end(self, node: Node, y: Any) -> Any:
        act = node["act"]
        if act:
            y = self._emit(_R.nn.relu(y) if act == "relu" else _R.clip(y, *act))  # type: ignore[misc]
        dtype = str(node["dtype"])
        y = self._emit(_R.quantize(y, *_scalars(node["y_quantum"]), 0, dtype))
        info = np.iinfo(dtype)
        low, high = node["range"]  # type: ignore[misc]
        return y if (low, high) == (info.min, info.max) else self._emit(_R.clip(y, float(low), float(high)))


def _joint(scales: np.ndarray) -> Any:
    """Return the scales as a constant: a scalar if all are equal, as in the imported file, else one per channel."""
    return constant(scales[0] if (scales == scales[0]).all() else scales)


def _zero(value: Any) -> Any:
    return relax.const(value, "int32")


def _scalars(quantum: Any) -> tuple[Any, Any]:
    return relax.const(quantum[0], "float32"), _zero(quantum[1])
