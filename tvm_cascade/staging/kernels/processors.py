"""Processors as targets of stage kernels: their TVM target, and how many accumulators their vector registers hold."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from functools import cache
from typing import Any

import tvm

from tvm_cascade.errors import UsageError
from tvm_cascade.staging.kernels.cpu_compute import LANES

_REGISTERS = (("avx512f", 32, 64), ("avx", 16, 32), ("neon", 32, 16))  # feature, vector registers, bytes of one
_FEWEST_REGISTERS = (16, 16)  # of SSE2, and for processors that are not known


def host_target() -> tvm.target.Target:
    """The CPU of this machine, with its vector instructions."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    kind: dict[str, Any] = {"kind": "llvm"}
    if cpu is not None:
        kind["mcpu"] = str(cpu())
    return tvm.target.Target(kind)


def processor(target: str) -> tvm.target.Target:
    """The target `llvm`: this machine's processor, or another one of its family by -mcpu=NAME and -mattr=+A,+B.

    Raises `UsageError` for other options: what is built for a processor is linked for this system.
    """
    words = target.split()[1:]
    if not words:
        return host_target()
    options: dict[str, Any] = {"kind": "llvm"}
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("-mcpu", "-mattr") or not value:
            raise UsageError(f"--target '{target}': a folder takes -mcpu=NAME and -mattr=+A,+B of llvm, not {word}")
        options[name[1:]] = value.split(",") if name == "-mattr" else value
    return tvm.target.Target(options)


def written(target: tvm.target.Target) -> str:
    """A target of the kind `llvm` as text that `processor` reads; without a model it is the family's `generic` one."""
    attrs: Any = target.attrs
    features = ",".join(map(str, attrs.get("mattr", ())))
    return f"llvm -mcpu={attrs.get('mcpu', 'generic')}" + (f" -mattr={features}" if features else "")


@cache
def accumulators(target: str) -> int:
    """The most vectors of `LANES` float32 of an accumulator tile: three quarters of the vector registers of a processor.

    The others hold what is multiplied. `target`: as `processor` reads it. A tile that takes more registers than there are
    is spilled to the stack in every step of a reduction, and takes four times as long.
    """
    has = tvm.get_global_func("target.target_has_feature", allow_missing=True)
    made = processor(target)
    held = next(((n, size) for name, n, size in _REGISTERS if has is not None and has(name, made)), _FEWEST_REGISTERS)
    return held[0] * held[1] // (4 * LANES) * 3 // 4
