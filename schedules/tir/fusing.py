"""Fusion of nested loops over neighbouring elements: a single loop for operators that treat all elements alike.

    for i in range(m): for j in range(n): out[i * n + j] = f(x[i * n + j])   -->   for k in range(m * n): out[k] = f(x[k])

Inner loops with small extents cost more than their bodies, and compilers vectorize only the innermost loop.
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Stmt, ir, sym, tirx, tvm_ffi


def fuse_loops(stmt: Stmt) -> Stmt:
    """Merge loop nests in `stmt` if every index, and everything else computed, follows from the position in the nest."""
    return tvm_ffi.structural_map(stmt, (tirx.For, _fused), order="post")


def _fused(outer: Any) -> Any:
    """Merge the loop with the loop that is the whole body; return the loop unchanged if fusion is impossible."""
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
    """Simplify a store's indices, and the indices of loads in the value."""

    def load(access: Any) -> Any:
        return tirx.BufferLoad(access.source, [analyzer.simplify(i) for i in access.indices])

    value = tir.replace(store.value, ir.TensorLoad, load)
    return tirx.BufferStore(store.buffer, value, [analyzer.simplify(i) for i in store.indices])


def _plain(loop: Any) -> bool:
    """Test that a loop runs a known number of times from 0 on, serially, and has no annotations."""
    known = tir.int_value(loop.min) == 0 and tir.int_value(loop.extent) is not None
    return known and loop.kind == tirx.ForKind.SERIAL and not loop.annotations
