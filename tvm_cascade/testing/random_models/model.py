"""`RandomModel`: operators, operands and weights of a random network, independent of any file format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from typing import Any

import numpy as np

Shape = tuple[int, ...]
FORMS: Mapping[str, tuple[str, ...]] = {  # by the suffix of the file: the number formats that it may have
    "tflite": ("int8", "uint8", "int16", "float32"),
    "onnx": ("float32", "qdq", "qdq_int8", "qlinear"),
    "pt2": ("float32",),
}
STORED: Mapping[str, str] = {"qdq": "uint8", "qdq_int8": "int8", "qlinear": "uint8"}  # types of what forms store
OPSETS = range(7, 29)  # of ONNX


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor: of real numbers (stored as integers in quantized forms), of indices or of booleans."""

    shape: Shape
    kind: str = "real"  # "real", "index" or "flag"
    scale: float = 1.0  # of real numbers in quantized forms
    zero_point: int = 0

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Step:
    """One operator; inputs and outputs are numbers of operands."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Weights:
    """Stored weights of one operator and the scales of its output channels; the same seed gives the same arrays."""

    stored: np.ndarray  # int8
    scales: np.ndarray  # float32, one for each output channel
    bias: np.ndarray  # real numbers, float64

    def real(self, axis: int) -> np.ndarray:
        """Return the weights as float32; `axis` is that of the output channels."""
        shape = [-1 if d == axis else 1 for d in range(self.stored.ndim)]
        return (self.stored * self.scales.reshape(shape)).astype("float32")


def weights(seed: int, shape: Shape, axis: int, channels: int, terms: int) -> Weights:
    """Draw weights with which a sum of `terms` products of unit variance has about unit variance.

    In a quarter of layers half of the output channels, along `axis`, have zeros alone.
    """
    rng, of_zeros = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    stored = rng.integers(-127, 128, shape).astype("int8")
    scales = (rng.uniform(0.5, 1.5, channels) / (73 * np.sqrt(terms))).astype("float32")
    bias = rng.normal(0, 0.3, channels)
    if of_zeros.random() < 0.25 and shape[axis] == channels:
        zeros = of_zeros.random(channels) < 0.5
        np.moveaxis(stored, axis, 0)[zeros] = 0
        bias[zeros] *= of_zeros.integers(0, 2, channels)[zeros]
    return Weights(stored, scales, bias)


def drawn(seed: int, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Draw factors near 1 and summands near 0, as float32."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 1.5, shape).astype("float32"), rng.normal(0, 0.5, shape).astype("float32")


def largest_scale(terms: int) -> float:
    """Return the largest scale that `weights` draws."""
    return 1.5 / (73 * sqrt(terms))


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A network: inputs and outputs are numbers of operands, `steps` are in the order of execution."""

    seed: int
    door: str  # suffix of the file: "tflite", "onnx" or "pt2"
    form: str  # number format, one of `FORMS[door]`
    opset: int  # of ONNX
    operands: tuple[Operand, ...]
    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @property
    def quantized(self) -> bool:
        """Return True if real numbers are stored as integers."""
        return self.form != "float32"

    @property
    def stored_type(self) -> str:
        """Return the type of stored real numbers."""
        return STORED.get(self.form, self.form)

    def prefix(self, count: int) -> RandomModel:
        """Return the network of the first `count` operators; what nothing reads any more is an output."""
        steps = self.steps[:count]
        made = {t for step in steps for t in step.outputs}
        read = {t for step in steps for t in step.inputs}
        kept = [t for t in self.outputs if t in made or t in self.inputs]
        ends = [t for step in steps for t in step.outputs if t not in read and t not in kept]
        inputs = tuple(t for t in self.inputs if t in read or t in kept) or self.inputs[:1]
        return replace(self, steps=steps, inputs=inputs, outputs=(*kept, *ends) or inputs[:1])

    @property
    def parts(self) -> int:
        """Return the number of outputs, each of which `subset` may keep."""
        return len(self.outputs)

    def subset(self, kept: Sequence[int]) -> RandomModel:
        """Return the network of some of the outputs, with what they are computed from."""
        outputs = tuple(self.outputs[k] for k in kept)
        needed, steps = set(outputs), []
        for step in reversed(self.steps):
            if needed & set(step.outputs):
                steps.insert(0, step)
                needed.update(step.inputs)
        inputs = tuple(t for t in self.inputs if t in needed)
        return replace(self, inputs=inputs, steps=tuple(steps), outputs=outputs)

    def exposed(self) -> RandomModel:
        """Return the network with everything that an operator computes as an output."""
        made = [t for step in self.steps for t in step.outputs]
        return replace(self, outputs=tuple(made))

    def alone(self, step: Step) -> RandomModel:
        """Return the network of one operator."""
        return replace(self, steps=(step,), inputs=tuple(dict.fromkeys(step.inputs)), outputs=step.outputs)

    def text(self) -> str:
        """Return one line for each operator, for reports."""
        lines = []
        for step in self.steps:
            sides = (
                ", ".join(f"{t}{list(self.operands[t].shape)}" for t in side) for side in (step.inputs, step.outputs)
            )
            attrs = ", ".join(f"{k}={v}" for k, v in step.attrs.items() if k != "weights")
            lines.append(f"{step.kind}({next(sides)}) -> {next(sides)} {attrs}".rstrip())
        return "\n".join([*lines, f"outputs {list(self.outputs)}"])
