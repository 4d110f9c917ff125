"""Casts of floats to integers. C and LLVM leave floats beyond the range of the type open, and cores differ.

Networks of TFLite take the nearer end of the range, and the greatest integer for NaN, as LiteRT's reference. All others
take the least integer of 32 or 64 bits, as x86's instructions, and so ONNX Runtime and PyTorch there; shorter integers
are its low bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_cascade.passes.integer.expressions import dtype_of
from tvm_cascade.passes.integer.untyped import Builder, Call, Scalar, Value, te, tirx

_ATTR = "cascade_saturates"  # of `main`: casts are those of LiteRT
_FLOATS = ("float32", "float64")
_OPEN = ("uint32", "uint64")  # ONNX Runtime itself takes other values in vectors and behind them


def with_saturating_casts(mod: Any) -> Any:
    """Copy `mod` with `main` marked as a network of TFLite."""
    mod = mod.clone()
    mod["main"] = mod["main"].with_attr(_ATTR, 1)
    return mod


def saturates(mod: Any) -> bool:
    """Return True if `with_saturating_casts` marked `main`."""
    mains = (f for gv, f in mod.functions_items() if gv.name_hint == "main")
    return any(f.attrs is not None and _ATTR in f.attrs for f in mains)


def cast(bb: Builder, call: Call, saturated: bool = False) -> Value:
    """Lower `relax.astype`: floats to integers by truncation, in a single kernel."""
    source, dtype = dtype_of(call.args[0]), str(call.attrs.dtype)
    if source not in _FLOATS or not dtype.startswith(("int", "uint")) or (dtype in _OPEN and not saturated):
        return call.op.get_attr("FLegalize")(bb, call)
    form = _saturated if saturated else _indefinite

    def compute(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: form(x(*i), dtype), name="cast")

    return bb.call_te(compute, call.args[0], primfunc_name_hint="cast")


def _saturated(x: Scalar, dtype: str) -> Scalar:
    info = np.iinfo(dtype)
    lowest, limit = (tirx.const(float(v), str(x.ty.dtype)) for v in (info.min, info.max + 1))
    return tirx.Select(x < limit, tirx.max(x, lowest).astype(dtype), tirx.const(info.max, dtype))


def _indefinite(x: Scalar, dtype: str) -> Scalar:
    wide = "int64" if dtype == "int64" else "int32"
    least = np.iinfo(wide).min
    inside = tirx.abs(x) < tirx.const(-float(least), str(x.ty.dtype))
    return tirx.Select(inside, x.astype(wide), tirx.const(least, wide)).astype(dtype)
