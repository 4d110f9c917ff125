"""Scatters as a kernel: the data is copied, then the updates are written or combined in order. TVM's own form states no blocks.

Indices below zero count from the end. An update with an index outside the tensor is left out: no input makes firmware
write beyond the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.statements import loop, one_block, sequence
from tvm_cascade.passes.integer.untyped import Builder, Call, Function, Scalar, Value, ir, relax, s_tir, tirx

Indices = Sequence[Scalar]


def scatter_elements(bb: Builder, call: Call) -> Value:
    """Lower `relax.scatter_elements`: element `i` of the updates goes to `i`, with the element's index in place of
    `i[axis]`.
    """
    shape, axis = shape_of(call.args[0]), int(call.attrs.axis) % len(shape_of(call.args[0]))

    def place(indices: Value, i: Indices) -> Indices:
        return [indices[tuple(i)].astype("int32") if a == axis else i[a] for a in range(len(shape))]

    return _scattered(bb, call, shape_of(call.args[1]), [axis], place)


def scatter_nd(bb: Builder, call: Call) -> Value:
    """Lower `relax.scatter_nd`: index rows name data parts by leading axes."""
    shape, (*rows, depth) = shape_of(call.args[0]), shape_of(call.args[1])

    def place(indices: Value, i: Indices) -> Indices:
        row = i[: len(rows)]
        return [*(indices[(*row, i32(a))].astype("int32") for a in range(depth)), *i[len(rows) :]]

    return _scattered(bb, call, (*rows, *shape[depth:]), range(depth), place)


def _scattered(
    bb: Builder,
    call: Call,
    extents: Sequence[int],
    indexed: Sequence[int],
    place: Callable[[Value, Indices], Indices],
) -> Value:
    data, indices, updates = call.args
    buffers = [
        tirx.decl_buffer(shape_of(v), dtype_of(v), n)
        for v, n in zip((data, indices, updates), ("x", "at", "u"), strict=True)
    ]
    out = tirx.decl_buffer(shape_of(data), dtype_of(data), "out")
    func = _kernel(buffers, out, extents, indexed, place, str(call.attrs.reduction))
    called = bb.add_func(func, "scatter")
    return relax.call_tir(called, [data, indices, updates], relax.TensorType(list(shape_of(data)), dtype_of(data)))


def _kernel(
    inputs: Sequence[Value],
    out: Value,
    extents: Sequence[int],
    indexed: Sequence[int],
    place: Callable[[Value, Indices], Indices],
    reduction: str,
) -> Function:
    """Build the PrimFunc: a single block, as updates may hit the same element."""
    x, at, updates = inputs
    shape = [int(d) for d in out.shape]

    def update(i: Indices) -> Value:
        where = list(place(at, i))
        inside = tirx.all(*(tirx.all(where[a] >= -shape[a], where[a] < shape[a]) for a in indexed))
        for a in indexed:
            where[a] = where[a] + tirx.Select(where[a] < 0, i32(shape[a]), i32(0))
        new = _COMBINED[reduction](out[tuple(where)], updates[tuple(i)])
        return tirx.IfThenElse(inside, tirx.BufferStore(out, new, where), None)

    body = sequence(_over(shape, lambda i: tirx.BufferStore(out, x[tuple(i)], list(i))), _over(extents, update))
    reads, writes = (
        [tirx.BufferRegion(b, [ir.Range(0, d) for d in b.shape]) for b in buffers] for buffers in (inputs, [out])
    )
    return one_block(s_tir.SBlock([], reads, writes, "scatter", body, None, [], [], {}), [], [*inputs, out])


def _over(extents: Sequence[int], body: Callable[[Indices], Value], at: Indices = ()) -> Value:
    """Build the statement for all indices below `extents`, in order."""
    if len(at) == len(extents):
        return body(at)
    return loop(f"i{len(at)}", extents[len(at)], lambda i: _over(extents, body, (*at, i)))


def _added(old: Scalar, new: Scalar) -> Scalar:
    return tirx.any(old, new) if str(old.ty.dtype) == "bool" else old + new


def _multiplied(old: Scalar, new: Scalar) -> Scalar:
    return tirx.all(old, new) if str(old.ty.dtype) == "bool" else old * new


_COMBINED: dict[str, Callable[[Scalar, Scalar], Scalar]] = {
    "update": lambda _, new: new,
    "add": _added,
    "mul": _multiplied,
    "min": tirx.min,
    "max": tirx.max,
}
