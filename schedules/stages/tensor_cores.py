"""Intrinsics of tensor cores by the type that is multiplied: fragments of 16 x 16 x 16, sums in float32.

TVM registers those of float16; those of bfloat16 are made by the same functions of its, as it has no name for them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm_cascade.cost.tiles import FRAGMENT

MULTIPLIED = ("float16", "bfloat16")


@cache
def fragment_intrinsics(dtype: str, operands: Any, sums: Any) -> dict[str, str]:
    """The names of TVM's intrinsics `load_a`, `load_b` (transposed), `init`, `compute` and `store` for a type of `MULTIPLIED`.

    `operands`, `sums`: memory scopes that fragments are loaded from and stored to.
    """
    from tvm.s_tir import TensorIntrin
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
    names = {name: f"tvm_cascade_wmma_{name}_{dtype}_{operands}_{sums}" for name in made}
    for name, pair in made.items():
        TensorIntrin.register(names[name], *pair, override=True)
    return names
