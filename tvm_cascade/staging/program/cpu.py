"""Concurrent stages on CPUs: fuses a stage's groups into one kernel with a parallel loop, one lane per worker.

`for lane in T.parallel(n): if lane == 0: ... elif lane == 1: ...` over the bodies of single-threaded kernels. TVM's own
thread pool runs the lanes; `TVM_NUM_THREADS` must give as many threads, or lanes run one after another.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import PrimFunc


def threads() -> int:
    """Return the threads of TVM's pool: `TVM_NUM_THREADS`, else the pool's own count. At most so many groups run at
    once.
    """
    value = os.environ.get("TVM_NUM_THREADS")
    if value:
        return max(1, int(value))
    count = tvm.get_global_func("runtime.NumThreads", allow_missing=True)
    return int(count()) if count is not None else os.cpu_count() or 1


@dataclass(frozen=True)
class Use:
    """A kernel call in a stage: `keys` identify the buffers of its parameters, equal keys being the same buffer."""

    func: PrimFunc
    keys: tuple[Hashable, ...]


def parallel_lanes(lanes: Sequence[Sequence[Use]], serial: bool = False) -> tuple[PrimFunc, tuple[Hashable, ...]]:
    """Fuse lanes into a concurrent PrimFunc; return this and the parameters' keys in order.

    Within a lane kernels run in sequence. `serial` runs the lanes in sequence too, last first, to test their
    independence.
    """
    params: dict[Hashable, Any] = {}
    bodies = [_sequence([_bind(use, params) for use in lane]) for lane in lanes]
    if serial:
        body = _sequence(bodies[::-1])
    else:
        lane = tirx.Var("lane", "int32")
        body = bodies[-1]
        for k in range(len(bodies) - 2, -1, -1):
            body = tirx.IfThenElse(lane == k, bodies[k], body)
        body = tirx.For(lane, tirx.IntImm("int32", 0), tirx.IntImm("int32", len(bodies)), tirx.ForKind.PARALLEL, body)
    root = s_tir.SBlockRealize([], tirx.const(True, "bool"), s_tir.SBlock([], [], [], "root", body))
    attrs = tvm.ir.make_node("ir.DictAttrs", **{"tirx.noalias": True, "s_tir": True})
    return PrimFunc(list(params.values()), root, None, attrs), tuple(params)


def _sequence(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(list(parts))


def _bind(use: Use, params: dict[Hashable, Any]) -> Any:
    """Copy the kernel's body with parameters replaced by the stage's buffers and all other variables renamed."""
    fresh = s_tir.renew_defs(use.func)
    shared = {param: params.setdefault(key, param) for param, key in zip(fresh.params, use.keys, strict=True)}
    return tvm_ffi.structural_map(fresh.body, (tirx.Var, lambda var: shared.get(var, var)))
