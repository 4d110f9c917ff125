"""Cumulative sums and products as a kernel: a single pass along the axis, which TVM leaves to a library."""

from __future__ import annotations

from typing import Any

from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.statements import loop, one_block, sequence, store
from tvm_cascade.passes.integer.untyped import Function, Scalar, Value, ir, relax, s_tir, tirx, topi


def scanned(bb: Any, call: Value, product: bool) -> Value:
    """Lower `relax.cumsum` or `relax.cumprod`; without an axis the tensor is flattened first."""
    data, attrs, dtype = call.args[0], call.attrs, str(call.ty.dtype)
    if attrs.axis is None:
        data = bb.emit_te(topi.reshape, data, [int(d) for d in call.ty.shape.values])
    shape = tuple(int(d) for d in data.ty.shape.values)
    axis = int(attrs.axis or 0) % len(shape)
    func = _kernel(shape, axis, (str(data.ty.dtype), dtype), bool(attrs.exclusive), product)
    called = bb.add_func(func, "cumprod" if product else "cumsum")
    return relax.call_tir(called, [data], relax.TensorType(list(shape), dtype))


def _kernel(shape: tuple[int, ...], axis: int, dtypes: tuple[str, str], exclusive: bool, product: bool) -> Function:
    """Return the PrimFunc: a block for every place beside the axis, as each element depends on the previous."""
    x, out = tirx.decl_buffer(shape, dtypes[0], "x"), tirx.decl_buffer(shape, dtypes[1], "out")
    total = tirx.decl_buffer((1,), dtypes[1], "total")
    others = [k for k in range(len(shape)) if k != axis]
    lanes = {k: tirx.Var(f"v_{k}", "int32") for k in others}

    def step(j: Scalar) -> Value:
        at = [lanes.get(k, j) for k in range(len(shape))]
        element = x[tuple(at)].astype(dtypes[1])
        put = tirx.BufferStore(out, total[i32(0)], at)
        add = store(total, 0, total[i32(0)] * element if product else total[i32(0)] + element)
        return sequence(*((put, add) if exclusive else (add, put)))

    body = sequence(store(total, 0, tirx.const(int(product), dtypes[1])), loop("j", shape[axis], step))
    ranges = [ir.Range.from_min_extent(lanes[k], i32(1)) if k in lanes else ir.Range(0, d) for k, d in enumerate(shape)]
    axes = [tirx.IterVar(ir.Range(0, shape[k]), lanes[k], tirx.IterVar.DataPar) for k in others]
    regions = [tirx.BufferRegion(buffer, ranges) for buffer in (x, out)]
    block = s_tir.SBlock(axes, regions[:1], regions[1:], "scan", body, None, [total], [], {})
    return one_block(block, [(tirx.Var(f"i_{k}", "int32"), shape[k]) for k in others], [x, out])
