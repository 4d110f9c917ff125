"""Executing staged programs: a stock Relax virtual machine, threads, repeated runs and timings."""

from __future__ import annotations

from tvm_cascade.runtime.cuda import has_cuda, require_cuda
from tvm_cascade.runtime.execute import Session, compile_stages, host_target
from tvm_cascade.staging.program.cpu import threads
from tvm_cascade.staging.program.schedule_stages import stage_pipeline

__all__ = ["Session", "compile_stages", "has_cuda", "host_target", "require_cuda", "stage_pipeline", "threads"]
