"""The Relax pipeline "cascade": `tvm.compile(mod, target, relax_pipeline="cascade")` builds the planned program.

    rewrite     on request, an equivalent network of less latency where a model promises one
    lower       quantized operators become integer operators                           (`passes.LowerQuantized`)
    cascade     static regions become calls of planned programs, also those of an equivalent network of a smaller arena
                                                                                       (`passes.Cascade`)
    build       TVM's default pipeline builds the module

With `objective="latency"` a float network becomes a staged program instead (`passes.ScheduleStages`), on CPUs and on CUDA:
the fastest kernels, tensors laid out for them, and operators at the same time where that pays.

Whatever TVM's default pipeline builds, this one builds too: what it cannot plan it leaves as it is.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule

from tvm_cascade.cores import KernelTarget
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import CascadeError, GraphError, UsageError
from tvm_cascade.messages import last_line
from tvm_cascade.passes.cascade import SUBSTITUTIONS_ATTR, Cascade
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.passes.rewriting import rewrite_for_latency
from tvm_cascade.request import PlanRequest
from tvm_cascade.search_monitor import SearchStopped
from tvm_cascade.staging.kernels.processors import written
from tvm_cascade.staging.program.cpu import threads
from tvm_cascade.staging.program.precision import FP32, PRECISIONS
from tvm_cascade.staging.program.schedule_stages import LowerOptions, ScheduleStages, stage_pipeline

LOG = logging.getLogger("tvm_cascade")
REWRITES = ("memory", "latency", "none")
OBJECTIVES = ("bytes", "latency")
STRICT = "TVM_CASCADE_STRICT"  # environment variable: errors of the passes are raised, in place of a fall-back to TVM


def cascade_pipeline(
    request: PlanRequest | None = None,
    rewrite: str = "memory",
    core: KernelTarget | None = None,
    objective: str = "bytes",
    precision: str = FP32,
    device: str | None = None,
) -> Any:  # a tvm.ir.transform.Pass
    """The Relax pipeline "cascade".

    Parameters
    ----------
    request : PlanRequest, optional
        Options of the plans, with the defaults of the command line; `stream_input` is refused.
    rewrite : str
        "memory" replaces a quantized network, bit for bit, by an equivalent one whose arena is smaller (with
        `request.rewrite` float networks too), as the command line does. "latency" replaces a network by one that is
        faster by the analytic model, where its arena is no larger. "none" replaces nothing.
    core : KernelTarget, optional
        Core and back end that kernels are chosen for; None means the host.
    objective : str
        "bytes": the smallest arena. "latency": a network in float32 runs by stages of least latency by the analytic model,
        on a CPU for as many threads as TVM's pool has, for CUDA as one CUDA graph; `request` is of no use. What cannot be
        read as such a network, and other targets, are built as TVM's default pipeline builds them.
    precision, device : str
        With objective="latency": "fp32", "fp16", "bf16" or "tf32" (`staging.program.precision`); the description of a device by
        which stages are priced, "h200" (`cost.device`), None: the generic one of the target.

    Raises
    ------
    UsageError
        An invalid option; later, when a module is built, `InfeasibleError` where its arenas exceed `request.sram`.
    """
    if rewrite not in REWRITES:
        raise UsageError(f"rewrite={rewrite!r}: give one of {', '.join(REWRITES)}")
    if objective not in OBJECTIVES:
        raise UsageError(f"objective={objective!r}: give one of {', '.join(OBJECTIVES)}")
    if precision not in PRECISIONS:
        raise UsageError(f"precision={precision!r}: give one of {', '.join(PRECISIONS)}")
    if objective != "latency" and (precision, device) != (FP32, None):
        raise UsageError("precision and device are of objective='latency': give that too")
    request = request or PlanRequest()
    cascade = Cascade(request if rewrite == "memory" else replace(request, rewrite=False), core or KernelTarget())

    @tvm.ir.transform.module_pass(opt_level=0, name="tvm_cascade.pipeline")
    def apply(mod: IRModule, _context: tvm.ir.transform.PassContext) -> IRModule:
        if rewrite == "latency":
            mod = _of_less_latency(mod, cascade)
        if objective == "latency":
            return _staged(mod, precision, device)
        return _default_pipeline()(_planned(mod, cascade))

    return apply


def _planned(mod: IRModule, cascade: Cascade) -> IRModule:
    """The module with its static regions planned; as it is where TVM's passes refuse a form of it."""
    try:
        return tvm.ir.transform.Sequential([LowerQuantized(), cascade])(mod)
    except (CascadeError, SearchStopped):
        raise
    except Exception as error:  # TVM's passes have no common class of errors
        _require_refusal(error)
        LOG.warning("everything is left to TVM: %s: %s", type(error).__name__, last_line(error))
        return mod


