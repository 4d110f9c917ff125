"""The `k` largest elements of every row and their places (top-k), of stored integers or floats.

The places come first, by one kernel: each place is that of the largest element after the element chosen before, in the
order of falling values and, among equals, of rising places. That takes `k` passes over the row and no memory beside the
result. Then the values are read at these places.
"""

from __future__ import annotations

from math import prod

from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.statements import loop, one_block, sequence, store
from tvm_cascade.passes.integer.untyped import Function, Index, Scalar, Tensor, Value, ir, s_tir, te, tirx

_BEST, _LAST = 0, 1  # among the scratch of the kernel: the best place so far (-1: none), and the place chosen before


def lower_top_k(emitter: Emitter, data: Value, k: int) -> tuple[Value, Value]:
    """Emits both operators for the rows along the last axis of `data`: `(values, places)`, places as int32."""
    *outer, extent = shape_of(data)
    rows = prod(outer)
    flat = emitter.reshape(emitter.new(data), (rows, extent))
    places = emitter.call_func("top_k", _places(rows, extent, k, dtype_of(data)), [flat], 1)

    def compute(a: Tensor, p: Tensor) -> Tensor:
        def at(i: Index, j: Index) -> Scalar:
            return a[i, tirx.min(tirx.max(p[i, j], i32(0)), i32(extent - 1))]

        return te.compute((rows, k), at, name="top_k_values")

    values = emitter.call("top_k_values", compute, [flat, places])
    return emitter.reshape(values, (*outer, k)), emitter.reshape(places, (*outer, k))


def _places(rows: int, extent: int, k: int, dtype: str) -> Function:
    """The kernel from `[rows, extent]` to the places `[rows, k]`: one block a row, as each place depends on the one before."""
    x, out = tirx.decl_buffer((rows, extent), dtype, "x"), tirx.decl_buffer((rows, k), "int32", "out")
    scratch = tirx.decl_buffer((2,), "int32", "scratch")
    row, lane = tirx.Var("row", "int32"), tirx.Var("v_row", "int32")

    def place(j: Scalar) -> Value:
        return sequence(
            store(scratch, _BEST, i32(-1)),
            loop("i", extent, lambda i: _compared(x, scratch, lane, i, j)),
            store(scratch, _LAST, tirx.max(scratch[_BEST], i32(0))),
            tirx.BufferStore(out, scratch[_LAST], [lane, j]),
        )

    body = sequence(store(scratch, _LAST, i32(0)), loop("j", k, place))
    axis = tirx.IterVar(ir.Range(0, rows), lane, tirx.IterVar.DataPar)
    one = ir.Range.from_min_extent(lane, i32(1))
    reads = [tirx.BufferRegion(x, [one, ir.Range(0, extent)])]
    writes = [tirx.BufferRegion(out, [one, ir.Range(0, k)])]
    block = s_tir.SBlock([axis], reads, writes, "top_k", body, None, [scratch], [], {})
    return one_block(block, [(row, rows)], [x, out])


def _compared(x: Value, scratch: Value, row: Scalar, i: Scalar, j: Scalar) -> Value:
    """Makes `i` the best place if its element comes after the one chosen before and is larger than that of the best."""
    element, chosen = x[row, i], x[row, scratch[_LAST]]
    after = tirx.any(j.equal(i32(0)), element < chosen, tirx.all(element.equal(chosen), i > scratch[_LAST]))
    best = scratch[_BEST]
    larger = tirx.any(best < i32(0), element > x[row, tirx.max(best, i32(0))])
    return tirx.IfThenElse(tirx.all(after, larger), store(scratch, _BEST, i), None)
