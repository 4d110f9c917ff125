"""The interface for lowering functions: the operator to lower (`Task`), its output tensor, and the function table.

A function is found by the operator kind (`program.operator`) and the result's form: quantized, stored integers, or one
of the few float and wider integer types with functions. It takes a `Task`, and returns the emitted result or raises
`NotLowered` with the reason.
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

Inverses = Mapping[float, float]  # float32 inverses of scales, by the scale, where float32 arithmetic gives another one
LoweringFunction = Callable[["Task"], Value]  # returns an expression, or None: Relax computes the operator as it is

QUANTIZED = "quantized"  # results: real numbers that integers stand for
STORED = "stored"  # integers of `STORED_TYPES`, whatever they stand for
ANY = "any"  # of any type, not quantized
LOWERINGS: dict[
    tuple[str, str], LoweringFunction
] = {}  # by kind of operator and result: one of these, or an element type


def lowers(*kinds: str, results: str = QUANTIZED) -> Callable[[LoweringFunction], LoweringFunction]:
    """Return a decorator that registers a function for operator kinds with such results."""

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


def inverse_of(scale: np.float32, inverses: Inverses) -> np.float32:
    """Return the float32 inverse of a scale."""
    return np.float32(inverses.get(float(scale), 1 / np.float64(scale)))


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
    inverse: np.float32 | None = None  # floats are multiplied by it, as in PyTorch, not divided by the scale

    @classmethod
    def unbounded(
        cls, shape: tuple[int, ...], dtype: str, scale: np.floating | float = 0, zero_point: int = 0, offset: int = 0
    ) -> Output:
        """Return an output clamped only to its integer type's range."""
        return cls(shape, dtype, np.float32(scale), zero_point, *range_of(dtype), offset)

    @classmethod
    def of(cls, operator: Operator, real: bool, inverses: Inverses | None) -> Output:
        """Return an operator's output, with its activation's bounds. `real`: a file's `once`; None: floats are divided."""
        shape, dtype, quant = operator.output.shape, operator.output.dtype, operator.quant
        if quant is not None:
            bounds = activation_range(operator.bounds, quant.step, quant.zero_point, quant.dtype, real)
            inverse = None if inverses is None else inverse_of(quant.step, inverses)
            return cls(shape, quant.dtype, quant.step, quant.zero_point, *bounds, quant.offset, real, inverse)
        if dtype not in STORED_TYPES:
            return cls(shape, dtype, np.float32(0), 0, 0, 0)
        if 0 in shape:
            raise NotLowered("an empty tensor")
        return replace(cls.unbounded(shape, dtype, offset=operator.output.offset), once=real)

    def within(self, lo: int, hi: int) -> Output:
        """Return the output also clamped to these values in the file."""
        return replace(self, lo=max(self.lo, lo - self.offset), hi=min(self.hi, hi - self.offset))

    @property
    def is_one_value(self) -> bool:
        """Return True if the clamp leaves one value, `hi`: behind a RELU whose zero point is the largest stored value."""
        return self.dtype in STORED_TYPES and self.lo >= self.hi

    @property
    def declared(self) -> str:
        """Return the element type in the file."""
        return "uint8" if self.offset else self.dtype

    @property
    def clamp(self) -> tuple[int, int]:
        """Return `[lo, hi]`."""
        return self.lo, self.hi

    @property
    def described(self) -> dict[str, Any]:
        """Return zero point, clamp and rounding, as PrimFunc attributes."""
        rounding = {"rounding": ONCE} if self.once else {}
        return {"output_zero_point": self.zero_point, "clamp": self.clamp, **rounding}

    @property
    def whole(self) -> bool:
        """Return True if the clamp is the type's whole range: no activation."""
        return self.clamp == range_of(self.dtype)

    def same_as(self, x: Quantized) -> bool:
        """Return True if `x` has this quantization."""
        return (x.step, x.zero_point, x.dtype) == (self.scale, self.zero_point, self.dtype)

    def clamped(self, stored: Scalar) -> Scalar:
        """Clamp an int32 to `[lo, hi]` and cast to the stored type."""
        return te_clamp(stored, self.lo, self.hi, self.dtype)

    def bounded(self, stored: Scalar) -> Scalar:
        """Clamp a stored value to `[lo, hi]`; return it unchanged for the whole range."""
        return stored if self.whole else self.clamped(stored.astype("int32"))

    def like(self, x: Quantized | Output, shape: tuple[int, ...], scale: np.float32) -> Output:
        """Return an unbounded output with `shape` in the quantization of `x`, rounding like this one."""
        return Output(shape, x.dtype, scale, x.zero_point, *range_of(x.dtype), x.offset, self.once)

    def rescaled(self, x: Scalar, m: int, s: int, bound: int) -> Scalar:
        """Return an int32 in scale units: `x`, `|x| <= bound`, times a multiplier (`te_rescale`), rounded like the
        output.
        """
        return (te_rescale_even if self.once else te_rescale)(x, m, s, bound)

    def rounded(self, quotients: Any) -> Any:
        """Round floats in scale units to integers in their own type: half to even, TFLite's away from zero."""
        return np.rint(quotients) if self.once else rounded(quotients)

    def stored(self, scaled: Scalar) -> Scalar:
        """Return the stored form for an int32 in scale units: zero point added, clamped, cast."""
        return self.clamped(scaled + i32(self.zero_point))


