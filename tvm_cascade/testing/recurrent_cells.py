"""Recurrent layers whose steps are written out, as Keras writes them with `unroll`: hundreds of small operators, few kernels."""

from __future__ import annotations

import numpy as np

from tvm_cascade.testing.tflite import ModelWriter

_HALF, _UNIT, _STATE = (0.0473, 3), (1 / 256, -128), (1 / 128, 0)  # scales and zero points: of sums, of gates, of tanh


class Cells:
    """A `.tflite` file of a layer in int8 or float32, step by step, from [1, steps, depth]."""

    def __init__(self, steps: int, depth: int, units: int, dtype: str = "int8") -> None:
        self.writer, self.rng, self.dtype = ModelWriter(), np.random.default_rng(units), dtype
        self.depth, self.units = depth, units
        x = self.writer.activation((1, steps, depth), dtype, 0.05, -3)
        axis = self.writer.constant(np.array(1, "int32"))
        parts = [self.writer.tensor((1, 1, depth), dtype, 0.05, -3) for _ in range(steps)]
        self.writer.operator("SPLIT", [axis, x], parts, "SplitOptions", numSplits=steps, inner=True)
        self.rows = [self._reshaped(part) for part in parts]
        self.state = self.held(np.zeros((1, units), "int8"), *_STATE)

    def weights(self) -> tuple[int, int, int]:
        """Add the weights of a gate: of the input, of the state, and the bias."""

        def matrix(columns: int) -> int:
            return self.held(self.rng.integers(-127, 128, (self.units, columns)).astype("int8"), 0.004)

        bias = self.rng.integers(-3000, 3000, self.units).astype("int32")
        return matrix(self.depth), matrix(self.units), self.held(bias, 0.05 * 0.004)

    def held(self, stored: np.ndarray, scale: float, zero_point: int = 0) -> int:
        """Add a constant, stored or real."""
        if self.dtype == "float32":
            return self.writer.constant(((stored - zero_point) * np.float32(scale)).astype("float32"))
        return self.writer.constant(stored, scale, zero_point)

    def gate(self, kind: str, weights: tuple[int, int, int], x: int, state: int) -> int:
        """Add an activation of the sum of two products."""
        of_input, of_state, bias = weights
        none = self.held(np.zeros(self.units, "int32"), _STATE[0] * 0.004)
        total = self.both("ADD", self._dense(x, of_input, bias), self._dense(state, of_state, none), _HALF)
        return self._made(kind, [total], _UNIT if kind == "LOGISTIC" else _STATE)

    def both(self, kind: str, a: int, b: int, scale: tuple[float, int] = _STATE) -> int:
        """Add an element-wise operator of two tensors."""
        return self._made(kind, [a, b], scale, f"{kind.capitalize()}Options")

    def finish(self) -> bytes:
        """Return the file, whose output is the last state."""
        table, shape = "ReshapeOptions", np.array([1, self.units], "int32")
        out = self.writer.tensor((1, self.units), self.dtype, *_STATE)
        self.writer.operator("RESHAPE", [self.state, self.writer.constant(shape)], [out], table)
        return self.writer.finish()

    def _made(self, kind: str, inputs: list[int], scale: tuple[float, int], table: str | None = None) -> int:
        out = self.writer.tensor((1, self.units), self.dtype, *scale)
        self.writer.operator(kind, inputs, [out], table, inner=True)
        return out

    def _dense(self, x: int, weights: int, bias: int) -> int:
        return self._made("FULLY_CONNECTED", [x, weights, bias], _HALF, "FullyConnectedOptions")

    def _reshaped(self, part: int) -> int:
        out = self.writer.tensor((1, self.depth), self.dtype, 0.05, -3)
        shape = self.writer.constant(np.array([1, self.depth], "int32"))
        self.writer.operator("RESHAPE", [part, shape], [out], "ReshapeOptions", inner=True)
        return out


def gru(steps: int = 6, depth: int = 8, units: int = 16, dtype: str = "int8") -> bytes:
    """Write a gated recurrent unit: `h = z * h + (n - z * n)`."""
    cells = Cells(steps, depth, units, dtype)
    update, reset, fresh = (cells.weights() for _ in range(3))
    for x in cells.rows:
        z, r = (cells.gate("LOGISTIC", w, x, cells.state) for w in (update, reset))
        n = cells.gate("TANH", fresh, x, cells.both("MUL", r, cells.state))
        rest = cells.both("SUB", n, cells.both("MUL", z, n))
        cells.state = cells.both("ADD", cells.both("MUL", z, cells.state), rest)
    return cells.finish()


def lstm(steps: int = 6, depth: int = 8, units: int = 16, dtype: str = "int8") -> bytes:
    """Write a long short-term memory."""
    cells = Cells(steps, depth, units, dtype)
    kinds = {name: cells.weights() for name in ("in", "forget", "cell", "out")}
    memory = cells.held(np.zeros((1, units), "int8"), *_HALF)
    for x in cells.rows:
        i, f, o = (cells.gate("LOGISTIC", kinds[name], x, cells.state) for name in ("in", "forget", "out"))
        g = cells.gate("TANH", kinds["cell"], x, cells.state)
        memory = cells.both("ADD", cells.both("MUL", f, memory, _HALF), cells.both("MUL", i, g), _HALF)
        cells.state = cells.both("MUL", o, cells._made("TANH", [memory], _STATE))
    return cells.finish()
