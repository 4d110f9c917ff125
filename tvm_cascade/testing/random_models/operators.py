"""Independent operators by hundreds in one file, of the generators of single cases: every type and attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.testing import (
    activation_cases,
    choice_cases,
    further_cases,
    move_cases,
    operator_cases,
    weighted_cases,
)
from tvm_cascade.testing.operator_cases import Generator
from tvm_cascade.testing.random_models import onnx_operators, torch_operators
from tvm_cascade.testing.random_models.model import Operand
from tvm_cascade.testing.random_models.onnx_operators import OnnxBuilder
from tvm_cascade.testing.random_models.torch_operators import TorchBuilder
from tvm_cascade.testing.single_operators import GENERATORS
from tvm_cascade.testing.tflite import ModelWriter

ANY = "any"  # form of files of these operators
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
    *further_cases.KINDS,
    *further_cases.KINDS,
    ("svdf", "float32"),
    ("lstm", "float32"),
    ("lstm", "int8"),
)
_OF_TFLITE: Mapping[str, Generator] = MappingProxyType(
    {**GENERATORS, **further_cases.OPERATORS, "lstm": weighted_cases.lstm}
)


@dataclass(frozen=True, slots=True)
class Operators:
    """Cases of generators in one file: the generator, its type (of `.tflite`) and its seed."""

    seed: int
    door: str
    opset: int  # of ONNX
    cases: tuple[tuple[str, str, int], ...]

    form = ANY
    quantized = False
    operands = (Operand((256,)),)  # as large as options at random take them to be

    @property
    def parts(self) -> int:
        """Return the number of operators."""
        return len(self.cases)

    def subset(self, kept: Sequence[int]) -> Operators:
        """Return the file of some of the operators."""
        return replace(self, cases=tuple(self.cases[k] for k in kept))

    def tflite(self) -> bytes:
        """Return the bytes of a `.tflite` file."""
        writer = ModelWriter()
        for name, dtype, seed in self.cases:
            _OF_TFLITE[name](np.random.default_rng(seed), dtype, writer)
        return writer.finish()

    def onnx(self) -> OnnxBuilder:
        """Return the operators of an `.onnx` file, with their inputs."""
        made = OnnxBuilder(self.opset)
        for name, _, seed in self.cases:
            made.rng = np.random.default_rng(seed)
            onnx_operators.GENERATORS[name](made)
        return made

    def torch(self) -> TorchBuilder:
        """Return the operators of a `.pt2` file, with their inputs."""
        made = TorchBuilder()
        for name, _, seed in self.cases:
            made.rng = np.random.default_rng(seed)
            torch_operators.GENERATORS[name](made)
        return made

    def text(self) -> str:
        """Return a line for each operator."""
        return "\n".join(f"{name} {f'of {dtype}' if dtype else ''}, seed {seed}" for name, dtype, seed in self.cases)


def draw_any_operators(seed: int, count: int, door: str, opset: int | None = None) -> Operators:
    """Draw `count` cases of a door's generators."""
    rng = np.random.default_rng([seed, 7])
    kinds: Sequence[Any] = KINDS
    if door != "tflite":
        kinds = [(name, "") for name in (onnx_operators if door == "onnx" else torch_operators).GENERATORS]
    picked = (kinds[int(rng.integers(len(kinds)))] for _ in range(count))
    drawn = tuple((str(name), str(dtype), int(rng.integers(1 << 30))) for name, dtype in picked)
    if opset is None:
        opset = int(np.random.default_rng([seed, 8]).choice(onnx_operators.OPSETS))
    return Operators(seed, door, opset, drawn)
