"""Conditions of padding become loop bounds only where the padding cannot change the accumulator."""

# pyright: reportGeneralTypeIssues=false, reportInvalidTypeForm=false
from __future__ import annotations

from typing import Any

import pytest
import tvm

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import tirx
from tvm_cascade.schedules.tir.padding import conditions_to_bounds


def _maximum(starts: list[int], padding: int) -> Any:
    """The maximum of x[0:4] and of a pixel of `padding` before it, in a buffer that takes the values `starts` in turn."""
    x, y = (tirx.decl_buffer((n,), "int32", name) for n, name in ((4, "x"), (1, "y")))
    k, zero = tirx.Var("k", "int32"), tir.i32(0)
    pixel = tirx.if_then_else(k >= tir.i32(1), x[k - 1], tir.i32(padding))
    update = tirx.BufferStore(y, tirx.Max(y[zero], pixel), [zero])
    loop = tirx.For(k, zero, tir.i32(5), tirx.ForKind.SERIAL, update)
    stores = [tirx.BufferStore(y, tir.i32(start), [zero]) for start in starts]
    return tirx.PrimFunc([x, y], tirx.SeqStmt([*stores, loop]))


def _conditions(func: Any) -> int:
    return sum(tir.is_if_then_else(c) for c in tir.collect(func.body, tvm.ir.Call))


@pytest.mark.parametrize(
    ("starts", "padding", "kept"),
    [([-9], -9, 0), ([-9], -5, 1), ([-9, -9], -9, 0), ([0, -9], -5, 1), ([-9, 0], -5, 1)],
)
def test_a_maximum_absorbs_padding_below_the_value_it_starts_from(starts: list[int], padding: int, kept: int) -> None:
    """With several first values, none is taken for the one."""
    func = _maximum(starts, padding)
    assert _conditions(func) == 1
    assert _conditions(conditions_to_bounds(func)) == kept
