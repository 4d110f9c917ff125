"""Machine intrinsics: the few operations that kernels need beyond plain TIR, lowered for the C and the LLVM back end.

Every operation is a TIR operator `tirx.tc_<name>`. TVM's `LowerIntrin` turns it into a call of a `static inline` helper
for target kind `c` (defined in `data/intrinsics.h`, as portable C if the instruction is missing, so kernels also run on the
host) and into LLVM intrinsics or plain TIR for target kind `llvm`. Both compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir import Call, Op, TensorLoad

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Value, tirx
from tvm_cascade.schedules.tir.rounded_products import fenced


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One operation."""

    name: str  # without the prefix `tc_`
    llvm: Callable[..., Value]  # its expansion for target kind `llvm`, from its arguments
    pure: bool = True  # whether it has no side effects
    dtype: str = "int32"  # of its result, even where that means nothing


def _llvm(name: str, dtype: str = "int32") -> Callable[..., Value]:
    return lambda *args: tirx.call_llvm_pure_intrin(dtype, name, *args)


def _ror8(value: Value) -> Value:
    bits = tirx.reinterpret("uint32", value)
    turned = (bits >> tirx.const(8, "uint32")) | (bits << tirx.const(24, "uint32"))
    return tirx.reinterpret("int32", turned)


def pointee(address: Value) -> tuple[Value, Value]:
    """Return buffer and index from `address_of(buffer[index])`."""
    load = address.args[0]
    assert isinstance(load, TensorLoad)
    return load.source, load.indices[0]


def vector_load(address: Value, lanes: Any) -> Value:
    """Loads `lanes` elements from `address_of(buffer[index])` on, assuming no alignment beyond the element's."""
    source, index = pointee(address)
    ramp: Value = tirx.Ramp(index, tirx.const(1, "int32"), lanes)
    return tirx.BufferLoad(source, [ramp])


def _smmlar(a: Value, b: Value, c: Value) -> Value:
    wide = a.astype("int64") * b.astype("int64") + (c.astype("int64") << tirx.const(32, "int64"))
    return ((wide + tirx.const(1 << 31, "int64")) >> tirx.const(32, "int64")).astype("int32")


def _smmla(a: Value, b: Value, c: Value) -> Value:
    return ((a.astype("int64") * b.astype("int64")) >> tirx.const(32, "int64")).astype("int32") + c


def _smlalh(a: Value, b: Value, low: Value, high: Value) -> Value:
    start = (high.astype("int64") << tirx.const(32, "int64")) + low.astype("uint32").astype("int64")
    return ((a.astype("int64") * b.astype("int64") + start) >> tirx.const(32, "int64")).astype("int32")


def _word(address: Value) -> Value:
    source, index = pointee(address)
    if str(source.dtype) == "int32":
        return tirx.BufferLoad(source, [index])
    wide = str(source.dtype).endswith("16")
    return tirx.reinterpret("int32", vector_load(address, 2 if wide else 4))


def _bytewise_max(a: Value, b: Value, dtype: str) -> Value:
    four = tirx.max(*(tirx.reinterpret(f"{dtype}x4", v) for v in (a, b)))
    return tirx.reinterpret("int32", four)


def _shift(word: Value) -> Value:
    """Return the shift, below 32, in the lowest byte of a word."""
    return tirx.bitwise_and(word, tirx.const(31, "int32"))


def _upper_nibbles(word: Value) -> Value:
    return tirx.bitwise_and(word, tirx.const(0xF0F0F0F0 - (1 << 32), "int32"))


def _ssat8(value: Value) -> Value:
    return tirx.max(tirx.min(value, tirx.const(127, "int32")), tirx.const(-128, "int32"))


def _real(bits: Value) -> Value:
    return tirx.reinterpret("float32", bits)


def _half(bits: Value) -> Value:
    """Decode a float16's bits; subnormal numbers are the difference of two normal ones."""
    size, sign = bits & tirx.const(0x7FFF, "int32"), (bits & tirx.const(0x8000, "int32")) << tirx.const(16, "int32")
    wide = size << tirx.const(13, "int32")
    least = tirx.const(2.0**-14, "float32")
    small = tirx.reinterpret("int32", _real(wide + tirx.const(113 << 23, "int32")) - least)
    bias = tirx.Select(
        size >= tirx.const(0x7C00, "int32"), tirx.const(224 << 23, "int32"), tirx.const(112 << 23, "int32")
    )
    return _real(tirx.Select(size < tirx.const(0x400, "int32"), small, wide + bias) | sign)


def _half_of(shift: int) -> Callable[[Value], Value]:
    """Return a function that decodes the lower or the upper float16 of a pair loaded as one float."""

    def decode(pair: Value) -> Value:
        bits = tirx.reinterpret("int32", pair) >> tirx.const(shift, "int32")
        return _half(bits & tirx.const(0xFFFF, "int32"))

    return decode


def copied(count: int) -> Callable[..., Value]:
    """Return a memcpy of `count` bytes from the second address to the first; the ranges must not overlap, types do not
    matter.
    """
    size, volatile = tirx.const(count, "int32"), tirx.const(False, "bool")
    return lambda to, source: tirx.call_llvm_intrin("void", "llvm.memcpy", to, source, size, volatile)


def _round_away(value: Value) -> Value:
    half = tirx.const(float(np.nextafter(np.float32(0.5), np.float32(0))), "float32")
    return tirx.Select(value >= tirx.const(0.0, "float32"), value + half, value - half).astype("int32")


