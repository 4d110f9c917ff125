"""Rescaling by constant multipliers, against the reference's arithmetic."""

from __future__ import annotations

import pytest

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.schedules.tir import int_value, substitute, sym, tirx

_EDGES = (-32768, -1001, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 1000, 32767)


def reference(x: int, m: int, s: int) -> int:
    """`MBQM` of TFLite: a shift to the left, the high half of the doubled product, a rounded shift to the right."""
    return int(fp.rounding_divide(fp.srdhm(x << max(s, 0), m), max(-s, 0)))


@pytest.mark.parametrize("shift", range(-20, 16))
@pytest.mark.parametrize("multiplier", [1 << 30, (1 << 30) + 1, (1 << 31) - 1])
def test_rescaling_is_the_reference_s(shift: int, multiplier: int) -> None:
    x = tirx.Var("x", "int32")
    value = fp.te_rescale(x, multiplier, shift, 32768)
    assert ("int64" in str(value)) == (multiplier != 1 << 30)  # a power of two takes shifts of 32 bits alone
    for edge in _EDGES:
        found = sym.Analyzer().simplify(substitute(value, {x: tirx.const(edge, "int32")}))
        assert int_value(found) == reference(edge, multiplier, shift), edge


def test_powers_of_two_that_leave_32_bits_keep_their_64() -> None:
    x = tirx.Var("x", "int32")
    assert "int64" in str(fp.te_rescale(x, 1 << 30, 0, fp.INT32_MAX))
    assert "int64" in str(fp.te_rescale(x, 1 << 30, 8, 1 << 24))  # which wraps, as the reference does
