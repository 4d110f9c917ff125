"""Products added to a sum, in generic float32 kernels, as a single floating-point instruction.

A C compiler that keeps to C99 does not join products and sums. The instruction rounds twice, as in C99, so results stay
the same.
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.tir import PrimFunc, dtype_of, is_own, tirx, tvm_ffi
from tvm_cascade.schedules.tir.macs import is_mac


def joins_products(target: KernelTarget) -> bool:
    """Return True if a target's kernels gain: LLVM joins products, or vectorizes them, by itself."""
    return target.core.fpu and "float_fpu" in target.core.rules and target.backend == "c"


def with_joined_products(func: PrimFunc) -> PrimFunc:
    """Replace float32 `s = s + a * b` in `func` by a call to the intrinsic `mlaf`."""

    def joined(store: Any) -> Any:
        if dtype_of(store.value) != "float32" or not is_mac(store):
            return store
        own, product = store.value.a, store.value.b
        own, product = (own, product) if is_own(own, store) else (product, own)
        if not isinstance(product, tirx.Mul):  # of another type, and cast
            return store
        return tirx.BufferStore(store.buffer, call("mlaf", product.a, product.b, own), store.indices)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, joined)))
