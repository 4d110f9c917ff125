"""Tensor core intrinsics by the multiplied type, for sums in float32: WMMA fragments, as known to TVM's code for CUDA.

TVM has a library of intrinsics (`tvm.s_tir.tensor_intrin`), none for bfloat16, and parses all 250 on import, which
takes ten seconds and more: these are made on demand. TVM's code for CUDA refuses float32 fragments, needed for TF32:
`tf32_intrinsics` calls a CUDA function that loads operands from shared memory, rounds and multiplies, into fragments of
sums known to TVM.
"""

# TVMScript: names are TVM's, and types are values.
# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportMissingModuleSource=false, reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportUndefinedVariable=false
from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tvm.script import tirx as T

from tvm_cascade.cost.tiles import FRAGMENT

MULTIPLIED = ("float16", "bfloat16")
TF32_FUNCTION = "tvm_cascade_tf32"
_TF32_DEPTH = 8  # of a fragment
_ACCUMULATOR = "wmma.accumulator"
_TF32_SOURCE = "\n" + (Path(__file__).parent / "tf32.cuh").read_text(encoding="utf-8")  # guarded: TVM repeats it


@cache
def fragment_intrinsics(dtype: str, operands: Any, sums: Any) -> dict[str, str]:
    """Make the intrinsics `load_a`, `load_b` (transposed), `init`, `compute`, `store` for a type of `MULTIPLIED`;
    return names.

    Fragments are 16 x 16 x 16. `operands`, `sums`: memory scopes fragments are loaded from and stored to.
    """
    made = {
        "load_a": _load(dtype, operands, "wmma.matrix_a", "row_major"),
        "load_b": _load(dtype, operands, "wmma.matrix_b", "col_major"),
        "init": _init(FRAGMENT),
        "compute": _compute(dtype),
        "store": _store(FRAGMENT, sums),
    }
    return _registered(made, f"{dtype}_{operands}_{sums}")


@cache
def tf32_intrinsics(rows: int, columns: int, depth: int, operands: str, sums: str) -> dict[str, str]:
    """Make the intrinsics `init` and `store` for 16 x 16 fragments of sums, and `compute`; return their names.

    `compute` adds `depth` products to `rows * columns` sums of a warp; the operands lie in the memory scope `operands`,
    in whole fragments.
    """
    made = {
        "init": _init(_TF32_DEPTH),
        "store": _store(_TF32_DEPTH, sums),
        "compute": _tf32_product(rows, columns, depth, operands),
    }
    return _registered(made, f"tf32_{rows}_{columns}_{depth}_{operands}_{sums}")


def _registered(made: dict[str, tuple[Any, Any]], about: str) -> dict[str, str]:
    from tvm.s_tir import TensorIntrin

    names = {name: f"tvm_cascade_{name}_{about}" for name in made}
    for name, pair in made.items():
        TensorIntrin.register(names[name], *pair, override=True)
    return names


def _place(buffer: Any, stride: Any) -> Any:
    """Compute a fragment's number in the enclosing buffer, with rows `stride` elements apart."""
    offset = buffer.elem_offset
    return offset // stride // FRAGMENT * (stride // FRAGMENT) + offset % stride // FRAGMENT


def _load(dtype: str, operands: str, fragments: str, order: str) -> tuple[Any, Any]:
    """Return two functions for loading an operand's fragment: the computation, and the call that performs this."""
    n = FRAGMENT

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (n, n), dtype, align=64, offset_factor=n, scope=operands)
        C = T.match_buffer(c, (n, n), dtype, align=64, offset_factor=n, scope=fragments)
        with T.sblock("root"):
            T.reads(A[0:n, 0:n])
            T.writes(C[0:n, 0:n])
            for i, j in T.grid(n, n):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj]

    @T.prim_func(s_tir=True)
    def call(a: T.handle, c: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = T.match_buffer(a, (n, n), dtype, align=64, offset_factor=n, scope=operands, strides=[a1, a0])
        C = T.match_buffer(c, (n, n), dtype, align=64, offset_factor=n, scope=fragments, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(A[0:n, 0:n])
            T.writes(C[0:n, 0:n])
            source = T.meta_var(A.access_ptr("r", ptr_type=dtype))
            T.evaluate(T.tvm_load_matrix_sync(C.data, n, n, n, _place(C, c1), source, a1, order, dtype="void"))

    return computed, call


def _init(depth: int) -> tuple[Any, Any]:
    """Return computation and call for setting a fragment of sums over `depth` products to zero."""
    n = FRAGMENT

    @T.prim_func(s_tir=True)
    def computed(c: T.handle) -> None:
        C = T.match_buffer(c, (n, n), "float32", align=64, offset_factor=n, scope=_ACCUMULATOR)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:n, 0:n])
            for i, j in T.grid(n, n):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = T.float32(0)

    @T.prim_func(s_tir=True)
    def call(c: T.handle) -> None:
        c1 = T.int32()
        c0 = T.int32()
        C = T.match_buffer(c, (n, n), "float32", align=64, offset_factor=n, scope=_ACCUMULATOR, strides=[c1, c0])
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:n, 0:n])
            T.evaluate(T.tvm_fill_fragment(C.data, n, n, depth, _place(C, c1), T.float32(0), dtype="void"))

    return computed, call


