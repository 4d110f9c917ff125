"""Exact floating-point literals in generated C.

TVM's C back end prints seven significant digits; a float needs nine and a double seventeen: 1/70 would be a unit in the
last place too small, and so would values quantized by that scale. `mark_floats` turns constants not determined by seven
digits into calls of dummy functions with the bits in the name; `print_floats` turns these into literals in the text.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tvm_cascade.schedules.tir import PrimFunc, dtype_of, replace, tirx

_FLOATS = {"float32": ("<u4", "<f4", "{:.8e}f"), "float64": ("<u8", "<f8", "{:.16e}")}  # bits, type, literal
_CALL = re.compile(r"\bexact_(float32|float64)_([0-9]+)\(\)")


def mark_floats(func: PrimFunc) -> PrimFunc:
    """Replace every constant in `func` that the back end would round by a marker call for `print_floats`."""
    return func.with_body(replace(func.body, tirx.FloatImm, _marked))


def _marked(constant: Any) -> Any:
    dtype, value = dtype_of(constant), float(constant.value)
    if dtype not in _FLOATS or not np.isfinite(value):
        return constant
    bits, kind, _ = _FLOATS[dtype]
    stored = np.array(value, kind)
    if np.array(float(f"{value:.6e}"), kind) == stored:
        return constant
    return tirx.call_extern(dtype, f"exact_{dtype}_{int(stored.view(bits))}")


def print_floats(source: str) -> str:
    """Replace the marker calls in C text `source` by exact literals."""

    def literal(call: re.Match[str]) -> str:
        bits, kind, text = _FLOATS[call[1]]
        return text.format(float(np.array(int(call[2]), bits).view(kind)))

    return _CALL.sub(literal, source)
