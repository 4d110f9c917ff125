"""Processors as targets for stage kernels: TVM target, and the number of accumulators in the vector registers."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from functools import cache
from typing import Any

import tvm

from tvm_cascade.errors import UsageError
from tvm_cascade.staging.kernels.cpu_compute import LANES
from tvm_cascade.staging.kernels.dots import AVX2, NEON, PLAIN, VNNI, Dot

_REGISTERS = (("avx512f", 32, 64), ("avx", 16, 32), ("neon", 32, 16))  # feature, vector registers, bytes of one
_DOTS = (("avx512vnni", VNNI), ("avx2", AVX2), ("dotprod", NEON))
_FEWEST_REGISTERS = (16, 16)  # of SSE2, and for processors that are not known


def host_target() -> tvm.target.Target:
    """Return the target for this machine's CPU, with all vector instructions."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    kind: dict[str, Any] = {"kind": "llvm"}
    if cpu is not None:
        kind["mcpu"] = str(cpu())
    return tvm.target.Target(kind)


def processor(target: str) -> tvm.target.Target:
    """Return the target for `llvm`: this machine's processor, or another by -mtriple=NAME, -mcpu=NAME and -mattr=+A,+B.

    Raises `UsageError` for other options.
    """
    words = target.split()[1:]
    if not words:
        return host_target()
    options: dict[str, Any] = {"kind": "llvm"}
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("-mtriple", "-mcpu", "-mattr") or not value:
            raise UsageError(
                f"--target '{target}': a folder takes -mtriple=NAME, -mcpu=NAME and -mattr=+A,+B of llvm, not {word}"
            )
        options[name[1:]] = value.split(",") if name == "-mattr" else value
    return tvm.target.Target(options)


def written(target: tvm.target.Target) -> str:
    """Format a target of kind `llvm` as text for `processor`; a target without a model becomes `generic`."""
    attrs: Any = target.attrs
    features = ",".join(map(str, attrs.get("mattr", ())))
    triple = other_triple(target)
    words = ("llvm", *([f"-mtriple={triple}"] if triple else ()), f"-mcpu={attrs.get('mcpu', 'generic')}")
    return " ".join((*words, *([f"-mattr={features}"] if features else ())))


def other_triple(target: tvm.target.Target) -> str:
    """Return the triple of a target for another system than this one; "" for this one's."""
    given, here = (str(t.attrs.get("mtriple", "")) for t in (target, tvm.target.Target({"kind": "llvm"})))
    return "" if given == here else given


@cache
def accumulators(target: str) -> int:
    """Return the most `LANES` float32 vectors in an accumulator tile: three quarters of a processor's vector registers.

    The remaining registers hold the factors. `target`: text for `processor`. Larger tiles are spilled to the stack in
    every step of a reduction, and take four times as long.
    """
    has = tvm.get_global_func("target.target_has_feature", allow_missing=True)
    made = processor(target)
    held = next(((n, size) for name, n, size in _REGISTERS if has is not None and has(name, made)), _FEWEST_REGISTERS)
    return held[0] * held[1] // (4 * LANES) * 3 // 4


@cache
def integer_dot(target: str) -> Dot:
    """Return how a processor multiplies integers and sums up the products."""
    has = tvm.get_global_func("target.target_has_feature", allow_missing=True)
    made = processor(target)
    return next((dot for name, dot in _DOTS if has is not None and has(name, made)), PLAIN)
