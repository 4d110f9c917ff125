"""Read a Relax function with islands as a program (`program.operator`), a single operator per island.

Integers with a constant scale and zero point become a stored tensor with a `Quant`. A quantize ends an island: views
and transposes in front, and a relu or clip behind some operators, become fields of the operator. Every other call is an
operator by itself. `composites` joins operators expanded by file readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.operators.table import PRODUCTS
from tvm_cascade.passes.integer.expressions import dtype_of, is_constant, name_of, shape_of
from tvm_cascade.passes.islands.stored import BOUNDARIES, Stored
from tvm_cascade.program.composites import composite
from tvm_cascade.program.operator import Bounds, Operand, Operator, Quantized, Value
from tvm_cascade.program.quant import SIGN, STORED_TYPES, NotLowered, Quant, positive

EXPLICIT_AXIS = -1  # axis by which the importer marks that an operator of the file makes integers of one scale real
VIEWS = ("reshape", "squeeze", "expand_dims", "flatten")
TRANSPOSE = "permute_dims"
# operators that a relu or clip behind them is fused into; behind others the activation is the operator of the island
_ACTIVATED = PRODUCTS | {"add", "subtract", "multiply", "concat"}


def is_boundary(expr: Any) -> bool:
    """Return True for an operator between stored integers and real numbers: its first argument alone is data of the
    network."""
    return name_of(expr).removeprefix("relax.") in BOUNDARIES


def is_dequantize(expr: Any) -> bool:
    """Test whether an expression converts stored integers to real numbers."""
    return Stored.read_by(expr) is not None


@dataclass(frozen=True, slots=True)
class Operators:
    """A function's operators, and the operands held by its variables."""

    held: Mapping[Any, Operand]  # by variable, and by the call that is bound to it

    def of(self, expr: Any) -> Operand:
        """Return the operand held by an expression."""
        return self.held.get(expr)

    def operator(self, expr: Any) -> Operator | None:
        """Return the operator, a composite one too, that an expression ends; None for anything but an operator."""
        held = self.held.get(expr)
        return composite(held) if isinstance(held, Operator) else None


def read_operators(bindings: Iterable[tuple[Any, Any]], signed: Collection[Any] = ()) -> Operators:
    """Read variables and bound expressions, in order; store the uint8 variables in `signed` as int8."""
    reader = _Reader(signed)
    for var, expr in bindings:
        reader.bind(var, expr)
    return Operators(reader.held)