INTRINSICS = (
    Intrinsic("copy4", copied(4), pure=False),
    Intrinsic("copy16", copied(16), pure=False),
    Intrinsic("ld32", lambda a: _word(a)),
    Intrinsic("ldr", lambda a: _word(a)),
    Intrinsic("mla", lambda a, b, c: a * b + c),
    Intrinsic("mlaf", lambda a, b, c: a * b + c, dtype="float32"),
    Intrinsic("alone", fenced, dtype="float32"),
    Intrinsic("real", _real, dtype="float32"),
    Intrinsic("half", _half, dtype="float32"),
    Intrinsic("half_low", _half_of(0), dtype="float32"),
    Intrinsic("half_high", _half_of(16), dtype="float32"),
    Intrinsic("smlad", _llvm("llvm.arm.smlad")),
    Intrinsic("sxtb16", _llvm("llvm.arm.sxtb16")),
    Intrinsic("sxtb16_ror8", lambda a: tirx.call_llvm_pure_intrin("int32", "llvm.arm.sxtb16", _ror8(a))),
    Intrinsic("sxtab16", _llvm("llvm.arm.sxtab16")),
    Intrinsic("sxtab16_ror8", lambda a, b: tirx.call_llvm_pure_intrin("int32", "llvm.arm.sxtab16", a, _ror8(b))),
    Intrinsic("uxtab16", _llvm("llvm.arm.uxtab16")),
    Intrinsic("uxtab16_ror8", lambda a, b: tirx.call_llvm_pure_intrin("int32", "llvm.arm.uxtab16", a, _ror8(b))),
    Intrinsic("smax8", lambda a, b: _bytewise_max(a, b, "int8")),
    Intrinsic("umax8", lambda a, b: _bytewise_max(a, b, "uint8")),
    Intrinsic("smmlar", _smmlar),
    Intrinsic("smmla", _smmla),
    Intrinsic("smlalh", _smlalh),
    Intrinsic("uxtb16", _llvm("llvm.arm.uxtb16")),
    Intrinsic("uxtb16_ror8", lambda a: tirx.call_llvm_pure_intrin("int32", "llvm.arm.uxtb16", _ror8(a))),
    Intrinsic("asr", lambda a, b: a >> _shift(b)),
    Intrinsic("lsl", lambda a, b: a << _shift(b)),
    Intrinsic("upper_nibbles", lambda a: _upper_nibbles(a)),
    Intrinsic("lower_nibbles", lambda a: _upper_nibbles(a << tirx.const(4, "int32"))),
    Intrinsic("low_nibble", lambda a: (a << tirx.const(28, "int32")) >> tirx.const(28, "int32")),
    Intrinsic("rbit", lambda a: tirx.call_llvm_pure_intrin("int32", "llvm.bitreverse", a)),
    Intrinsic("rare", lambda a: a),
    Intrinsic("clz", lambda a: tirx.call_llvm_pure_intrin("int32", "llvm.ctlz", a, tirx.const(False, "bool"))),
    Intrinsic("usat8", lambda a: tirx.max(tirx.min(a, tirx.const(255, "int32")), tirx.const(0, "int32"))),
    Intrinsic("ssat8_half", lambda a: _ssat8(a >> tirx.const(1, "int32"))),
    Intrinsic("ssat8", lambda a: _ssat8(a)),
    Intrinsic("round_away", _round_away),
    Intrinsic("round_even", lambda a: tirx.call_llvm_pure_intrin("float32", "llvm.rint", a).astype("int32")),
)

_OPS: dict[str, tuple[Op, str]] = {}  # by name, the operator and the type of its result


def _register(item: Intrinsic) -> None:
    name = f"tirx.tc_{item.name}"
    kind = tirx.CallEffectKind.Pure if item.pure else tirx.CallEffectKind.Opaque
    tvm.ir.register_op_attr(name, "TCallEffectKind", int(kind.value))
    extern = tirx.call_pure_extern if item.pure else tirx.call_extern

    def to_c(call: Call) -> Value:
        return extern(item.dtype, f"tc_{item.name}", *call.args)

    def to_llvm(call: Call) -> Value:
        return item.llvm(*call.args)

    tirx.register_intrin_lowering(name, target="c", f=to_c)
    tirx.register_intrin_lowering(name, target="llvm", f=to_llvm)
    _OPS[item.name] = Op.get(name), item.dtype


for _item in INTRINSICS:
    _register(_item)


def _fabs(call: Any) -> Value:
    """Call C's `fabs` or `fabsf` for `tirx.fabs`, which TVM's C back end cannot lower."""
    dtype = str(call.ty.dtype)
    return tirx.call_pure_extern(dtype, "fabs" if dtype == "float64" else "fabsf", *call.args)


tirx.register_intrin_lowering("tirx.fabs", target="c", f=_fabs)


def rarely(condition: Any) -> bool:
    """Test whether a condition asks for `rare` of a number: it seldom holds."""
    return type(condition) is tirx.NE and type(condition.a) is Call and condition.a.op.same_as(_OPS["rare"][0])


def call(name: str, *args: Value) -> Value:
    """Call the operation `tc_<name>` on `args`."""
    op, dtype = _OPS[name]
    return tir.call(op, [tir.i32(a) for a in args], dtype)


C_PRELUDE = "\n" + (Path(__file__).parents[1] / "data" / "intrinsics.h").read_text(encoding="utf-8")
