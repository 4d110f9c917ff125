"""Interface of the lowering functions: the operator to lower (`Task`), the tensor that it writes, and the table of functions.

A function is found by the kind of an operator of a program (`program.operator`) and what its result is: quantized, stored
integers, or one of the few types of floats and wider integers for which there are functions. It gets a `Task`, and returns the
emitted result or raises `NotLowered` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_cascade.operators.fixed_point import activation_range
from tvm_cascade.passes.integer.emitter import Emitter, Operand
from tvm_cascade.passes.integer.fixed_point import (
    i32,
    quantize_multiplier,
    range_of,
    rounded,
    te_clamp,
    te_rescale,
    te_rescale_even,
)
from tvm_cascade.passes.integer.untyped import Scalar, Tensor, Value, relax, te
from tvm_cascade.program.operator import Operator, Quantized
from tvm_cascade.program.quant import SIGN, STORED_TYPES, NotLowered, Quant
from tvm_cascade.schedules.kernels.spec import ONCE

LoweringFunction = Callable[["Task"], Value]  # returns an expression, or None: Relax computes the operator as it is

QUANTIZED = "quantized"  # results: real numbers that integers stand for
STORED = "stored"  # integers of `STORED_TYPES`, whatever they stand for
ANY = "any"  # of any type, not quantized
LOWERINGS: dict[
    tuple[str, str], LoweringFunction
] = {}  # by kind of operator and result: one of these, or an element type


def lowers(*kinds: str, results: str = QUANTIZED) -> Callable[[LoweringFunction], LoweringFunction]:
    """Return a decorator that registers a function for kinds of operators with such results."""

    def register(function: LoweringFunction) -> LoweringFunction:
        LOWERINGS.update({(kind, results): function for kind in kinds})
        return function

    return register


def lowering_of(operator: Operator) -> LoweringFunction | None:
    """Return the function that lowers an operator; None if there is none."""
    dtype = operator.output.dtype
    result = QUANTIZED if operator.quant is not None else STORED if dtype in STORED_TYPES else dtype
    found = LOWERINGS.get((operator.kind, result))
    return LOWERINGS.get((operator.kind, ANY)) if found is None and result != QUANTIZED else found


@dataclass(frozen=True, slots=True)
class Output:
    """The tensor that an operator writes, with its quantization; results are clamped to `[lo, hi]` (stored values)."""

    shape: tuple[int, ...]
    dtype: str
    scale: np.float32
    zero_point: int
    lo: int
    hi: int
    offset: int = 0  # as in `Quant`
    once: bool = False  # sums are rounded once, half to even, as of real numbers; TFLite's are rounded twice
    inverse: bool = False  # floats are multiplied by the inverse of the scale, as in PyTorch, not divided by it

    @classmethod
    def unbounded(
        cls, shape: tuple[int, ...], dtype: str, scale: np.floating | float = 0, zero_point: int = 0, offset: int = 0
    ) -> Output:
        """An output clamped only to the range of its integer type."""
        return cls(shape, dtype, np.float32(scale), zero_point, *range_of(dtype), offset)

    @classmethod
    def of(cls, operator: Operator, real: bool, inverse: bool) -> Output:
        """The output of an operator, with the bounds of its activation. `real`, `inverse`: `once` and `inverse` of a file."""
        shape, dtype, quant = operator.output.shape, operator.output.dtype, operator.quant
        if quant is not None:
            bounds = activation_range(operator.bounds, quant.step, quant.zero_point, quant.dtype, real)
            return cls(shape, quant.dtype, quant.step, quant.zero_point, *bounds, quant.offset, real, inverse)
        if dtype not in STORED_TYPES:
            return cls(shape, dtype, np.float32(0), 0, 0, 0)
        if 0 in shape:
            raise NotLowered("an empty tensor")
        return replace(cls.unbounded(shape, dtype, offset=operator.output.offset), once=real)

    def within(self, lo: int, hi: int) -> Output:
        """The output clamped to these values of the file too."""
        return replace(self, lo=max(self.lo, lo - self.offset), hi=min(self.hi, hi - self.offset))

    @property
    def is_one_value(self) -> bool:
        """Whether the clamp leaves one value, `hi`: as behind a RELU where the zero point is the largest stored value."""
        return self.dtype in STORED_TYPES and self.lo >= self.hi

    @property
    def declared(self) -> str:
        """The element type that the file has."""
        return "uint8" if self.offset else self.dtype

    @property
    def clamp(self) -> tuple[int, int]:
        """`[lo, hi]`."""
        return self.lo, self.hi

    @property
    def described(self) -> dict[str, Any]:
        """Zero point, clamp and rounding, as attributes of the PrimFunc."""
        rounding = {"rounding": ONCE} if self.once else {}
        return {"output_zero_point": self.zero_point, "clamp": self.clamp, **rounding}

    @property
    def whole(self) -> bool:
        """Whether the clamp is the whole range of the type: no activation."""
        return self.clamp == range_of(self.dtype)

    def same_as(self, x: Quantized) -> bool:
        """Whether `x` has this quantization."""
        return (x.step, x.zero_point, x.dtype) == (self.scale, self.zero_point, self.dtype)

    def clamped(self, stored: Scalar) -> Scalar:
        """An int32 clamped to `[lo, hi]` and cast to the stored type."""
        return te_clamp(stored, self.lo, self.hi, self.dtype)

    def bounded(self, stored: Scalar) -> Scalar:
        """A stored value clamped to `[lo, hi]`; unchanged if that is the whole range."""
        return stored if self.whole else self.clamped(stored.astype("int32"))

    def like(self, x: Quantized | Output, shape: tuple[int, ...], scale: np.float32) -> Output:
        """An unbounded output of `shape` in the quantization of `x` that rounds as this one does."""
        return Output(shape, x.dtype, scale, x.zero_point, *range_of(x.dtype), x.offset, self.once)

    def rescaled(self, x: Scalar, m: int, s: int, bound: int) -> Scalar:
        """An int32 in units of the scale: `x`, `|x| <= bound`, times a multiplier (`te_rescale`), rounded as the output is."""
        return (te_rescale_even if self.once else te_rescale)(x, m, s, bound)

    def rounded(self, quotients: Any) -> Any:
        """Floats in units of the scale, rounded to integers of their own type: half to even, TFLite's away from zero."""
        return np.rint(quotients) if self.once else rounded(quotients)

    def stored(self, scaled: Scalar) -> Scalar:
        """The stored form of an int32 in units of the scale: zero point added, clamped, cast."""
        return self.clamped(scaled + i32(self.zero_point))


