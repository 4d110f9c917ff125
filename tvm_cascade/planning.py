"""`plan` of the API around the phases of `pipeline`: a machine's name becomes its core, its memories and its clock first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tvm_cascade import pipeline
from tvm_cascade.cores import get_core, kernel_target
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.report.commands import commands_of
from tvm_cascade.request import Request
from tvm_cascade.results import PlanResult
from tvm_cascade.schedules.tuning.tune import with_shipped
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.shorter_end import plan_or_suggest, shorter_end


def plan_model(model: pipeline.Model, request: Request, progress: Callable[[str], None]) -> PlanResult:
    """The plan of a request, described with its whole frontier."""
    from tvm_cascade.boards.machines import on_board, with_core

    started, asked = time.perf_counter(), request
    request = on_board(*with_core(asked))
    target = request.target
    core, counts = kernel_target(target, get_core(target).backend), with_shipped(request.kernels.database)
    loaded = pipeline.load(model, request.load, progress)
    with SearchMonitor(request.plan.time_limit) as limit:
        kernels = KernelSource(core, counts)
        planned = plan_or_suggest(loaded, request.plan.within_ram(), kernels, progress)
        wait = request.plan.flash_wait
        told = pipeline.describe(planned, loaded, started, progress, whole=True, flash=True, flash_wait=wait)
        end = shorter_end(loaded, planned, request.plan.within_ram(), kernels)
        instructions = pipeline.whole_window_instructions(loaded, request.plan, kernels)
    if told.frame is not None and instructions is not None:
        told = replace(told, frame={**told.frame, "whole_estimated_instructions": instructions})
    if end:
        told = replace(told, suggestions=(*told.suggestions, end))
    commands = commands_of(model, asked, told.frontier, told.peak_bytes)
    time_ = request.time
    return replace(told, limited=limit.limited, commands=commands, clock=time_.clock, watts=time_.watts)
