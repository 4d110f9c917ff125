"""Intrinsics of tensor cores by what is multiplied, for sums in float32.

TVM registers WMMA fragments of float16. Those of bfloat16 are made by the same functions of its, as it has no name for
them. Its code for CUDA refuses fragments of float32, which TF32 is made of: `tf32_intrinsics` calls a CUDA function that
loads them from shared memory, rounds them and multiplies, into fragments of sums that TVM knows.
"""

# TVMScript: names are TVM's, and types are values.
# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportMissingModuleSource=false, reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportUndefinedVariable=false
from __future__ import annotations

from functools import cache
from typing import Any

from tvm.script import tirx as T

from tvm_cascade.cost.tiles import FRAGMENT

MULTIPLIED = ("float16", "bfloat16")
TF32_FUNCTION = "tvm_cascade_tf32"
_TF32_DEPTH = 8  # of a fragment
_TF32_SOURCE = (  # guarded, as TVM brings it along for each of its instances
    """
#ifndef TVM_CASCADE_TF32
#define TVM_CASCADE_TF32
template <int ROWS, int COLUMNS, int DEPTH, typename Sums>
__forceinline__ __device__ void """
    + TF32_FUNCTION
    + """(Sums* sums, float* a, int a_stride, float* b, int b_stride) {
  namespace wmma = nvcuda::wmma;
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> left[ROWS];
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> right[COLUMNS];
#pragma unroll
  for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      wmma::load_matrix_sync(left[i], a + i * 16 * a_stride + k * 8, a_stride);
#pragma unroll
      for (int e = 0; e < left[i].num_elements; ++e) left[i].x[e] = wmma::__float_to_tf32(left[i].x[e]);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      wmma::load_matrix_sync(right[j], b + j * 16 * b_stride + k * 8, b_stride);
#pragma unroll
      for (int e = 0; e < right[j].num_elements; ++e) right[j].x[e] = wmma::__float_to_tf32(right[j].x[e]);
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j)
        wmma::mma_sync(sums[i * COLUMNS + j], left[i], right[j], sums[i * COLUMNS + j]);
  }
}
#endif
"""
)


@cache
def fragment_intrinsics(dtype: str, operands: Any, sums: Any) -> dict[str, str]:
    """The names of TVM's intrinsics `load_a`, `load_b` (transposed), `init`, `compute` and `store` for a type of `MULTIPLIED`,
    in fragments of 16 x 16 x 16.

    `operands`, `sums`: memory scopes that fragments are loaded from and stored to.
    """
    from tvm.s_tir.tensor_intrin import cuda

    if dtype == "float16":
        return cuda.get_wmma_intrin_group(operands, sums, dtype, "float32", True)
    m = n = k = FRAGMENT
    made = {
        "load_a": cuda.get_wmma_load_intrin(m, n, k, dtype, operands, False, False),
        "load_b": cuda.get_wmma_load_intrin(m, n, k, dtype, operands, True, True),
        "init": cuda.get_wmma_fill_intrin(m, n, k, "float32"),
        "compute": cuda.get_wmma_sync_intrin(m, n, k, dtype, "float32", True),
        "store": cuda.get_wmma_store_intrin(m, n, k, "float32", sums),
    }
    return _registered(made, f"{dtype}_{operands}_{sums}")


@cache
def tf32_intrinsics(rows: int, columns: int, depth: int, operands: str, sums: str) -> dict[str, str]:
    """The names of `init` and `store` for fragments of sums, 16 x 16, and of `compute`: `rows * columns` sums of `depth` products
    of a warp, whose operands lie in memory of the scope `operands`, rows and columns of them in whole fragments."""
    from tvm.s_tir.tensor_intrin import cuda

    made = {
        "init": cuda.get_wmma_fill_intrin(FRAGMENT, FRAGMENT, _TF32_DEPTH, "float32"),
        "store": cuda.get_wmma_store_intrin(FRAGMENT, FRAGMENT, _TF32_DEPTH, "float32", sums),
        "compute": _tf32_product(rows, columns, depth, operands),
    }
    return _registered(made, f"tf32_{rows}_{columns}_{depth}_{operands}_{sums}")


def _registered(made: dict[str, tuple[Any, Any]], about: str) -> dict[str, str]:
    from tvm.s_tir import TensorIntrin

    names = {name: f"tvm_cascade_{name}_{about}" for name in made}
    for name, pair in made.items():
        TensorIntrin.register(names[name], *pair, override=True)
    return names


def _tf32_product(rows: int, columns: int, depth: int, operands: str) -> tuple[Any, Any]:
    """What the intrinsic computes, and the call that computes it."""
    function = f"{TF32_FUNCTION}<{rows // FRAGMENT}, {columns // FRAGMENT}, {depth // _TF32_DEPTH}>"
    source = _TF32_SOURCE

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (rows, depth), "float32", align=64, offset_factor=4, scope=operands)
        B = T.match_buffer(b, (columns, depth), "float32", align=64, offset_factor=4, scope=operands)
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=16, scope="wmma.accumulator")
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
            c, (rows, columns), "float32", align=64, offset_factor=16, scope="wmma.accumulator", strides=[c1, c0]
        )
        with T.sblock("root"):
            T.reads(C[0:rows, 0:columns], A[0:rows, 0:depth], B[0:columns, 0:depth])
            T.writes(C[0:rows, 0:columns])
            T.evaluate(
                T.cuda.func_call(function, C.data, A.access_ptr("r"), a1, B.access_ptr("r"), b1, source_code=source)
            )

    return computed, call
