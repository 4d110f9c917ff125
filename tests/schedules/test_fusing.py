"""Nested loops over neighbouring elements become one; others stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.pitch import NotPitchedError, pitched
from tvm_cascade.schedules.rules.emit import Builder, KernelBuilder
from tvm_cascade.schedules.tir import i32, pointer_var, tirx
from tvm_cascade.schedules.tir.fusing import fuse_loops


def nest(index: Any, extents: tuple[int, ...] = (3, 5, 4)) -> Any:
    """Loops that store to `index(i, j, k)`, from the element 7 behind it."""
    k = Builder()
    x, out = (k.view(pointer_var(name, "int8"), "int8", name) for name in ("x", "out"))
    m, n, p = extents
    with k.loop(m, "i") as i, k.loop(n, "j") as j, k.loop(p, "l") as q:
        k.store(out, index(i, j, q), x[index(i, j, q) + 7])
    return tir.sequence(k.statements())


def extents_of(stmt: Any) -> list[int]:
    """The extents of the loops that are left, the outermost first."""
    found, loop = [], fuse_loops(stmt)
    while not isinstance(loop, tirx.BufferStore):
        loop = loop.seq[-1] if isinstance(loop, tirx.SeqStmt) else loop
        found.append(int(loop.extent))
        loop = loop.body
    return found


@pytest.mark.parametrize(
    ("index", "extents"),
    [
        (lambda i, j, k: i * 20 + j * 4 + k, [60]),
        (lambda i, j, k: 9 + (i * 5 + j) * 4 + k, [60]),
        (lambda i, j, k: i * 32 + j * 4 + k, [3, 20]),  # rows apart
        (lambda i, j, k: i * 40 + j * 8 + k, [15, 4]),  # pixels apart
        (lambda i, j, k: k * 15 + i * 5 + j, [15, 4]),
        (lambda i, j, k: i + j * 3 + k * 15, [3, 5, 4]),
    ],
)
def test_loops_are_fused_where_indices_are_neighbours(index: Any, extents: list[int]) -> None:
    assert extents_of(nest(index)) == extents


def test_values_that_depend_on_one_of_the_loops_keep_them() -> None:
    k = Builder()
    out, x = (k.view(pointer_var(name, "int32"), "int32", name) for name in ("out", "x"))
    with k.loop(6, "i") as i, k.loop(5, "j") as j:
        k.store(out, i * 5 + j, x[j])
    assert extents_of(tir.sequence(k.statements())) == [6, 5]
    k = Builder()
    with k.loop(6, "i") as i, k.loop(i + 1, "j") as j:
        k.store(out, i * 5 + j, i32(0))
    assert len(tir.collect(fuse_loops(tir.sequence(k.statements())), tirx.For)) == 2


def test_fused_elements_are_those_of_the_nest() -> None:
    fused = fuse_loops(nest(lambda i, j, k: 9 + (i * 5 + j) * 4 + k))
    (store,) = tir.collect(fused, tirx.BufferStore)
    (loop,) = tir.collect(fused, tirx.For)
    at = [tir.substitute(store.indices[0], {loop.loop_var: i32(n)}) for n in (0, 59)]
    analyzer = tir.sym.Analyzer()
    assert [int(analyzer.simplify(a)) for a in at] == [9, 68]


def test_fused_pixels_are_told_apart_where_they_lie_apart() -> None:
    """A part of a concat is written with the pitch of all channels."""
    k = KernelBuilder(["int8"], (), ["int8"])
    x, out = k.view(k.inputs[0][0], "int8", "x"), k.view(k.outputs[0], "int8", "out")

    def emit() -> None:
        with k.loop(15, "i") as i, k.loop(4, "j") as j:
            k.store(out, i * 4 + j, x[i * 4 + j])

    kernel = k.kernel(emit)
    func = kernel.func.with_body(fuse_loops(kernel.func.body))
    assert [int(loop.extent) for loop in tir.collect(func.body, tirx.For)] == [60]
    (store,) = tir.collect(pitched(replace(kernel, code=func), 4, 10).func.body, tirx.BufferStore)
    pixel, element = (tirx.Var(name, "int32") for name in "pe")
    names = {v.name: v for v in tir.collect(store.indices[0], tirx.Var)}
    at = tir.substitute(store.indices[0], {names["j_pixel"]: pixel, names["j"]: element})
    assert tir.sym.Analyzer().can_prove_equal(at, pixel * 10 + element)
    with pytest.raises(NotPitchedError):
        pitched(replace(kernel, code=func), 7, 10)
