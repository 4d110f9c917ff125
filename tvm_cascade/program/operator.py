"""The records of a program: `Operator`s, and the `Value`s that they read and write.

A quantized operator reads tensors of integers (`Quantized`) and writes one, each with its `Quant`. Where a file computes one
by several operators of real numbers, these are read as one operator of a kind of its own (`passes.islands.composites`), and
`written` has them as they stand in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tvm_cascade.program.quant import NotLowered, Quant

Bounds = tuple[float, float | None]  # of an activation, as real numbers; None: no upper one


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor that an operator reads or writes."""

    source: Any  # what the program was read from knows it by, such as a variable of Relax
    extents: tuple[int, ...] | None  # None: not static
    dtype: str  # in which it is stored
    offset: int = 0  # as in `Quant`
    load: Callable[[], np.ndarray] | None = None  # the data of a constant
    producer: Operator | None = None  # which writes it
    refusal: str = ""  # why integers that it stands for could not be read

    @property
    def shape(self) -> tuple[int, ...]:
        """The static shape; raises `NotLowered` if there is none."""
        if self.extents is None:
            raise NotLowered("a shape that is not static")
        return self.extents

    @property
    def constant(self) -> np.ndarray | None:
        """A copy of the data of a constant; None for any other value."""
        return None if self.load is None else self.load()

    @property
    def is_constant(self) -> bool:
        """Whether the value is a constant, of which `constant` would be a copy."""
        return self.load is not None

    @property
    def operand(self) -> Any:
        """The data of a constant; the source of any other value."""
        return self.source if self.load is None else self.load()


@dataclass(frozen=True, slots=True, eq=False)
class Quantized(Value):
    """A stored tensor with its quantization."""

    quant: Quant = field(kw_only=True)
    reals: Value | None = field(default=None, kw_only=True)  # the tensor of the real numbers, where there is one

    @property
    def scale(self) -> np.ndarray:
        """Float32, one element or one per channel."""
        return self.quant.scale

    @property
    def step(self) -> np.float32:
        """The only scale (`Quant.step`)."""
        return self.quant.step

    @property
    def zero_point(self) -> int:
        """The stored integer that stands for zero."""
        return self.quant.zero_point

    @property
    def declared(self) -> str:
        """The element type that the file has."""
        return self.quant.declared

    @property
    def reach(self) -> int:
        """The largest possible `|stored - zero_point|`."""
        return self.quant.reach

    @property
    def span(self) -> int:
        """The width of the stored range."""
        return self.quant.span

    @property
    def explicit(self) -> bool:
        """Whether the file has an operator that computes the real numbers."""
        return self.quant.explicit

    def centred(self, element: Any) -> Any:
        """`stored - zero_point` of an element of the tensor, as int32."""
        return element.astype("int32") - self.zero_point


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator of a program."""

    kind: str  # the last part of a Relax operator's name, or a kind of `passes.islands.composites`
    operands: tuple[Operand, ...]
    attributes: Mapping[str, Any]
    output: Value  # in front of `moves`, and of integers that stand for it
    quant: Quant | None = None  # of the integers that are stored of the output; None: it is stored as it is
    bounds: Bounds | None = None  # of the activation behind it, if the output is quantized
    moves: tuple[Operator, ...] = ()  # views and transposes of the output, the last one first; of integers alike
    explicit: bool = False  # an operand's real numbers, or what it makes real, are computed by an operator of the file
    written: Operator | None = None  # a composite operator as it stands in the file, by the last one of its operators

    @property
    def in_file(self) -> Operator:
        """The operator as it stands in the file."""
        return self.written or self

    def value(self, index: int) -> Value:
        """Operand `index` as a tensor: real numbers of a quantized operand, the output of an operator."""
        operand = self.operands[index]
        if isinstance(operand, Operator):
            return operand.output
        if isinstance(operand, Quantized) and operand.reals is not None:
            return operand.reals
        if isinstance(operand, Value):
            return operand
        raise NotLowered(f"operand {index} of {self.kind} is no tensor")

    def quantized(self, index: int) -> Quantized:
        """Operand `index`. Raises `NotLowered` where it is not dequantized from integers."""
        operand = quantized(self.operands[index])
        if operand is None:
            raise NotLowered(f"operand {index} of {self.kind} is not dequantized from integers")
        return operand

    def activation(self, index: int = 0) -> Quantized:
        """Operand `index`, a stored tensor that is no constant. Raises `NotLowered` for any other."""
        operand = quantized(self.operands[index])
        if operand is None or operand.is_constant:
            raise NotLowered("its input is not dequantized from integers")
        return operand


# an operator's argument: a tensor, the real operator that computes one, a tuple of arguments or a number
Operand: TypeAlias = "Value | Operator | tuple[Operand, ...] | int | float | None"


def quantized(operand: Operand) -> Quantized | None:
    """Return an operand that is a quantized tensor, None for any other. Raises `NotLowered` if its integers cannot be read."""
    if isinstance(operand, Quantized):
        return operand
    if isinstance(operand, Value) and operand.refusal:
        raise NotLowered(operand.refusal)
    return None


def constant(operand: Operand) -> np.ndarray | None:
    """Return the data of an operand that is a plain constant; None for any other."""
    return operand.constant if isinstance(operand, Value) and not isinstance(operand, Quantized) else None


def computed(operand: Operand, *kinds: str) -> Operator | None:
    """Return the operator of real numbers, of one of `kinds`, that computes an operand; None where there is none."""
    return operand if isinstance(operand, Operator) and operand.kind in kinds else None
