"""Elementary functions in kernels for CPUs (`schedules.tir.elementary`): loops call no C library, and are vectorized."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.tir.elementary import FORMS, INFINITE, Rewriter, Value, is_float32


def vectorizable(func: PrimFunc) -> PrimFunc:
    """Return the kernel with each elementary float32 function as this module's expression.

    Its argument and its value are written to elements of memory, which LLVM keeps in registers::

        y[i] = x[i] * tanh(x[i])   ->   a[0] = x[i]; b[0] = <tanh of a[0]>; y[i] = x[i] * b[0]

    TVM simplifies expressions with variables replaced by their values: without the memory between them, functions of functions
    would take it minutes. Conditional arguments, which may not be computed elsewhere, have their expressions in place. A loop
    that a schedule has vectorized becomes a plain loop, which LLVM vectorizes: TVM would keep a single element for all lanes.
    """
    body = _Writer().written(func.body)
    return func if body.same_as(func.body) else func.with_body(body)


class _Writer(Rewriter):
    forms = FORMS

    def __init__(self) -> None:
        self._blocks: list[list[Any]] = []  # what is to be allocated in the blocks around
        self._stores: list[Any] | None = None  # to be made before the present statement
        self._elements = 0  # of memory so far

    def written(self, body: Any) -> Any:
        """Return a body with its calls replaced."""
        entries = [
            (tirx.For, self._loop),
            (s_tir.SBlock, self._block),
            (tirx.BufferStore, self._store),
            (tirx.Mul, self.product),
            (tirx.Add, self.sum),
            (tvm.ir.Call, self.call),
        ]
        return tvm_ffi.structural_mutate(body, entries)

    def _loop(self, loop: Value, mutator: Any) -> Value:
        before = self._elements
        made = mutator.default_mutate(loop)
        if made.kind != tirx.ForKind.VECTORIZED or self._elements == before:
            return made
        return tirx.For(made.loop_var, made.min, made.extent, tirx.ForKind.SERIAL, made.body)

    def _block(self, block: Value, mutator: Any) -> Value:
        self._blocks.append([])
        made = mutator.default_mutate(block)
        own = self._blocks.pop()
        if not own:
            return made
        allocated = [*made.alloc_buffers, *own]
        fields = (made.iter_vars, made.reads, made.writes, made.name_hint, made.body, made.init)
        return s_tir.SBlock(*fields, allocated, made.match_buffers, made.annotations)

    def _store(self, store: Value, mutator: Any) -> Value:
        self._stores = []
        made = mutator.default_mutate(store)
        before, self._stores = self._stores, None
        return tirx.SeqStmt([*before, made]) if before else made

    def function(self, call: Value) -> Value:
        """Replace a call; tests for NaN compare bits, which vectors have."""
        if getattr(call.op, "name", "") == "tirx.isnan" and is_float32(call.args[0]):
            bits = tirx.reinterpret("int32", call.args[0])
            return tirx.bitwise_and(bits, 0x7FFFFFFF) > tirx.const(INFINITE, "int32")
        return super().function(call)

    def argument(self, x: Value) -> Value | None:
        """Return the argument, from memory if it can be; None if it reads bfloat16 in place, which TVM would get wrong."""
        if self.is_in_place():
            return None if _reads_bfloat16(x) else x
        return self.held(x)

    def is_in_place(self) -> bool:
        return self.conditions > 0 or self._stores is None or not self._blocks

    def held(self, expression: Value) -> Value:
        if self._stores is None or self.is_in_place():
            return expression
        element: Any = tirx.decl_buffer((1,), "float32", "held", scope="local")
        self._blocks[-1].append(element)
        self._elements += 1
        self._stores.append(tirx.BufferStore(element, expression, [0]))
        return tirx.BufferLoad(element, [0])


def _reads_bfloat16(x: Value) -> bool:
    found = False

    def visited(load: Value) -> None:
        nonlocal found
        found = found or str(load.ty.dtype) == "bfloat16"

    tvm_ffi.structural_walk(x, [(tvm.ir.TensorLoad, visited)])
    return found
