"""Tensor intrinsics of x86 and 64-bit Arm for products of integers (`cpu_integer`): their meaning, and the instruction.

To be imported where they are used: TVMScript reads the source of this module.
"""

# Types of TVMScript are expressions.
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

from functools import cache

from tvm import s_tir
from tvm.script import tirx as T

from tvm_cascade.staging.kernels.dots import AVX2, NEON, VNNI


@T.prim_func(s_tir=True)
def _vnni_meaning(
    a: T.Buffer((4,), "uint8", offset_factor=1),
    b: T.Buffer((16, 4), "int8", offset_factor=1),
    c: T.Buffer((16,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(c[0:16], a[0:4], b[0:16, 0:4])
        T.writes(c[0:16])
        for i, k in T.grid(16, 4):
            with T.sblock("update"):
                vi, vk = T.axis.remap("SR", [i, k])
                c[vi] = c[vi] + T.cast(a[vk], "int32") * T.cast(b[vi, vk], "int32")


@T.prim_func(s_tir=True)
def _vnni(
    a: T.Buffer((4,), "uint8", offset_factor=1),
    b: T.Buffer((16, 4), "int8", offset_factor=1),
    c: T.Buffer((16,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(c[0:16], a[0:4], b[0:16, 0:4])
        T.writes(c[0:16])
        four = T.reinterpret(a.vload([0], "uint8x4"), dtype="int32")
        c[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
            c.vload([0], "int32x16"),
            T.reinterpret(T.broadcast(four, 16), dtype="uint8x64"),
            b.vload([0, 0], dtype="int8x64"),
            dtype="int32x16",
        )


@T.prim_func(s_tir=True)
def _avx2_meaning(
    a: T.Buffer((2,), "int16", offset_factor=1),
    b: T.Buffer((8, 2), "int8", offset_factor=1),
    c: T.Buffer((8,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(c[0:8], a[0:2], b[0:8, 0:2])
        T.writes(c[0:8])
        for i, k in T.grid(8, 2):
            with T.sblock("update"):
                vi, vk = T.axis.remap("SR", [i, k])
                c[vi] = c[vi] + T.cast(a[vk], "int32") * T.cast(b[vi, vk], "int32")


@T.prim_func(s_tir=True)
def _avx2(
    a: T.Buffer((2,), "int16", offset_factor=1),
    b: T.Buffer((8, 2), "int8", offset_factor=1),
    c: T.Buffer((8,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(c[0:8], a[0:2], b[0:8, 0:2])
        T.writes(c[0:8])
        two = T.reinterpret(a.vload([0], "int16x2"), dtype="int32")
        c[T.ramp(T.int32(0), 1, 8)] = c.vload([0], "int32x8") + T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx2.pmadd.wd"),
            T.reinterpret(T.broadcast(two, 8), dtype="int16x16"),
            T.cast(b.vload([0, 0], dtype="int8x16"), "int16x16"),
            dtype="int32x8",
        )


@T.prim_func(s_tir=True)
def _neon_meaning(
    a: T.Buffer((4,), "int8", offset_factor=1),
    b: T.Buffer((4, 4), "int8", offset_factor=1),
    c: T.Buffer((4,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(c[0:4], a[0:4], b[0:4, 0:4])
        T.writes(c[0:4])
        for i, k in T.grid(4, 4):
            with T.sblock("update"):
                vi, vk = T.axis.remap("SR", [i, k])
                c[vi] = c[vi] + T.cast(a[vk], "int32") * T.cast(b[vi, vk], "int32")


@T.prim_func(s_tir=True)
def _neon(
    a: T.Buffer((4,), "int8", offset_factor=1),
    b: T.Buffer((4, 4), "int8", offset_factor=1),
    c: T.Buffer((4,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(c[0:4], a[0:4], b[0:4, 0:4])
        T.writes(c[0:4])
        four = T.reinterpret(a.vload([0], "int8x4"), dtype="int32")
        c[T.ramp(T.int32(0), 1, 4)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.sdot"),
            c.vload([0], "int32x4"),
            T.reinterpret(T.broadcast(four, 4), dtype="int8x16"),
            b.vload([0, 0], dtype="int8x16"),
            dtype="int32x4",
        )


@cache
def register() -> None:
    """Register the intrinsics by the names of `cpu_integer`."""
    for dot, meaning, instruction in (
        (VNNI, _vnni_meaning, _vnni),
        (AVX2, _avx2_meaning, _avx2),
        (NEON, _neon_meaning, _neon),
    ):
        s_tir.TensorIntrin.register(dot.intrinsic, meaning, instruction)
