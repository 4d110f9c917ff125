"""Compile a staged module and run it in TVM's Relax virtual machine."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.runtime.cuda import choose_compiler


def host_target() -> tvm.target.Target:
    """The CPU of this machine, with its vector instructions."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    kind: dict[str, Any] = {"kind": "llvm"}
    if cpu is not None:
        kind["mcpu"] = str(cpu())
    return tvm.target.Target(kind)


def stage_pipeline() -> tvm.ir.transform.Pass:
    """Relax passes that lower builtins and shapes of a module of `ScheduleStages`; none of them fuses or plans memory."""
    return tvm.transform.Sequential(
        [
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def compile_stages(mod: tvm.IRModule, target: tvm.target.Target | None = None) -> Any:
    """An executable for `relax.VirtualMachine`; the target defaults to this machine's CPU."""
    target = target or host_target()
    if target.kind.name == "cuda":
        choose_compiler()
    with target:  # TVM compiles CUDA sources for the current target's architecture
        return tvm.compile(mod, target, relax_pipeline=stage_pipeline())


def threads() -> int:
    """Threads of TVM's pool: `TVM_NUM_THREADS`, else what the pool found. Stages run concurrently up to this many."""
    value = os.environ.get("TVM_NUM_THREADS")
    if value:
        return max(1, int(value))
    count = tvm.get_global_func("runtime.NumThreads", allow_missing=True)
    return int(count()) if count is not None else os.cpu_count() or 1


class Session:
    """A compiled module on a device, to be run and timed."""

    def __init__(self, executable: Any, device: Any = None, function: str = "main") -> None:
        self.device = device if device is not None else tvm.cpu()
        self._machine = relax.VirtualMachine(executable, self.device)
        self._function = self._machine[function]

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Outputs as arrays, in order."""
        result = self._function(*(tvm.runtime.tensor(np.ascontiguousarray(x), self.device) for x in inputs))
        return [r.numpy() for r in result] if _is_sequence(result) else [result.numpy()]

    def times_ms(self, inputs: Sequence[np.ndarray], repeats: int, warm_up: int = 3) -> list[float]:
        """Wall-clock milliseconds of `repeats` runs, after `warm_up` runs."""
        held = [tvm.runtime.tensor(np.ascontiguousarray(x), self.device) for x in inputs]
        for _ in range(warm_up):
            self._function(*held)
        self.device.sync()
        times = []
        for _ in range(repeats):
            start = perf_counter()
            self._function(*held)
            self.device.sync()
            times.append((perf_counter() - start) * 1e3)
        return times


def _is_sequence(value: Any) -> bool:
    return not hasattr(value, "numpy")