def _require_refusal(error: Exception) -> None:
    """Raise `error` if `TVM_CASCADE_STRICT` is set and no pass refused the module by a `CascadeError`. For tests: where TVM's
    default pipeline builds the module instead, nobody sees a fault of the passes."""
    if os.environ.get(STRICT) and not isinstance(error, CascadeError):
        raise error


def _of_less_latency(mod: IRModule, cascade: Cascade) -> IRModule:
    """The module with a faster `main`, where one is promised and its arena is no larger."""

    def arena(mod: IRModule) -> int:
        return plan_network(mod, cascade.request, cascade.core).plan.peak

    try:
        done = rewrite_for_latency(mod, arena=arena)
    except Exception as error:
        _require_refusal(error)
        LOG.info("main: no substitutions: %s: %s", type(error).__name__, last_line(error))
        return mod
    return done.mod.with_attr(SUBSTITUTIONS_ATTR, list(done.steps)) if done.steps else mod


def _staged(mod: IRModule, precision: str, device: str | None) -> IRModule:
    """The module as a staged program where it is one float network, else as TVM's default pipeline builds it."""
    target: Any = tvm.target.Target.current(allow_none=True)
    kind: str = "llvm" if target is None else target.kind.name
    functions = [g for g in mod.get_global_vars() if isinstance(mod[g], relax.Function)]
    reason = ""
    if kind not in ("llvm", "cuda"):
        reason = f"stages are for processors and for CUDA, not for {kind}"
    elif len(functions) != 1:
        reason = "stages are of a module of one function"
    if not reason:
        try:
            cores = threads() if kind == "llvm" else None
            model = AnalyticCost(find_device(device or ("cpu" if cores else None), kind, cores), precision)
            staged = ScheduleStages(model=model, lower=_lowered_for(target), precision=precision)
            return tvm.transform.Sequential([staged, stage_pipeline()])(mod)
        except (UsageError, SearchStopped):
            raise
        except Exception as error:  # TVM's passes have no common class of errors
            _require_refusal(error)
            reason = (
                last_line(error) if isinstance(error, GraphError) else f"{type(error).__name__}: {last_line(error)}"
            )
    LOG.info("main: no stages: %s", reason)
    return _default_pipeline()(mod)


def _default_pipeline() -> Any:
    """The pipeline that `tvm.compile` takes by default for the current target: with schedules for GPUs, without for others."""
    target: Any = tvm.target.Target.current(allow_none=True)
    if target is not None and "gpu" in target.keys:
        try:
            return relax.get_default_pipeline(target)
        except (ValueError, AttributeError):  # a GPU that TVM has no pipeline for
            pass
    return relax.get_pipeline("default_build")


def _lowered_for(target: Any) -> LowerOptions:
    """How a program for a target is lowered; None: for this processor."""
    if target is None:
        return LowerOptions(workers=threads())
    if target.kind.name == "cuda":
        return LowerOptions(f"cuda -arch={target.attrs['arch']}")
    return LowerOptions(written(target), workers=threads())
