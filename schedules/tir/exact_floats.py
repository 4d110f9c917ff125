"""Floating-point constants in C with all their digits.

TVM's C back end prints seven significant digits, where a float needs nine and a double seventeen: 1/70 came out a unit in
the last place too small, and with it whatever was quantized by it. Constants that seven digits do not tell become calls
of nothing whose names are their bits, and the calls literals once the text is there.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tvm_cascade.schedules.tir import PrimFunc, dtype_of, replace, tirx

_FLOATS = {"float32": ("<u4", "<f4", "{:.8e}f"), "float64": ("<u8", "<f8", "{:.16e}")}  # bits, type, literal
_CALL = re.compile(r"\bexact_(float32|float64)_([0-9]+)\(\)")


def mark_floats(func: PrimFunc) -> PrimFunc:
    """`func` with every constant that the back end would round as a call, for `print_floats` to find."""
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
    """The text of marked functions with their constants as literals."""

    def literal(call: re.Match[str]) -> str:
        bits, kind, text = _FLOATS[call[1]]
        return text.format(float(np.array(int(call[2]), bits).view(kind)))

    return _CALL.sub(literal, source)
