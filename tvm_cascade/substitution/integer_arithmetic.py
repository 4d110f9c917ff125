"""Compute quantized operators' integers, per channel and in numpy.

`dead_channels` folds constant channels with these numbers, so they equal the kernels bit for bit: TFLite's reference
(`TFLITE`; `TFLM` with two roundings in fully connected layers), or one rounding of the real value (`REAL`), the
definition in ONNX and PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.operators import fixed_point as fp
from tvm_cascade.operators.record import Array
from tvm_cascade.substitution.dag import Node

_MOST_SHIFT = 30  # largest left shift of a multiplier that integer kernels have
_ROUNDING = 1e-5  # relative tolerance between the scale of a bias and that of the sums: float32 rounding, with a margin
_HEAD_ROOM = 20  # bits that a sum shifts its operands up by


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How results are rounded; `real`: once, half to even."""

    real: bool
    dense_twice: bool = False  # fully connected layers are rounded as convolutions, as in TensorFlow Lite Micro

    def multipliers(self, node: Node, scales: Array, weights: str) -> Array:
        """Return the real multipliers in a `qconv2d` or `qmatmul` from sums to the output, float64, by output channel.

        `scales` are its weights' scales, `weights` their type.
        """
        x, y = np.float32(node["x_quantum"][0]), np.float64(node["y_quantum"][0])
        if weights == "uint8" and not self.real and node.kind == "qconv2d":
            return (x * scales.astype("float32")).astype("float64") / y
        return np.float64(x) * scales.astype("float64") / y

    def computes(self, node: Node, multipliers: Array, bound: int) -> bool:
        """Return True if an integer kernel computes the operator on sums of magnitude `bound` at most; else it is in floats."""
        if bound > fp.INT32_MAX or not np.isfinite(multipliers).all():
            return False
        if node.kind == "qmatmul" and float(multipliers.max()) * bound >= fp.INT32_MAX - 512:
            return False
        return int(fp.quantize_multipliers(multipliers)[1].max()) <= _MOST_SHIFT

    def stored(self, node: Node, sums: Array, multipliers: Array) -> Array:
        """Return the stored outputs of a `qconv2d` or `qmatmul`, int64, from its sums (biases included), int64, by channel."""
        if node.kind == "qmatmul" and not (self.real or self.dense_twice):
            return self._clamped(node, fp.rounded(sums.astype("float64") * multipliers).astype("int64"))
        rescale = fp.rescale_even if self.real else fp.rescale
        return self._clamped(node, rescale(sums, *fp.quantize_multipliers(multipliers)))

    def bias(self, node: Node, bias: Array, own: Array, weights: Array) -> Array | None:
        """Return a bias with scales `own` in sum units for weight scales `weights`; None beyond 32 bits.

        TFLite ignores a bias's own scales.
        """
        if not self.real:
            return bias
        ratios = own.astype("float64") / (np.float64(np.float32(node["x_quantum"][0])) * weights.astype("float64"))
        if np.all(np.abs(ratios - 1) <= _ROUNDING):
            return bias
        whole = np.rint(bias.astype("int64") * ratios)
        return whole.astype("int32") if np.all(np.abs(whole) <= fp.INT32_MAX) else None

    def added(self, node: Node, x: Array, y: Array) -> Array | None:
        """Return a `qadd`'s stored outputs for stored values, int64; None without an integer kernel."""
        (dx, zx), (dy, zy) = ((np.float64(np.float32(step)), zero) for step, zero in node["quanta"])
        high, twice = 1 << _HEAD_ROOM, 2 * max(dx, dy)
        ratios = [dx / twice, dy / twice, twice / np.float64(np.float32(high) * np.float32(node["y_quantum"][0]))]
        multipliers, shifts = fp.quantize_multipliers(ratios)
        if shifts.max() > _MOST_SHIFT:
            return None
        total = fp.rescale((x - zx) * high, multipliers[0], shifts[0])
        total = total + fp.rescale((y - zy) * high, multipliers[1], shifts[1])
        last = fp.rescale_even if self.real else fp.rescale
        return self._clamped(node, last(total, multipliers[2], shifts[2]))

    def _clamped(self, node: Node, scaled: Array) -> Array:
        step, zero = node["y_quantum"]
        act = node["act"]
        bounds = None if not act else (0.0, None) if act == "relu" else act
        lo, hi = fp.activation_range(bounds, np.float32(step), zero, str(node["dtype"]), self.real)
        low, high = node["range"]
        return np.minimum(np.maximum(scaled + zero, max(lo, low)), min(hi, high))


TFLITE, TFLM, REAL = Arithmetic(False), Arithmetic(False, True), Arithmetic(True)