class _Reader:
    def __init__(self, signed: Collection[Any]) -> None:
        self.held: dict[Any, Operand] = {}
        self._signed = signed

    def bind(self, var: Any, expr: Any) -> None:
        if not isinstance(expr, relax.Call):
            held = self._part(expr, var) if isinstance(expr, relax.TupleGetItem) else self._read(expr)
            self.held[var] = self._named(var, held) if type(held) is Value and held.load is None else held
            return
        try:
            held = self._call(var, expr)
        except NotLowered as refusal:
            held = self._value(var, str(refusal))
        self.held[var] = self.held[expr] = held

    def _call(self, var: Any, call: Any) -> Operand:
        if (written := Stored.written_by(call)) is not None:
            return self._island(var, call, written)
        if (read := Stored.read_by(call)) is not None:
            return self._dequantized(var, read)
        kind = name_of(call).rpartition(".")[2]
        return self._operator(kind, tuple(self._read(a) for a in call.args), _plain(call.attrs), var)

    def _operator(self, kind: str, operands: tuple[Operand, ...], attributes: Mapping[str, Any], var: Any) -> Operator:
        explicit = any(isinstance(o, Quantized) and o.explicit for o in operands)
        return Operator(kind, operands, attributes, self._value(var), explicit=explicit)

    def _read(self, expr: Any) -> Operand:
        """Return the operand behind an argument."""
        if isinstance(expr, relax.Var):
            held = self.held[expr] if expr in self.held else self._value(expr)
            return self._named(expr, held) if isinstance(held, Operator) and held.quant is not None else held
        if is_constant(expr):
            return Value(expr, shape_of(expr), dtype_of(expr), load=expr.value.numpy)
        if isinstance(expr, relax.Tuple):
            return tuple(self._read(f) for f in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._part(expr, expr)
        number = getattr(expr, "value", expr)
        return number if isinstance(number, (int, float)) else self._value(expr)

    def _part(self, item: Any, var: Any) -> Operand:
        """Return a tuple's field: for a split, an operator with a single output."""
        whole = self._read(item.tuple_value)
        if isinstance(whole, Operator) and whole.kind == "split":
            return self._operator("split_part", whole.operands[:1], {**whole.attributes, "index": item.index}, var)
        return self._value(var)

    def _value(self, expr: Any, refusal: str = "") -> Value:
        extents = _extents(expr)
        offset = SIGN if isinstance(expr, relax.Var) and expr in self._signed else 0
        return Value(expr, extents, "int8" if offset else dtype_of(expr), offset, refusal=refusal)

    def _named(self, expr: Any, held: Operand) -> Value:
        """Return a variable's tensor, with the operator that writes it."""
        return replace(self._value(expr), producer=held.producer if isinstance(held, Value) else held)  # type: ignore[arg-type]

    def _dequantized(self, var: Any, read: Stored) -> Value:
        """Return the tensor behind dequantized numbers, with its quantization; a plain tensor unless that is constant."""
        reals = self._value(var)
        scale, zero_point = self._data(read.scale), self._data(read.zero_point)
        if scale is None or zero_point is None:
            return reals
        if np.any(zero_point != zero_point.reshape(-1)[:1]):
            raise NotLowered("zero points that differ by channel")
        held = self._read(read.tensor)
        stored = held if isinstance(held, Value) and held.is_constant else self._named(read.tensor, held)
        if not stored.dtype.startswith(("int", "uint")):
            raise NotLowered(f"real numbers of {stored.dtype}")
        if not np.all(np.isfinite(scale)) or 0 in stored.shape:
            raise NotLowered("a scale that is no number, or an empty tensor")
        zero, explicit = int(zero_point.reshape(-1)[0]) - stored.offset, read.axis == EXPLICIT_AXIS
        quant = Quant(scale.astype("float32"), zero, stored.dtype, read.axis, stored.offset, explicit)
        return Quantized(
            stored.source, stored.extents, stored.dtype, stored.offset, stored.load, stored.producer,
            quant=quant, reals=reals,
        )  # fmt: skip

    def _data(self, expr: Any) -> np.ndarray | None:
        held = self._read(expr)
        return held.constant if isinstance(held, Value) else None

    def _island(self, var: Any, call: Any, written: Stored) -> Operator:
        """Return the operator before a quantize. Raises `NotLowered` unless one positive scale stores its result."""
        scale, zero_point, dtype = self._data(written.scale), self._data(written.zero_point), dtype_of(call)
        if scale is None or zero_point is None or scale.size != 1 or zero_point.size != 1:
            raise NotLowered("its scale is not one constant")
        if dtype not in STORED_TYPES:
            raise NotLowered(f"a result of type {dtype}")
        step = positive(np.float32(scale.reshape(-1)[0]))
        if 0 in shape_of(call):
            raise NotLowered("an empty tensor")
        core, moves = _behind(self._read(call.args[0]), (*VIEWS, TRANSPOSE))
        bounds = activation_bounds(core)
        if bounds is not None and isinstance(core, Operator):
            inner, views = _behind(core.operands[0], VIEWS)
            if isinstance(inner, Operator) and inner.kind in _ACTIVATED:
                core, moves = inner, (*moves, *views)
        if isinstance(core, Quantized):
            core = Operator("requantize", (core,), {}, core.reals or core, explicit=core.explicit)
        if not isinstance(core, Operator):
            core = Operator("", (core,), {}, core if isinstance(core, Value) else self._value(call.args[0]))
        offset = SIGN if var in self._signed else 0
        zero = int(zero_point.reshape(-1)[0]) - offset
        quant = Quant(np.array([step]), zero, "int8" if offset else dtype, offset=offset)
        return replace(core, quant=quant, bounds=bounds, moves=moves)


def activation_bounds(operand: Operand) -> Bounds | None:
    """Return the real (lower, upper) bounds of a relu or clip, upper None if there is none; None for anything else."""
    if isinstance(operand, Operator) and operand.kind == "relu":
        return 0.0, None
    if isinstance(operand, Operator) and operand.kind == "clip":
        lo, hi = operand.operands[1:3]
        return float(lo), float(hi)  # type: ignore[arg-type]
    return None


def _behind(operand: Operand, kinds: Collection[str]) -> tuple[Operand, tuple[Operator, ...]]:
    """Return the first operand, going back from `operand`, not computed by `kinds`, and the skipped operators."""
    skipped: list[Operator] = []
    while isinstance(operand, Operator) and operand.kind in kinds:
        skipped.append(operand)
        operand = operand.operands[0]
    return operand, tuple(skipped)


def _extents(expr: Any) -> tuple[int, ...] | None:
    try:
        return shape_of(expr)
    except NotLowered:
        return None


def _plain(attrs: Any) -> Mapping[str, Any]:
    """Return a call's attributes as Python values."""
    fields = () if attrs is None else type(attrs).__tvm_ffi_type_info__.fields
    return {f.name: _python(getattr(attrs, f.name)) for f in fields}


def _python(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    number = getattr(value, "value", value)
    if isinstance(number, (int, float)):
        return number
    return tuple(_python(v) for v in value) if hasattr(value, "__iter__") else value