@dataclass(frozen=True, slots=True)
class Task:
    """One operator to lower: the operator, the output tensor, and the emitter for functions and calls."""

    operator: Operator
    output: Output
    emitter: Emitter
    of_reals: bool = False  # every operator of the file is defined on real numbers, as in ONNX and PyTorch
    dense_twice: bool = (
        False  # fully connected layers are rounded twice, as in TensorFlow Lite Micro; LiteRT rounds once
    )
    spread: bool = False  # transposed convolutions are one operator each

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return the operator's attributes."""
        return self.operator.attributes

    @property
    def explicit(self) -> bool:
        """Return True if the imported file has a float operator between explicit dequantizes and a quantize."""
        return self.operator.explicit

    @property
    def real(self) -> bool:
        """Return True if the operator is defined on real numbers (ONNX, PyTorch, explicit operators): then integer
        arithmetic may differ only by rounding, even against TFLite's reference.
        """
        return self.of_reals or self.explicit

    def source(self, index: int) -> Value:
        """Return the Relax expression of operand `index` as a tensor."""
        return self.operator.value(index).source

    def writing(self, output: Output, operator: Operator | None = None) -> Task:
        """Return the task to lower the operator (or another) with another output."""
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
    """A computation for every tensor element by itself, from an index and the placeholders."""

    shape: tuple[int, ...]
    element: Callable[..., Scalar]
    name: str

    def __call__(self, *given: Tensor) -> Tensor:
        return te.compute(self.shape, lambda *index: self.element(index, *given), name=self.name)


def as_signed(weights: Quantized, data: np.ndarray) -> tuple[Quantized, np.ndarray]:
    """Return uint8 constants and their values `data` as int8, 128 less; return other constants unchanged."""
    if weights.dtype != "uint8":
        return weights, data
    zero = weights.zero_point - SIGN
    quant = replace(weights.quant, dtype="int8", zero_point=zero, offset=SIGN)
    signed = replace(weights, dtype="int8", offset=SIGN, quant=quant)
    return signed, (data.astype("int16") - SIGN).astype("int8")


def stored_like(x: Quantized, other: Quantized | Output) -> Quantized:
    """Return a constant in the storage type of `other`, if that is int8 for uint8; anything else unchanged."""
    data = x.constant
    if data is None or not other.offset or x.dtype != "uint8":
        return x
    signed, values = as_signed(x, data)
    return replace(signed, source=relax.const(values, "int8"), load=lambda: values)


def in_quantization_of(output: Output, source: Value) -> Quantized:
    """Return a new tensor stored like `output`."""
    quant = Quant(np.array([output.scale]), output.zero_point, output.dtype)
    return Quantized(source, output.shape, output.dtype, quant=quant)


def weight_type(weights: Quantized) -> dict[str, str]:
    """Return the kernel attribute for weights stored as uint8 in the file."""
    return {"weight_type": weights.declared} if weights.offset else {}


def bounded_multiplier(d: float | np.floating) -> tuple[int, int]:
    """Return `QM` (see `fixed_point`); raises `NotLowered` for a left shift beyond 30 bits."""
    m, s = quantize_multiplier(float(d))
    if s > 30:
        raise NotLowered(f"the scales give the multiplier {d:g}")
    return m, s