def _compute(dtype: str) -> tuple[Any, Any]:
    """Return computation and call for adding the products of two operand fragments, the second transposed, to sums."""
    n = FRAGMENT
    left, right = "wmma.matrix_a", "wmma.matrix_b"

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (n, n), dtype, align=64, offset_factor=n, scope=left)
        B = T.match_buffer(b, (n, n), dtype, align=64, offset_factor=n, scope=right)
        C = T.match_buffer(c, (n, n), "float32", align=64, offset_factor=n, scope=_ACCUMULATOR)
        with T.sblock("root"):
            T.reads(C[0:n, 0:n], A[0:n, 0:n], B[0:n, 0:n])
            T.writes(C[0:n, 0:n])
            for i, j, k in T.grid(n, n, n):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])

    @T.prim_func(s_tir=True)
    def call(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        b1 = T.int32()
        b0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = T.match_buffer(a, (n, n), dtype, align=64, offset_factor=n, scope=left, strides=[a1, a0])
        B = T.match_buffer(b, (n, n), dtype, align=64, offset_factor=n, scope=right, strides=[b1, b0])
        C = T.match_buffer(c, (n, n), "float32", align=64, offset_factor=n, scope=_ACCUMULATOR, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(C[0:n, 0:n], A[0:n, 0:n], B[0:n, 0:n])
            T.writes(C[0:n, 0:n])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data, _place(C, c1), A.data, _place(A, a1), B.data, _place(B, b1), C.data, _place(C, c1), dtype="void"
                )
            )  # fmt: skip

    return computed, call


def _store(depth: int, sums: str) -> tuple[Any, Any]:
    """Return computation and call for storing a fragment of sums over `depth` products to the memory scope `sums`."""
    n = FRAGMENT

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (n, n), "float32", align=64, offset_factor=n, scope=_ACCUMULATOR)
        C = T.match_buffer(c, (n, n), "float32", align=64, offset_factor=n, scope=sums)
        with T.sblock("root"):
            T.reads(A[0:n, 0:n])
            T.writes(C[0:n, 0:n])
            for i, j in T.grid(n, n):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj]

    @T.prim_func(s_tir=True)
    def call(a: T.handle, c: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = T.match_buffer(a, (n, n), "float32", align=64, offset_factor=n, scope=_ACCUMULATOR, strides=[a1, a0])
        C = T.match_buffer(c, (n, n), "float32", align=64, offset_factor=n, scope=sums, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(A[0:n, 0:n])
            T.writes(C[0:n, 0:n])
            target = T.meta_var(C.access_ptr("w", ptr_type="float32"))
            T.evaluate(
                T.tvm_store_matrix_sync(A.data, n, n, depth, _place(A, a1), target, c1, "row_major", dtype="void")
            )

    return computed, call


def _tf32_product(rows: int, columns: int, depth: int, operands: str) -> tuple[Any, Any]:
    """Return a warp's TF32 product as a tensor intrinsic: the computation, and the call in its place."""
    function = f"{TF32_FUNCTION}<{rows // FRAGMENT}, {columns // FRAGMENT}, {depth // _TF32_DEPTH}>"
    source = _TF32_SOURCE

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (rows, depth), "float32", align=64, offset_factor=4, scope=operands)
        B = T.match_buffer(b, (columns, depth), "float32", align=64, offset_factor=4, scope=operands)
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=16, scope=_ACCUMULATOR)
        with T.sblock("root"):
            T.reads(C[0:rows, 0:columns], A[0:rows, 0:depth], B[0:columns, 0:depth])
            T.writes(C[0:rows, 0:columns])
            for i, j, k in T.grid(rows, columns, depth):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]

    @T.prim_func(s_tir=True)
    def call(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        b1 = T.int32()
        b0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = T.match_buffer(a, (rows, depth), "float32", align=64, offset_factor=4, scope=operands, strides=[a1, a0])
        B = T.match_buffer(b, (columns, depth), "float32", align=64, offset_factor=4, scope=operands, strides=[b1, b0])
        C = T.match_buffer(
            c, (rows, columns), "float32", align=64, offset_factor=16, scope=_ACCUMULATOR, strides=[c1, c0]
        )
        with T.sblock("root"):
            T.reads(C[0:rows, 0:columns], A[0:rows, 0:depth], B[0:columns, 0:depth])
            T.writes(C[0:rows, 0:columns])
            T.evaluate(
                T.cuda.func_call(function, C.data, A.access_ptr("r"), a1, B.access_ptr("r"), b1, source_code=source)
            )

    return computed, call
