"""Instructions of processors that multiply integers and add the products up."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.staging.kernels.cpu_compute import LANES


@dataclass(frozen=True, slots=True)
class Dot:
    """How a processor multiplies integers and sums up the products in int32."""

    step: int  # numbers that an instruction multiplies for a sum
    lanes: int  # sums of an instruction
    reads: str = "uint8"  # type of activations that it reads; int8: of these less 128
    intrinsic: str = ""  # name of the tensor intrinsic in `cpu_dots`; empty: loops that LLVM compiles


VNNI = Dot(4, LANES, intrinsic="cascade_dot_vnni")
AVX2 = Dot(2, 8, "int16", "cascade_dot_avx2")
NEON = Dot(4, 4, "int8", "cascade_dot_neon")
PLAIN = Dot(1, LANES)
