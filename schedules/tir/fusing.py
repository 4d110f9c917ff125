"""Fusion of nested loops that step through neighbouring elements: one loop for an operator that treats all elements alike.

    for i in range(m): for j in range(n): out[i * n + j] = f(x[i * n + j])   -->   for k in range(m * n): out[k] = f(x[k])

The inner loops of small extents cost more than their bodies, and compilers make vectors of the innermost loop alone.
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Stmt, ir, sym, tirx, tvm_ffi


def fuse_loops(stmt: Stmt) -> Stmt:
    """`stmt` with nests fused where every index, and all else that is computed, follows from the position in the nest."""
    return tvm_ffi.structural_map(stmt, (tirx.For, _fused), order="post")


def _fused(outer: Any) -> Any:
    """The loop fused with the one that is all of its body; itself where they do not fuse."""
    inner = outer.body
    if not _plain(outer) or not isinstance(inner, tirx.For) or not _plain(inner):
        return outer
    m, n = (int(loop.extent) for loop in (outer, inner))
    var = tirx.Var(inner.loop_var.name, "int32")
    analyzer = sym.Analyzer()
    analyzer.bind(var, ir.Range(0, m * n))
    places = {outer.loop_var: var // n, inner.loop_var: var % n}
    body = tir.replace(tir.substitute(inner.body, places), tirx.BufferStore, lambda s: _simple(s, analyzer))
    if any(tir.uses(e, var) for kind in (tirx.FloorDiv, tirx.FloorMod) for e in tir.collect(body, kind)):
        return outer
    return tir.for_range(var, m * n, body)


def _simple(store: Any, analyzer: Any) -> Any:
    """A store with its indices, and those that its value loads from, simplified."""

    def load(access: Any) -> Any:
        return tirx.BufferLoad(access.source, [analyzer.simplify(i) for i in access.indices])

    value = tir.replace(store.value, ir.TensorLoad, load)
    return tirx.BufferStore(store.buffer, value, [analyzer.simplify(i) for i in store.indices])


def _plain(loop: Any) -> bool:
    """Whether a loop runs a known number of times from 0 on, one iteration after the other, and has no annotations."""
    known = tir.int_value(loop.min) == 0 and tir.int_value(loop.extent) is not None
    return known and loop.kind == tirx.ForKind.SERIAL and not loop.annotations
