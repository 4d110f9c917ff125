"""The records of a program: `Operator`s, and the `Value`s read and written.

A quantized operator reads integer tensors (`Quantized`) and writes one, each with a `Quant`. If a file spells an
operator as several float operators, the reader joins these to one kind (`passes.islands.composites`); `written` keeps
the file's spelling.
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
        """Return the static shape; raises `NotLowered` without one."""
        if self.extents is None:
            raise NotLowered("a shape that is not static")
        return self.extents

    @property
    def constant(self) -> np.ndarray | None:
        """Copy a constant's data; None for any other value."""
        return None if self.load is None else self.load()

    @property
    def is_constant(self) -> bool:
        """Return True for a constant, without copying its data."""
        return self.load is not None

    @property
    def operand(self) -> Any:
        """Return a constant's data; for any other value its source."""
        return self.source if self.load is None else self.load()


@dataclass(frozen=True, slots=True, eq=False)
class Quantized(Value):
    """A stored tensor with its quantization."""

    quant: Quant = field(kw_only=True)
    reals: Value | None = field(default=None, kw_only=True)  # the tensor of the real numbers, where there is one

    @property
    def scale(self) -> np.ndarray:
        """Return the scale as float32, a single element or one per channel."""
        return self.quant.scale

    @property
    def step(self) -> np.float32:
        """Return the only scale (`Quant.step`)."""
        return self.quant.step

    @property
    def zero_point(self) -> int:
        """Return the stored integer for zero."""
        return self.quant.zero_point

    @property
    def declared(self) -> str:
        """Return the element type in the file."""
        return self.quant.declared

    @property
    def reach(self) -> int:
        """Return the largest possible `|stored - zero_point|`."""
        return self.quant.reach

    @property
    def span(self) -> int:
        """Return the width of the stored range."""
        return self.quant.span

    @property
    def explicit(self) -> bool:
        """Return True if an operator in the file computes the real numbers."""
        return self.quant.explicit

    def centred(self, element: Any) -> Any:
        """Return `stored - zero_point` for an element, as int32."""
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
        """Return the operator as spelled in the file."""
        return self.written or self

    def value(self, index: int) -> Value:
        """Return operand `index` as a tensor: the real numbers behind a quantized operand, or an operator's output."""
        operand = self.operands[index]
        if isinstance(operand, Operator):
            return operand.output
        if isinstance(operand, Quantized) and operand.reals is not None:
            return operand.reals
        if isinstance(operand, Value):
            return operand
        raise NotLowered(f"operand {index} of {self.kind} is no tensor")

    def quantized(self, index: int) -> Quantized:
        """Return operand `index`. Raises `NotLowered` unless integers are dequantized there."""
        operand = quantized(self.operands[index])
        if operand is None:
            raise NotLowered(f"operand {index} of {self.kind} is not dequantized from integers")
        return operand

    def activation(self, index: int = 0) -> Quantized:
        """Return operand `index`, a stored tensor and no constant. Raises `NotLowered` for any other operand."""
        operand = quantized(self.operands[index])
        if operand is None or operand.is_constant:
            raise NotLowered("its input is not dequantized from integers")
        return operand


# an operator's argument: a tensor, the real operator that computes one, a tuple of arguments or a number
Operand: TypeAlias = "Value | Operator | tuple[Operand, ...] | int | float | None"


def quantized(operand: Operand) -> Quantized | None:
    """Return an operand if it is a quantized tensor, else None. Raises `NotLowered` for unreadable integers."""
    if isinstance(operand, Quantized):
        return operand
    if isinstance(operand, Value) and operand.refusal:
        raise NotLowered(operand.refusal)
    return None


def constant(operand: Operand) -> np.ndarray | None:
    """Return a plain constant operand's data; None for any other operand."""
    return operand.constant if isinstance(operand, Value) and not isinstance(operand, Quantized) else None


def computed(operand: Operand, *kinds: str) -> Operator | None:
    """Return the float operator in `kinds` that computes an operand; None without one."""
    return operand if isinstance(operand, Operator) and operand.kind in kinds else None
