"""dlight's default schedules for CUDA, and their targets.

A dlight rule that raises on a kernel, as GEMV does on a single token's attention, counts as not applicable: the next
rule is asked, and the logger `tvm_cascade` tells.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false
from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from tvm_cascade.errors import GraphError, UsageError
from tvm_cascade.staging.kernels.tensor_cores import TF32_FUNCTION

LOG = logging.getLogger("tvm_cascade")
# dlight's kernels on tensor cores take 72 KiB of shared memory; this architecture has 64 KiB at most
_LITTLE_SHARED_MEMORY = ("sm_75",)


def architecture_of(target: str) -> str:
    """Return the architecture in a target such as `cuda -arch=sm_90`. Raises `UsageError` if missing or malformed."""
    given = next((w.split("=", 1)[1] for w in target.split() if w.startswith("-arch=")), "")
    if re.fullmatch(r"sm_\d+[af]?", given) is None:
        said = f"{given} is no architecture" if given else f"'{target}' has no architecture"
        raise UsageError(f"{said}: give one, as in --arch sm_90 or the target 'cuda -arch=sm_90'")
    return given


def cuda_target(target: str) -> tvm.target.Target:
    """Return TVM's target for text such as `cuda -arch=sm_90`. Raises `UsageError` without an architecture."""
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    host = tvm.target.Target("llvm")
    return tvm.target.Target({"kind": "cuda", "arch": architecture_of(target), **limits}, host=host)


def schedule_cuda(mod: tvm.IRModule, target: str) -> tvm.IRModule:
    """Schedule every unscheduled kernel by our rules, else by the first of dlight's rules that applies.

    Raises `GraphError` for a kernel without an applicable rule.
    """
    from tvm.s_tir import dlight  # slow to import

    from tvm_cascade.staging.kernels.cuda_attention import Attention
    from tvm_cascade.staging.kernels.cuda_elements import Elements
    from tvm_cascade.staging.kernels.cuda_product import Product

    if architecture_of(target) in _LITTLE_SHARED_MEMORY:
        mod = tvm.IRModule({var: _without_tensor_cores(mod[var]) for var in mod.get_global_vars()})
    gpu: Any = dlight.gpu
    rules = [
        _Guarded(rule()) for rule in (Elements, gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Fallback)
    ]
    with cuda_target(target), frames_without_files_known():
        apply: Any = dlight.ApplyDefaultSchedule(Attention(), Product(), *rules)
        made = apply(mod)
    for rule in rules:
        rule.tell()
    for var, func in made.functions.items():
        if isinstance(func, tvm.tirx.PrimFunc) and not (func.attrs or {}).get("tirx.is_scheduled"):
            raise GraphError(
                f"the kernel {var.name_hint} has no schedule for CUDA", "leave it out with --until", [var.name_hint]
            )
    return made


@contextmanager
def frames_without_files_known() -> Iterator[None]:
    """Set, while the context lasts, the modules `inspect` would look up for stack frames without a source file.

    dlight imports TVM's 248 intrinsics for tensor cores; parsing each looks at the stack, and for such a frame
    `inspect` asks all modules for their files. Without this context the import takes a minute of processor time.
    """
    names = {f"<frozen {name}>": name for name in ("importlib._bootstrap", "importlib._bootstrap_external")}
    frame = inspect.currentframe()
    while frame is not None:
        if not Path(frame.f_code.co_filename).exists():
            names[frame.f_code.co_filename] = str(frame.f_globals.get("__name__"))
        frame = frame.f_back
    known: dict[str, str] = getattr(inspect, "modulesbyfile", {})
    added = {file: name for file, name in names.items() if file not in known}
    known |= added
    try:
        yield
    finally:
        for file in added:
            known.pop(file, None)


def _without_tensor_cores(func: Any) -> Any:
    """Mark a function so that dlight schedules without tensor cores."""
    return func.with_attr("dlight.do_not_tensorize", True) if isinstance(func, tvm.tirx.PrimFunc) else func


def on_tensor_cores(func: Any) -> bool:
    """Test whether a scheduled kernel, a PrimFunc, multiplies on tensor cores."""
    found = False

    def called(call: tvm.ir.Call) -> None:
        nonlocal found
        name = getattr(call.op, "name", "")
        found = found or name == "tirx.tvm_mma_sync"
        found = found or (name == "tirx.cuda.func_call" and str(call.args[0]).strip('"').startswith(TF32_FUNCTION))

    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, called))
    return found


class _Guarded:
    """A dlight rule with failures noted instead of raised."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule
        self._failed: list[str] = []

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        """Apply the guarded rule (dlight's interface): a schedule, or None if the rule does not apply, or failed."""
        try:
            return self._rule.apply(func, target, tunable)
        except Exception as error:  # assertions, and whatever TVM raises of a schedule
            lines = str(error).strip().splitlines() or [""]
            self._failed.append(f"{type(error).__name__} {lines[0][:120]}".strip())
            return None

    def tell(self) -> None:
        """Log how many kernels the rule failed on, if any."""
        if self._failed:
            name, many = type(self._rule).__name__, len(self._failed)
            LOG.info(
                "dlight's rule %s failed on %d kernels (%s): other rules scheduled them", name, many, self._failed[0]
            )
