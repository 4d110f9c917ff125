"""Interface of the lowering functions: the quantized operator to lower (`Island`), its reader, and their registries.

An island is `dequantize(x)... -> core -> [activation] -> quantize -> [clip]`; a direct operator is a Relax operator on
stored integers. Both are passed to their lowering function as an `Island`; the function returns the emitted result or
raises `NotLowered` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.activations import activation_bounds
from tvm_cascade.passes.integer.emitter import Emitter, Operand
from tvm_cascade.passes.integer.expressions import NotLowered, constant_of, dtype_of, name_of, number_of, shape_of
from tvm_cascade.passes.integer.fixed_point import (
    i32,
    quantize_multiplier,
    range_of,
    rounded,
    te_clamp,
    te_rescale,
    te_rescale_even,
)
from tvm_cascade.passes.integer.untyped import Call, Scalar, Tensor, Value, ir, relax, te
from tvm_cascade.schedules.kernels.spec import ONCE

STORED_TYPES = ("int8", "uint8", "int16")  # of quantized activations; int16 ones have int8 weights
BYTE_TYPES = ("int8", "uint8")
_SIGN = 128  # how far uint8 is above int8
EXPLICIT_AXIS = -1  # axis by which the importer marks a dequantize (one scale) that is an operator of the file

VIEWS = frozenset({"relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten"})
TRANSPOSE = "relax.permute_dims"
# operators that a relu or clip behind them is fused into; behind others the activation is the core of the island
_ACTIVATED = ("relax.add", "relax.subtract", "relax.multiply", "relax.nn.conv2d", "relax.matmul", "relax.concat")

Pattern = str | float | tuple[Any, ...]  # of float operators, see `Reader.match`
LoweringFunction = Callable[["Island"], Value]  # returns an expression; those of `FLOAT` may return None


@dataclass(slots=True)
class Registry:
    """Lowering functions by Relax operator, for one kind of context in which the operator occurs."""

    functions: dict[str, LoweringFunction] = field(default_factory=dict)

    def lowers(self, *operators: str) -> Callable[[LoweringFunction], LoweringFunction]:
        """Decorator that registers a function for Relax operators, named without `relax.`."""

        def register(function: LoweringFunction) -> LoweringFunction:
            self.functions.update({f"relax.{operator}": function for operator in operators})
            return function

        return register


ISLANDS = Registry()  # dequantize -> operator -> quantize
DIRECT = Registry()  # operators on stored integers
FLOAT = Registry()  # float operators that Relax's legalization computes unlike the reference, or lacks; None: no change
WIDE = Registry()  # operators whose results are integers of 64 bits; None: no change
INDEX = Registry()  # operators with indices as results: arg max and min
TESTS = Registry()  # dequantize -> comparison, with booleans as results


@dataclass(frozen=True, slots=True)
class Quantized:
    """A stored tensor with its quantization: real = scale * (stored - zero_point)."""

    value: Value  # usually of the old function
    scale: np.ndarray  # float32, one element or one per channel
    zero_point: int
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0  # what the file's values are above the stored ones: 128 for a uint8 tensor that is stored as int8

    @property
    def declared(self) -> str:
        """The element type that the file has."""
        return "uint8" if self.offset else self.dtype

    def like(self, other: Quantized | Output) -> Quantized:
        """A constant in the type in which `other` is stored, where that is int8 for uint8; anything else unchanged."""
        data = self.constant
        if data is None or not other.offset or self.dtype != "uint8":
            return self
        signed, values = as_signed(self, data)
        return replace(signed, value=relax.const(values, "int8"))

    @property
    def step(self) -> np.float32:
        """The scale of a per-tensor quantization, positive; raises `NotLowered` for one per channel."""
        if self.scale.size != 1:
            raise NotLowered("an activation with a scale for every channel")
        return positive(np.float32(self.scale.reshape(-1)[0]))

    @property
    def reach(self) -> int:
        """The largest possible `|stored - zero_point|`."""
        lowest, highest = range_of(self.dtype)
        return max(highest - self.zero_point, self.zero_point - lowest)

    @property
    def span(self) -> int:
        """The width of the stored range: highest minus lowest value of the type."""
        lowest, highest = range_of(self.dtype)
        return highest - lowest

    @property
    def constant(self) -> np.ndarray | None:
        """The data of a weight; None for an activation."""
        return constant_of(self.value)

    @property
    def operand(self) -> Operand:
        """The operand for `Emitter.call`: the data if constant, else the value."""
        return self.value if self.constant is None else self.constant

    def centred(self, element: Scalar) -> Scalar:
        """`stored - zero_point` of an element, as int32."""
        return element.astype("int32") - i32(self.zero_point)


@dataclass(frozen=True, slots=True)
class Output:
    """The tensor that an island writes, with its quantization; results are clamped to `[lo, hi]` (stored values)."""

    shape: tuple[int, ...]
    dtype: str
    scale: np.float32
    zero_point: int
    lo: int
    hi: int
    offset: int = 0  # as in `Quantized`
    once: bool = False  # sums are rounded once, half to even, as of real numbers; TFLite's are rounded twice
    inverse: bool = False  # floats are multiplied by the inverse of the scale, as in PyTorch, not divided by it

    @classmethod
    def unbounded(
        cls, shape: tuple[int, ...], dtype: str, scale: np.floating | float = 0, zero_point: int = 0, offset: int = 0
    ) -> Output:
        """An output clamped only to the range of its integer type."""
        return cls(shape, dtype, np.float32(scale), zero_point, *range_of(dtype), offset)

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
class Matched:
    """An island as it stands in a function: its core, and what lies between the core and the quantize."""

    source: Value  # the tensor that the core writes
    core: Call
    bounds: tuple[float, float | None] | None  # of the activation
    moves: tuple[Value, ...]  # views and transposes behind the core, last first; they apply to stored integers alike
    step: np.float32  # scale of the output, positive
    zero_point: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Island:
    """One operator to lower. `core` is the operator without quantize, activation and clip."""

    core: Call
    output: Output
    reader: Reader
    emitter: Emitter
    bounds: tuple[float, float | None] | None = None  # of the float activation, already within `output`

    @property
    def explicit(self) -> bool:
        """Whether the core is a float operator of the imported file, between its explicit dequantizes and quantize."""
        return self.reader.explicit(self.core)

    @property
    def real(self) -> bool:
        """Whether the core is defined on real numbers (ONNX, PyTorch, explicit operators): integer arithmetic may then
        differ from that by rounding only, also where TFLite's reference does otherwise."""
        return self.reader.real_operators or self.explicit

    def operand(self, index: int) -> Quantized:
        """Operand `index` of the float operator that the island computes. Raises `NotLowered` where it is not dequantized."""
        quantized = self.reader.dequantized(self.core.args[index])
        if quantized is None:
            raise NotLowered(f"operand {index} of {name_of(self.core)} is not dequantized from integers")
        return quantized

    def activation(self, expr: Value) -> Quantized:
        """The stored, non-constant tensor from which `expr` is dequantized."""
        operand = self.reader.dequantized(expr)
        if operand is None or operand.constant is not None:
            raise NotLowered("its input is not dequantized from integers")
        return operand

    def writing(self, output: Output, core: Call | None = None) -> Island:
        """The same operator (or `core`) with another output and without activation."""
        return replace(self, core=self.core if core is None else core, output=output, bounds=None)

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


