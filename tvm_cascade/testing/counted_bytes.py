"""Bytes that a plan's kernels load and store, counted while they run: every statement adds its own to a counter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tvm_cascade.cascading import Plan
from tvm_cascade.emit.host import host_program, run_host
from tvm_cascade.emit.placement import place_io
from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.driver.lower_plan import lower_plan
from tvm_cascade.schedules.kernels.kernel import Role
from tvm_cascade.schedules.tir import PrimFunc, dtype_of, ir, tirx, tvm_ffi
from tvm_cascade.tensor_spec import graph_io
from tvm_cascade.testing.quick_build import quick_build


def executed_bytes(prepared: PreparedGraph, plan: Plan, feeds: Sequence[np.ndarray]) -> int:
    """Bytes that the kernels of `plan`, the generic ones, load and store in the plan's blocks, in one inference."""
    kernels = prepared.kernels_of(plan, generic=True)
    constants = {
        (hash(v.func), k)
        for kernel in kernels
        for v in (kernel.variants if kernel else ())
        for k, p in enumerate(v.params)
        if p.role is Role.CONSTANT
    }

    def transform(func: PrimFunc) -> PrimFunc:
        blocks = [p for k, p in enumerate(func.params) if (hash(func), k) not in constants]
        return _counting(func, {hash(p) for p in blocks})

    lowered = lower_plan(plan, kernels, transform=transform, counted=True)
    program = host_program(lowered, place_io(plan, graph_io(plan.graph)), quick_build)
    named = {p.name: feed for p, feed in zip(program.inputs, feeds, strict=True)}
    return run_host(program, [named]).executed_macs


def _counting(func: PrimFunc, pointers: Collection[int]) -> PrimFunc:
    """`func` with a last parameter, a pointer to the counter; `pointers` are hashes of the parameters that count."""
    handle = tir.pointer_var("macs", "int64")
    counter = tirx.decl_buffer((1,), "int64", "macs_data", data=handle)
    views = {hash(d.buffer) for d in tir.collect(func.body, tirx.DeclBuffer) if hash(d.data) in pointers}

    def size(dtype: str) -> int:
        return ITEM_BYTES[dtype]

    def loaded(value: Any) -> Any:
        """The bytes that an expression loads, as an expression."""
        if isinstance(value, ir.TensorLoad):
            own = size(str(dtype_of(value))) if hash(value.source) in views else 0
            return total([tirx.const(own, "int64"), *(loaded(i) for i in value.indices)])
        if isinstance(value, tirx.Select) or tir.is_if_then_else(value):
            parts = value.args if isinstance(value, ir.Call) else (value.condition, value.true_value, value.false_value)
            yes, no = loaded(parts[1]), loaded(parts[2])
            return total([loaded(parts[0]), tirx.Select(parts[0], yes, no)])
        inner = value.args if isinstance(value, ir.Call) else [getattr(value, n, None) for n in ("a", "b", "value")]
        return total([loaded(v) for v in inner if isinstance(v, ir.Expr)])

    def total(values: Sequence[Any]) -> Any:
        sum_: Any = tirx.const(0, "int64")
        for value in values:
            sum_ = sum_ + value
        return sum_

    def count(moved: Any) -> Any:
        zero = tirx.const(0, "int32")
        return tirx.BufferStore(counter, counter[0] + moved, [zero])

    def stored(stmt: Any) -> Any:
        own = size(str(dtype_of(stmt.value))) if hash(stmt.buffer) in views else 0
        moved = total([tirx.const(own, "int64"), loaded(stmt.value), *(loaded(i) for i in stmt.indices)])
        return tirx.SeqStmt([count(moved), stmt])

    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, stored))
    binds = [b for b in tir.collect(func.body, tirx.Bind) if int_of(loaded(b.value)) != 0]
    assert not binds, "loads are in stores alone"
    body = tirx.SeqStmt([tirx.DeclBuffer(counter, data=handle), body])
    return tirx.PrimFunc([*func.params, handle], body, func.ret_type, attrs=func.attrs)


def int_of(value: Any) -> int | None:
    """The value of a constant expression; None for any other."""
    return tir.int_value(value)
