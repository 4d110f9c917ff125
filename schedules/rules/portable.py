"""`portable`: kernels for foreign machines as functions for this machine, instruction by instruction the same bits.

Kernels hold hundreds of `WORDS`, which LLVM compiles faster as calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tvm

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.rules.intrinsics import copied, pointee
from tvm_cascade.schedules.tir import PrimFunc, Value, dtype_of, ir, tirx

_Make = Callable[..., Value]

WORDS_FILE = Path(__file__).parents[1] / "data" / "words.ll"  # LLVM's code of the functions for `WORDS`


class NotPortableError(Exception):
    """Raised for a foreign instruction without a substitute; the message has the name."""


def portable(func: PrimFunc, words: bool) -> PrimFunc:
    """Replace ARM's operations and C helpers in `func` by operations that LLVM has for every machine.

    `words`: whether operations named in `WORDS` become calls of functions in `WORDS_FILE`.
    """
    changed = _with_words if words else _expanded
    body = tir.replace(func.body, ir.Call, changed)
    return func if body.same_as(func.body) else func.with_body(body)


def _with_words(call: Any) -> Any:
    name = _WORDS.get(str(getattr(call.op, "name", "")))
    return _expanded(call) if name is None else tirx.call_pure_extern("int32", name, *call.args)


def _expanded(call: Any) -> Any:
    name, args = str(getattr(call.op, "name", "")), list(call.args)
    if name == "tirx.call_extern":
        make = _HELPERS.get(str(getattr(args[0], "value", "")))
        return call if make is None else make(*args[1:])
    if name in _OPERATIONS:
        return _OPERATIONS[name](*args)
    if name not in ("tirx.call_llvm_pure_intrin", "tirx.call_llvm_intrin"):
        return call
    instruction = str(_NAME_OF(tir.int_value(args[0])))
    if not instruction.startswith("llvm.arm."):
        return call
    if instruction not in _INSTRUCTIONS:
        raise NotPortableError(instruction)
    return _INSTRUCTIONS[instruction](*args[1:])


_NAME_OF: Any = tvm.get_global_func("target.llvm_get_intrinsic_name")


def _intrinsic(name: str, dtype: str, *args: Value) -> Value:
    return tirx.call_llvm_pure_intrin(dtype, name, *args)


def _sum(lanes: Value) -> Value:
    return _intrinsic("llvm.vector.reduce.add", "int32", lanes)


def _lanes(value: Value) -> int:
    return int(dtype_of(value).partition("x")[2] or 1)


def _wide(value: Value, dtype: str = "int32") -> Value:
    return value.astype(f"{dtype}x{_lanes(value)}")


def _splat(number: int, like: Value, dtype: str = "int64") -> Value:
    return tirx.Broadcast(tirx.const(number, dtype), _lanes(like))


def _halves(word: Value) -> Value:
    return tirx.reinterpret("int16x2", word)


def _every_other(word: Value, first: int) -> Value:
    """Widen bytes `first` and `first + 2` of a word to two halves."""
    lanes = [tir.i32(first), tir.i32(first + 2)]
    return tirx.Shuffle([tirx.reinterpret("int8x4", word)], lanes).astype("int16x2")


def _word(halves: Value) -> Value:
    return tirx.reinterpret("int32", halves)


_OPERATIONS: Mapping[str, _Make] = {  # of `intrinsics` that LLVM has for ARM alone; each argument stands once
    "tirx.tc_smlad": lambda a, b, c: c + _sum(_wide(_halves(a)) * _wide(_halves(b))),
    "tirx.tc_sxtb16": lambda a: _word(_every_other(a, 0)),
    "tirx.tc_sxtb16_ror8": lambda a: _word(_every_other(a, 1)),
    "tirx.tc_sxtab16": lambda a, b: _word(_halves(a) + _every_other(b, 0)),
    "tirx.tc_sxtab16_ror8": lambda a, b: _word(_halves(a) + _every_other(b, 1)),
    "tirx.tc_uxtab16": lambda a, b: _word(_halves(a) + _halves(b & tir.i32(0x00FF00FF))),
    "tirx.tc_uxtab16_ror8": lambda a, b: _word(_halves(a) + _halves((b >> tir.i32(8)) & tir.i32(0x00FF00FF))),
    "tirx.tc_uxtb16": lambda a: a & tir.i32(0x00FF00FF),
    "tirx.tc_uxtb16_ror8": lambda a: (a >> tir.i32(8)) & tir.i32(0x00FF00FF),
}
WORDS = ("ld32", "ldr", "smlad", "smmlar", "ssat8", "ssat8_half", "sxtab16", "sxtab16_ror8", "sxtb16", "sxtb16_ror8")
_WORDS = {f"tirx.tc_{name}": f"tc_{name}" for name in WORDS}
_HELPERS: Mapping[str, _Make] = {"tc_copy16": copied(16), "tc_copy4": copied(4)}  # called by their names in C


def _of_sign(value: Value, unsigned: Value) -> Value:
    """Widen a vector to int32, with elements taken as unsigned if the flag is set."""
    if tir.int_value(unsigned) and dtype_of(value).startswith("int"):
        value = tirx.reinterpret(f"u{dtype_of(value)}", value)
    return _wide(value)


def _vmldava(unsigned: Value, minus: Value, crossed: Value, total: Value, a: Value, b: Value) -> Value:
    if tir.int_value(minus) or tir.int_value(crossed):
        raise NotPortableError("vmlsdav")
    return total + _sum(_of_sign(a, unsigned) * _of_sign(b, unsigned))


def _high(rounding: int) -> _Make:
    """Make the function for the high halves of doubled products, saturated."""

    def high(a: Value, b: Value) -> Value:
        product = _wide(a, "int64") * _wide(b, "int64") + _splat(rounding, a)
        shifted = tirx.shift_right(product, _splat(31, a))
        return _wide(tirx.min(shifted, _splat((1 << 31) - 1, a)))

    return high


def _shifted(value: Value, shift: Value, saturating: Value, rounding: Value, unsigned: Value) -> Value:
    """Shift lanes left by `shift`, or right and rounded half up if it is negative."""
    if tir.int_value(saturating) or tir.int_value(unsigned) or not tir.int_value(rounding):
        raise NotPortableError("vshl")
    left = tirx.shift_left(_wide(value, "int64"), _wide(shift, "int64") + _splat(32, value))
    return _wide(tirx.shift_right(left + _splat(1 << 31, value), _splat(32, value)))


def _greatest(start: Value, value: Value, unsigned: Value) -> Value:
    most = _intrinsic(f"llvm.vector.reduce.{'u' if tir.int_value(unsigned) else 's'}max", _element(value), value)
    if tir.int_value(unsigned) and _element(value).startswith("int"):
        most = tirx.reinterpret(f"u{_element(value)}", most)
    return tirx.max(start, most.astype("int32"))


def _element(value: Value) -> str:
    return dtype_of(value).partition("x")[0]


def _gathered(address: Value, offsets: Value, bits: Value, shift: Value, unsigned: Value) -> Value:
    """Load elements at offsets from an address, in elements of the buffer; `bits` and `shift` name the element size
    too.
    """
    source, first = pointee(address)
    if f"{tir.int_value(bits)}" != _element(offsets).lstrip("uint") or 8 << (
        tir.int_value(shift) or 0
    ) != tir.int_value(bits):
        raise NotPortableError("vldr.gather.offset")
    return tirx.BufferLoad(source, [_of_sign(offsets, tir.i32(1)) + tirx.Broadcast(first, _lanes(offsets))])


_INSTRUCTIONS: Mapping[str, _Make] = {
    "llvm.arm.mve.addv": lambda a, unsigned: _sum(_of_sign(a, unsigned)),
    "llvm.arm.mve.vmldava": _vmldava,
    "llvm.arm.mve.vqdmulh": _high(0),
    "llvm.arm.mve.vqrdmulh": _high(1 << 30),
    "llvm.arm.mve.vshl.vector": _shifted,
    "llvm.arm.mve.maxv": _greatest,
    "llvm.arm.mve.vcvta": lambda _, a: _wide(_intrinsic("llvm.round", dtype_of(a), a)),
    "llvm.arm.mve.vldr.gather.offset": _gathered,
}