@dataclass(frozen=True, slots=True)
class Task:
    """One operator to lower: what it is, the tensor that it is to write, and where its functions and calls are emitted."""

    operator: Operator
    output: Output
    emitter: Emitter
    of_reals: bool = False  # every operator of the file is defined on real numbers, as in ONNX and PyTorch
    dense_twice: bool = (
        False  # fully connected layers are rounded twice, as in TensorFlow Lite Micro; LiteRT rounds once
    )

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the operator."""
        return self.operator.attributes

    @property
    def explicit(self) -> bool:
        """Whether the operator is one of floats in the imported file, between its explicit dequantizes and quantize."""
        return self.operator.explicit

    @property
    def real(self) -> bool:
        """Whether the operator is defined on real numbers (ONNX, PyTorch, explicit operators): integer arithmetic may then
        differ from that by rounding only, also where TFLite's reference does otherwise."""
        return self.of_reals or self.explicit

    def source(self, index: int) -> Value:
        """Return the Relax expression of operand `index` as a tensor."""
        return self.operator.value(index).source

    def writing(self, output: Output, operator: Operator | None = None) -> Task:
        """Return the task of lowering the operator (or another one) with another output."""
        return replace(self, operator=self.operator if operator is None else operator, output=output)

    def elementwise(
        self, kind: str, element: Callable[..., Scalar], operands: Sequence[Operand], name: str = "", **attributes: Any
    ) -> Value:
        """Emits the operator whose output is `element(index, *placeholders)` at every index; see `Emitter.call`. `name`
        names the TE stage, by default `kind`."""
        compute = Elementwise(self.output.shape, element, name or kind)
        return self.emitter.call(kind, compute, operands, **attributes)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A computation of every element of a tensor by itself, from an index and the placeholders."""

    shape: tuple[int, ...]
    element: Callable[..., Scalar]
    name: str

    def __call__(self, *given: Tensor) -> Tensor:
        return te.compute(self.shape, lambda *index: self.element(index, *given), name=self.name)


def as_signed(weights: Quantized, data: np.ndarray) -> tuple[Quantized, np.ndarray]:
    """Constants of uint8 and their values `data` as int8, 128 less; others unchanged."""
    if weights.dtype != "uint8":
        return weights, data
    zero = weights.zero_point - SIGN
    quant = replace(weights.quant, dtype="int8", zero_point=zero, offset=SIGN)
    signed = replace(weights, dtype="int8", offset=SIGN, quant=quant)
    return signed, (data.astype("int16") - SIGN).astype("int8")


def stored_like(x: Quantized, other: Quantized | Output) -> Quantized:
    """Return a constant in the type in which `other` is stored, where that is int8 for uint8; anything else unchanged."""
    data = x.constant
    if data is None or not other.offset or x.dtype != "uint8":
        return x
    signed, values = as_signed(x, data)
    return replace(signed, source=relax.const(values, "int8"), load=lambda: values)


def in_quantization_of(output: Output, source: Value) -> Quantized:
    """Return a tensor of the new function that is stored as `output` is."""
    quant = Quant(np.array([output.scale]), output.zero_point, output.dtype)
    return Quantized(source, output.shape, output.dtype, quant=quant)


def weight_type(weights: Quantized) -> dict[str, str]:
    """The attribute of kernels by which they know weights that are uint8 in the file."""
    return {"weight_type": weights.declared} if weights.offset else {}


def bounded_multiplier(d: float | np.floating) -> tuple[int, int]:
    """`QM` (see `fixed_point`); raises `NotLowered` if its left shift exceeds 30 bits."""
    m, s = quantize_multiplier(float(d))
    if s > 30:
        raise NotLowered(f"the scales give the multiplier {d:g}")
    return m, s
