"""What a lowering function sees: one quantized operator, cut out of the Relax function, and a place to emit into.

An island is `dequantize(x)... -> core -> [activation] -> quantize -> [clip]`; a direct operator is a Relax operator on
stored integers. Both reach their function as an `Island`; the function returns the emitted result or raises
`NotLowered` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered, constant_of, dtype_of, name_of, number_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32, quantize_multiplier, range_of, round_half_away, te_clamp
from tvm_cascade.passes.integer.untyped import Builder, Call, Function, Scalar, Tensor, Value, relax, te
from tvm_cascade.schedules.kernels.spec import Attributes, with_spec

STORED_TYPES = ("int8", "uint8", "int16")  # int16 activations go with int8 weights
BYTE_TYPES = ("int8", "uint8")
EXPLICIT_AXIS = -1  # of a dequantize, with one scale, that is an operator of the file and no part of a quantized one

Operand = Value | np.ndarray  # a Relax value, or the data of a constant
Pattern = str | float | tuple[Any, ...]  # of float operators: see `Reader.match`
LoweringFunction = Callable[["Island"], Value]  # an expression, or None from those of `FLOAT`


@dataclass(slots=True)
class Registry:
    """Lowering functions by the Relax operator at an island's core, one registry for each place where it stands."""

    functions: dict[str, LoweringFunction] = field(default_factory=dict)

    def lowers(self, *operators: str) -> Callable[[LoweringFunction], LoweringFunction]:
        """Registers a function for Relax operators, given without the `relax.` in front."""

        def register(function: LoweringFunction) -> LoweringFunction:
            self.functions.update({f"relax.{operator}": function for operator in operators})
            return function

        return register


ISLANDS = Registry()  # dequantize -> operator -> quantize
DIRECT = Registry()  # operators on stored integers
FLOAT = Registry()  # operators on floats whose legal form in Relax is not the reference's; None leaves one as it is
INDEX = Registry()  # operators from stored integers to indices
TESTS = Registry()  # dequantize -> comparison, to booleans


@dataclass(frozen=True, slots=True)
class Quantized:
    """A stored tensor with its quantization: real = scale * (stored - zero_point)."""

    value: Value  # in the old function
    scale: np.ndarray  # float32, one element or one a channel
    zero_point: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def step(self) -> np.float32:
        """The scale of a tensor that has one."""
        if self.scale.size != 1:
            raise NotLowered("an activation with a scale for every channel")
        return positive(np.float32(self.scale.reshape(-1)[0]))

    @property
    def reach(self) -> int:
        """Bound on `|stored - zero_point|`."""
        lowest, highest = range_of(self.dtype)
        return max(highest - self.zero_point, self.zero_point - lowest)

    @property
    def span(self) -> int:
        """From the smallest to the largest stored value."""
        lowest, highest = range_of(self.dtype)
        return highest - lowest

    @property
    def constant(self) -> np.ndarray | None:
        """The data of a weight; None for an activation."""
        return constant_of(self.value)

    @property
    def operand(self) -> Operand:
        """The value, or the data of a weight."""
        data = self.constant
        return self.value if data is None else data

    def centred(self, element: Scalar) -> Scalar:
        """`stored - zero_point` of an element, as int32."""
        return element.astype("int32") - i32(self.zero_point)


