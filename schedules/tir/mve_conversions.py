"""Products of converted integers, kept from becoming fixed-point conversions on Cortex-M55 and -M85.

LLVM 22 makes a single instruction, `vcvt.f32.s32 q, q, #bits`, from a conversion and a product by a power of two, and
takes wrong `bits` for some: 12 for 1/16, and 11 or 12 for 1/256. `x * scale + 0` is the same number, and no such pair.
"""

from __future__ import annotations

from math import frexp
from typing import Any

from tvm_cascade.schedules.tir import PrimFunc, collect, dtype_of, replace, tirx


def keep_products(func: PrimFunc) -> PrimFunc:
    """Rewrite every product of a converted integer and a power of two below 1 as a multiply-accumulate onto 0."""
    bound = {hash(bind.var): bind.value for bind in collect(func.body, tirx.Bind)}

    def converted(value: Any) -> bool:
        while isinstance(value, tirx.Var) and hash(value) in bound:
            value = bound[hash(value)]
        return isinstance(value, tirx.Cast) and "int" in dtype_of(value.value)

    def product(node: Any) -> Any:
        dtype = dtype_of(node)
        if not dtype.startswith("float32"):
            return node
        for value, factor in ((node.a, node.b), (node.b, node.a)):
            if _is_fraction(factor) and converted(value):
                return tirx.call_llvm_pure_intrin(dtype, "llvm.fma", value, factor, _zero(factor))
        return node

    return func.with_body(replace(func.body, tirx.Mul, product))


def _is_fraction(factor: Any) -> bool:
    """Test that a factor, or each lane, is 2 to a negative power."""
    constant = factor.value if isinstance(factor, tirx.Broadcast) else factor
    return isinstance(constant, tirx.FloatImm) and 0 < constant.value < 1 and frexp(constant.value)[0] == 0.5


def _zero(factor: Any) -> Any:
    """Return 0 in a factor's type."""
    if isinstance(factor, tirx.Broadcast):
        return tirx.Broadcast(tirx.FloatImm("float32", 0.0), factor.lanes)
    return tirx.FloatImm("float32", 0.0)