@dataclass(slots=True)
class Reader:
    """Resolves variables to their definitions, and reads constants, quantizations and patterns."""

    definitions: Mapping[Value, Value]  # variable -> the expression bound to it
    real_operators: bool = False  # every operator of the file is defined on real numbers, as in ONNX and PyTorch
    inverse_scales: bool = False  # floats are multiplied by the inverse of a scale to be quantized, as in PyTorch
    read: dict[Value, Quantized] = field(default_factory=dict[Value, Quantized])  # what `dequantized` found, by call
    signed: Collection[Value] = ()  # variables of type uint8 that are stored as int8

    def define(self, expr: Value) -> Value:
        """The expression to which a variable is bound; `expr` itself if it is not a bound variable."""
        while isinstance(expr, relax.Var) and expr in self.definitions:
            expr = self.definitions[expr]
        return expr

    def match(self, expr: Value, pattern: Pattern, bound: dict[str, Value] | None = None) -> dict[str, Value] | None:
        """Match `expr` against a pattern: the values bound to the pattern's names, or None.

        A pattern is a tuple of an operator and its arguments' patterns, a number that a constant or scalar has to equal,
        or a name that binds any value, the same one at every occurrence.
        """
        bound = {} if bound is None else bound
        if isinstance(pattern, str):
            return bound if bound.setdefault(pattern, expr).same_as(expr) else None
        call = self.define(expr)
        if not isinstance(pattern, tuple):
            data = constant_of(call)
            if data is None:
                return bound if hasattr(call, "value") and number_of(call) == pattern else None
            return bound if np.all(data == pattern) else None
        operator, *inner = pattern
        matched = name_of(call) == f"relax.{operator}" and all(
            self.match(a, p, bound) is not None for a, p in zip(call.args, inner, strict=True)
        )
        return bound if matched else None

    def quantum(self, quantize: Call) -> tuple[np.float32, int] | None:
        """Scale and zero point of a quantize; None unless each is a single constant number."""
        scale, zero_point = (constant_of(self.define(a)) for a in quantize.args[1:3])
        if scale is None or zero_point is None or scale.size != 1 or zero_point.size != 1:
            return None
        return np.float32(scale.reshape(-1)[0]), int(zero_point.reshape(-1)[0])

    def island(self, quantize: Call) -> Matched:
        """The island that ends in `quantize`. Raises `NotLowered` unless it writes stored integers of one positive scale."""
        quantum, dtype = self.quantum(quantize), dtype_of(quantize)
        if quantum is None:
            raise NotLowered("its scale is not one constant")
        if dtype not in STORED_TYPES:
            raise NotLowered(f"a result of type {dtype}")
        step = positive(quantum[0])
        if 0 in shape_of(quantize):
            raise NotLowered("an empty tensor")
        source, moves = self._behind(quantize.args[0], VIEWS | {TRANSPOSE})
        core = self.define(source)
        bounds = activation_bounds(core)
        if bounds is not None:
            inner, views = self._behind(core.args[0], VIEWS)
            if name_of(self.define(inner)) in _ACTIVATED:
                source, core, moves = inner, self.define(inner), [*moves, *views]
        return Matched(source, core, bounds, tuple(moves), step, quantum[1], dtype)

    def _behind(self, value: Value, operators: Collection[str]) -> tuple[Value, list[Value]]:
        """The first value that none of `operators` writes, from `value` back, and the values skipped."""
        skipped = []
        while name_of(self.define(value)) in operators:
            skipped.append(value)
            value = self.define(value).args[0]
        return value, skipped

    def explicit(self, core: Call) -> bool:
        """Whether `core`, or an operand of it, is a dequantize of the imported file (`EXPLICIT_AXIS`)."""
        inner = [core, *(self.define(a) for a in getattr(core, "args", ()) if isinstance(a, relax.Expr))]
        return any(name_of(v) == "relax.dequantize" and int(v.attrs.axis) == EXPLICIT_AXIS for v in inner)

    def dequantized(self, expr: Value) -> Quantized | None:
        """The integer tensor from which `expr` is dequantized, with constant scale and zero point; else None."""
        call = self.define(expr)
        if name_of(call) != "relax.dequantize":
            return None
        if call in self.read:
            return self.read[call]
        scale, zero_point = constant_of(self.define(call.args[1])), constant_of(self.define(call.args[2]))
        if scale is None or zero_point is None:
            return None
        if np.any(zero_point != zero_point.reshape(-1)[:1]):
            raise NotLowered("zero points that differ by channel")
        stored = call.args[0]
        if not dtype_of(stored).startswith(("int", "uint")):
            raise NotLowered(f"a dequantize of {dtype_of(stored)}")
        value = self.define(stored) if isinstance(self.define(stored), ir.GenericConst) else stored
        if not np.all(np.isfinite(scale)) or 0 in shape_of(stored):
            raise NotLowered("a scale that is no number, or an empty tensor")
        offset = self.offset(stored)
        zero, dtype = int(zero_point.reshape(-1)[0]) - offset, "int8" if offset else dtype_of(stored)
        self.read[call] = Quantized(value, scale.astype("float32"), zero, dtype, shape_of(stored), offset)
        return self.read[call]

    def offset(self, stored: Value) -> int:
        """What the file's values of a stored tensor are above those that are stored (see `Quantized`)."""
        return _SIGN if isinstance(stored, relax.Var) and stored in self.signed else 0


def as_signed(weights: Quantized, data: np.ndarray) -> tuple[Quantized, np.ndarray]:
    """Constants of uint8 and their values `data` as int8, 128 less; others unchanged."""
    if weights.dtype != "uint8":
        return weights, data
    signed = replace(weights, dtype="int8", zero_point=weights.zero_point - _SIGN, offset=_SIGN)
    return signed, (data.astype("int16") - _SIGN).astype("int8")


def weight_type(weights: Quantized) -> dict[str, str]:
    """The attribute of kernels by which they know weights that are uint8 in the file."""
    return {"weight_type": weights.declared} if weights.offset else {}


def positive(scale: np.float32) -> np.float32:
    """`scale`; raises `NotLowered` unless it is finite and positive, since the arithmetic divides by it."""
    if not (np.isfinite(scale) and scale > 0):
        raise NotLowered(f"an activation of scale {scale}")
    return scale


def bounded_multiplier(d: float | np.floating) -> tuple[int, int]:
    """`QM` (see `fixed_point`); raises `NotLowered` if its left shift exceeds 30 bits."""
    m, s = quantize_multiplier(float(d))
    if s > 30:
        raise NotLowered(f"the scales give the multiplier {d:g}")
    return m, s
