"""Independent operators of TFLite by hundreds in one file, of the generators of single cases: every type and attribute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_cascade.testing import activation_cases, choice_cases, move_cases, operator_cases, weighted_cases
from tvm_cascade.testing.random_models.model import Operand
from tvm_cascade.testing.single_operators import GENERATORS
from tvm_cascade.testing.tflite import ModelWriter

_BYTES = (
    (name, dtype) for cases in (operator_cases, move_cases) for name in cases.OPERATORS for dtype in ("int8", "uint8")
)
_WORDS = (
    name
    for cases in (operator_cases, move_cases, activation_cases, choice_cases, weighted_cases)
    for name in cases.INT16
)
KINDS = (  # operators and types that LiteRT's reference kernels have
    *_BYTES,
    *((name, dtype) for name, dtype in activation_cases.KINDS if name != "elu"),
    *choice_cases.KINDS,
    *weighted_cases.KINDS,
    *((name, "int16") for name in _WORDS),
    *((name, "float32") for name in GENERATORS if name not in ("quantize", "elu", "lstm", "svdf")),
)


@dataclass(frozen=True, slots=True)
class Operators:
    """Cases of generators in one `.tflite` file: the generator, its type and its seed."""

    seed: int
    cases: tuple[tuple[str, str, int], ...]

    door = "tflite"
    form = "of all types"
    quantized = False
    operands = (Operand((256,)),)  # as large as options at random take them to be

    @property
    def parts(self) -> int:
        """Return the number of operators."""
        return len(self.cases)

    def subset(self, kept: Sequence[int]) -> Operators:
        """Return the file of some of the operators."""
        return replace(self, cases=tuple(self.cases[k] for k in kept))

    def file(self) -> bytes:
        """Return the file's bytes."""
        writer = ModelWriter()
        for name, dtype, seed in self.cases:
            GENERATORS[name](np.random.default_rng(seed), dtype, writer)
        return writer.finish()

    def text(self) -> str:
        """Return a line for each operator."""
        return "\n".join(f"{name} of {dtype}, seed {seed}" for name, dtype, seed in self.cases)


def draw_tflite_operators(seed: int, count: int) -> Operators:
    """Draw `count` cases of `KINDS`."""
    rng = np.random.default_rng([seed, 7])
    kinds = (KINDS[int(rng.integers(len(KINDS)))] for _ in range(count))
    drawn = ((str(name), str(dtype), int(rng.integers(1 << 30))) for name, dtype in kinds)
    return Operators(seed, tuple(drawn))