@dataclass(frozen=True, slots=True)
class Output:
    """The tensor that an island writes. `[lo, hi]` is what its activation leaves of the stored range."""

    shape: tuple[int, ...]
    dtype: str
    scale: np.float32
    zero_point: int
    lo: int
    hi: int

    @classmethod
    def unbounded(
        cls, shape: tuple[int, ...], dtype: str, scale: np.floating | float = 0, zero_point: int = 0
    ) -> Output:
        """With the whole range of an integer type."""
        return cls(shape, dtype, np.float32(scale), zero_point, *range_of(dtype))

    @property
    def clamp(self) -> tuple[int, int]:
        """`[lo, hi]`."""
        return self.lo, self.hi

    @property
    def described(self) -> dict[str, Any]:
        """What kernels are told of it."""
        return {"output_zero_point": self.zero_point, "clamp": self.clamp}

    @property
    def whole(self) -> bool:
        """Whether no activation bounds the stored range."""
        return self.clamp == range_of(self.dtype)

    def same_as(self, x: Quantized) -> bool:
        """Whether `x` has this quantization."""
        return (x.step, x.zero_point, x.dtype) == (self.scale, self.zero_point, self.dtype)

    def clamped(self, stored: Scalar) -> Scalar:
        """An int32 as the stored type, within the bounds."""
        return te_clamp(stored, self.lo, self.hi, self.dtype)

    def bounded(self, stored: Scalar) -> Scalar:
        """A stored value within the bounds, itself where no activation gives any."""
        return stored if self.whole else self.clamped(stored.astype("int32"))

    def stored(self, scaled: Scalar) -> Scalar:
        """An int32 in units of the scale, as it is stored."""
        return self.clamped(scaled + i32(self.zero_point))


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
        """Whether the core is a float operator of the file itself."""
        inner = [self.reader.define(a) for a in getattr(self.core, "args", ()) if isinstance(a, relax.Expr)]
        return any(name_of(v) == "relax.dequantize" and int(v.attrs.axis) == EXPLICIT_AXIS for v in inner)

    @property
    def real(self) -> bool:
        """Whether the core has a meaning on real numbers alone, from which TFLite's integer arithmetic may not differ by
        more than rounding."""
        return self.reader.real_operators or self.explicit

    def operand(self, index: int) -> Quantized:
        """The dequantized operand `index` of the core."""
        found = self.reader.dequantized(self.core.args[index])
        if found is None:
            raise NotLowered(f"operand {index} of {name_of(self.core)} is not dequantized from integers")
        return found

    def activation(self, expr: Value) -> Quantized:
        """The computed tensor of integers that `expr` was dequantized from."""
        found = self.reader.dequantized(expr)
        if found is None or found.constant is not None:
            raise NotLowered("its input is not dequantized from integers")
        return found

    def writing(self, output: Output, core: Call | None = None) -> Island:
        """This operator, or `core`, with another output and no activation."""
        return replace(self, core=self.core if core is None else core, output=output, bounds=None)

    def elementwise(
        self, kind: str, element: Callable[..., Scalar], operands: Sequence[Operand], name: str = "", **attributes: Any
    ) -> Value:
        """Emits the operator whose output is `element(index, *placeholders)` at every index; see `Emitter.call`. `name` is
        that of its buffers, by default `kind`."""

        def compute(*given: Tensor) -> Tensor:
            return te.compute(self.output.shape, lambda *index: element(index, *given), name=name or kind)

        return self.emitter.call(kind, compute, operands, **attributes)


@dataclass(slots=True)
class Reader:
    """Looks values up behind their variables."""

    definitions: Mapping[Value, Value]
    real_operators: bool = False  # every operator of the file is one on floats, as all of ONNX and PyTorch are

    def define(self, expr: Value) -> Value:
        """What `expr` is bound to, itself where it is no bound variable."""
        while isinstance(expr, relax.Var) and expr in self.definitions:
            expr = self.definitions[expr]
        return expr

    def match(self, expr: Value, pattern: Pattern, found: dict[str, Value] | None = None) -> dict[str, Value] | None:
        """The values at the names of a pattern; None where `expr` has another form.

        A pattern is an operator and the patterns of its arguments, or a number that a constant or scalar argument is, or
        the name of a value, the same wherever the name stands.
        """
        found = {} if found is None else found
        if isinstance(pattern, str):
            return found if found.setdefault(pattern, expr).same_as(expr) else None
        call = self.define(expr)
        if not isinstance(pattern, tuple):
            data = constant_of(call)
            if data is None:
                return found if hasattr(call, "value") and number_of(call) == pattern else None
            return found if np.all(data == pattern) else None
        operator, *inner = pattern
        matched = name_of(call) == f"relax.{operator}" and all(
            self.match(a, p, found) is not None for a, p in zip(call.args, inner, strict=True)
        )
        return found if matched else None

    def quantum(self, quantize: Call) -> tuple[np.float32, int] | None:
        """Scale and zero point of a quantize; None where they are not one constant each."""
        scale, zero_point = (constant_of(self.define(a)) for a in quantize.args[1:3])
        if scale is None or zero_point is None or scale.size != 1 or zero_point.size != 1:
            return None
        return np.float32(scale.reshape(-1)[0]), int(zero_point.reshape(-1)[0])

    def dequantized(self, expr: Value) -> Quantized | None:
        """The integer tensor that `expr` was dequantized from."""
        call = self.define(expr)
        if name_of(call) != "relax.dequantize":
            return None
        scale, zero_point = constant_of(self.define(call.args[1])), constant_of(self.define(call.args[2]))
        if scale is None or zero_point is None:
            return None
        if np.unique(zero_point).size > 1:
            raise NotLowered("zero points that differ by channel")
        stored = call.args[0]
        if not dtype_of(stored).startswith(("int", "uint")):
            raise NotLowered(f"a dequantize of {dtype_of(stored)}")
        value = self.define(stored) if constant_of(self.define(stored)) is not None else stored
        if not np.all(np.isfinite(scale)) or 0 in shape_of(stored):
            raise NotLowered("a scale that is no number, or an empty tensor")
        return Quantized(
            value, scale.astype("float32"), int(zero_point.reshape(-1)[0]), dtype_of(stored), shape_of(stored)
        )


@dataclass(slots=True)
class Emitter:
    """Emits calls of PrimFuncs into the new function."""

    builder: Builder
    renamed: Mapping[Value, Value]
    name: str = ""  # of the tensor being computed

    def new(self, expr: Value) -> Value:
        """The new function's counterpart of a value of the old one."""
        return self.renamed.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def call(self, kind: str, compute: Callable[..., Tensor], operands: Sequence[Operand], **attributes: Any) -> Value:
        """Emits `call_tir` of the PrimFunc that `compute` describes.

        Parameters
        ----------
        kind : str
            The field's word for the operator, and the name of the PrimFunc.
        compute : function
            From placeholders, in the order of `operands`, to the output.
        operands : values of the old function or the new one, and arrays, which are kept inline
            The PrimFunc takes the arrays last.
        attributes : fields of `Attributes`, the numbers that define the operator, for hand-optimised kernels

        Raises
        ------
        NotLowered
            Where all operands are arrays.
        """
        order = sorted(range(len(operands)), key=lambda k: isinstance(operands[k], np.ndarray))
        activations = sum(not isinstance(o, np.ndarray) for o in operands)
        if not activations:
            raise NotLowered("all of its operands are constant")
        given = [operands[k] for k in order]
        arguments = [relax.const(o, str(o.dtype)) if isinstance(o, np.ndarray) else self.new(o) for o in given]
        places = [te.placeholder(shape_of(a), dtype_of(a), f"p{i}") for i, a in enumerate(arguments)]
        output = compute(*(places[order.index(k)] for k in range(len(order))))
        func = te.create_prim_func([*places, output], index_dtype_override="int32").without_attr("global_symbol")
        return self.call_func(kind, func, arguments, activations, **attributes)

    def call_func(
        self, kind: str, func: Function, arguments: Sequence[Value], activations: int, **attributes: Any
    ) -> Value:
        """Emits `call_tir` of a PrimFunc of one output; `arguments` are values of the new function, of which the first
        `activations` are no constants."""
        gvar = self.builder.add_func(with_spec(func, kind, activations, Attributes(**attributes)), kind)
        output = func.params[-1]
        out_type = relax.TensorType([int(d) for d in output.shape], output.dtype)
        return self.builder.emit(relax.call_tir(gvar, arguments, out_type), name_hint=self.name)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """A view, emitted only where the shape changes."""
        if shape_of(value) == tuple(shape):
            return value
        return self.builder.emit(relax.op.reshape(value, list(shape)), name_hint=self.name)


def positive(scale: np.float32) -> np.float32:
    """The scale of an activation, by which the arithmetic divides."""
    if not (np.isfinite(scale) and scale > 0):
        raise NotLowered(f"an activation of scale {scale}")
    return scale


def bounded_multiplier(d: float | np.floating) -> tuple[int, int]:
    """`QM`, where its shift fits 32 bits."""
    m, s = quantize_multiplier(float(d))
    if s > 30:
        raise NotLowered(f"the scales give the multiplier {d:g}")
    return m, s


def activation_bounds(core: Call) -> tuple[float, float | None] | None:
    """Real bounds of a float activation, None for any other operator; without an upper one its bound is None."""
    if name_of(core) == "relax.nn.relu":
        return 0.0, None
    if name_of(core) == "relax.clip":
        lo, hi = (number_of(a) for a in core.args[1:3])
        return lo, hi
    return None


def activation_range(
    bounds: tuple[float, float | None] | None, scale: np.float32, zero_point: int, dtype: str
) -> tuple[int, int]:
    """Stored bounds of an activation with real bounds, rounded half away in float32; None is unbounded."""
    lo, hi = range_of(dtype)
    if bounds is None:
        return lo, hi
    lo = max(lo, zero_point + round_half_away(np.float32(bounds[0]) / scale))
    if bounds[1] is not None:
        hi = min(hi, zero_point + round_half_away(np.float32(bounds[1]) / scale))
    return lo, hi
