"""The Relax pipeline "cascade": `tvm.compile(mod, target, relax_pipeline="cascade")` builds the planned program.

    shrink      channels that quantized networks compute in vain are left out          (`passes.ShrinkChannels`)
    rewrite     on request, an equivalent network of less latency where a model promises one
    stages      functions that compute in float32 become staged programs, on CPUs and on CUDA: the fastest kernels, tensors
                laid out for them, and operators at the same time where that pays      (`ScheduleStages`)
    lower       of all others, quantized operators become integer operators            (`passes.LowerQuantized`)
    cascade     static regions become calls of planned programs, also those of an equivalent network of a smaller arena
                                                                                       (`passes.Cascade`)
    build       TVM's default pipeline builds what has no stages

With a core, a cap or other options of plans nothing is staged; with `objective="latency"` nothing is cascaded.

Everything TVM's default pipeline builds, this pipeline builds too: parts without a plan are left to TVM.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule

from tvm_cascade.cores import KernelTarget
from tvm_cascade.cost import AnalyticCost, Device, device_for, find_device
from tvm_cascade.errors import CascadeError, UsageError
from tvm_cascade.messages import last_line
from tvm_cascade.passes.cascade import PREFIX_ATTR, SUBSTITUTIONS_ATTR, Cascade
from tvm_cascade.passes.join_modules import join_modules
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.passes.rewriting import rewrite_for_latency
from tvm_cascade.passes.shrink_channels import ShrinkChannels
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.tir.nan import choices_for_bounds
from tvm_cascade.search_monitor import SearchStopped
from tvm_cascade.staging.kernels.processors import host_target, written
from tvm_cascade.staging.program.by_function import alone, computes_in_float32, entry_functions
from tvm_cascade.staging.program.cpu import threads
from tvm_cascade.staging.program.precision import FP32, PRECISIONS
from tvm_cascade.staging.program.schedule_stages import LowerOptions, ScheduleStages, stage_pipeline

LOG = logging.getLogger("tvm_cascade")
REWRITES = ("memory", "latency", "none")
OBJECTIVES = ("bytes", "latency")
OBJECTIVE_ATTR = "cascade.objective"  # module attribute: the objective of its functions (`_chosen`)
STRICT = "TVM_CASCADE_STRICT"  # environment variable: errors of the passes are raised, in place of a fall-back to TVM


def cascade_pipeline(
    request: PlanRequest | None = None,
    rewrite: str = "memory",
    core: KernelTarget | None = None,
    objective: str | None = None,
    precision: str = FP32,
    device: str | None = None,
    shrink: bool = True,
) -> Any:  # a tvm.ir.transform.Pass
    """Build the Relax pipeline "cascade".

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
    objective : str, optional
        "bytes": the smallest arena. "latency": a function runs by stages of least latency by the analytic model, on a CPU for
        as many threads as TVM's pool has, for CUDA as one CUDA graph; `request` is of no use. What cannot be read as such a
        network, and other targets, are built as TVM's default pipeline builds them. None decides for every function: one that
        computes in float32 is for latency, all others and what has no stages for bytes; with `core`, `request.sram` or other
        options of plans all are for bytes. The module's attribute `cascade.objective` says which.
    precision, device : str
        With objective="latency": "fp32", "fp16", "bf16" or "tf32" (`staging.program.precision`); the description of a device by
        which stages are priced, "h200" (`cost.device`), None: the target's generic description.
    shrink : bool
        Channels of quantized layers that are constant or that nobody reads are left out (`passes.ShrinkChannels`).

    Raises
    ------
    UsageError
        An invalid option; later, when a module is built, `InfeasibleError` where its arenas exceed `request.sram`.
    """
    if rewrite not in REWRITES:
        raise UsageError(f"rewrite={rewrite!r}: give one of {', '.join(REWRITES)}")
    if objective not in (None, *OBJECTIVES):
        raise UsageError(f"objective={objective!r}: give one of {', '.join(OBJECTIVES)}")
    if precision not in PRECISIONS:
        raise UsageError(f"precision={precision!r}: give one of {', '.join(PRECISIONS)}")
    if objective != "latency" and (precision, device) != (FP32, None):
        raise UsageError("precision and device are of objective='latency': give that too")
    if objective is None and (core is not None or request not in (None, PlanRequest())):
        objective = "bytes"
    request = request or PlanRequest()
    cascade = Cascade(request if rewrite == "memory" else replace(request, rewrite=False), core or KernelTarget())

    @tvm.ir.transform.module_pass(opt_level=0, name="tvm_cascade.pipeline")
    def apply(mod: IRModule, _context: tvm.ir.transform.PassContext) -> IRModule:
        mod = _shrunk(mod) if shrink else mod
        if rewrite == "latency":
            mod = _of_less_latency(mod, cascade)
        staged = {} if objective == "bytes" else _staged(mod, precision, device, floats_alone=objective is None)
        rest = _without(mod, staged)
        if objective != "latency":
            rest = _planned(rest, cascade)
        built = _default_pipeline()(rest) if rest.functions or not staged else rest
        joined = choices_for_bounds()(_joined(staged, built))
        return joined.with_attr(OBJECTIVE_ATTR, _chosen(mod, staged, objective))

    return apply


def _shrunk(mod: IRModule) -> IRModule:
    """Remove dead channels; return the module unchanged if TVM's passes refuse."""
    try:
        return ShrinkChannels()(mod)
    except Exception as error:  # TVM's passes have no common class of errors
        _require_refusal(error)
        LOG.info("no channels are left out: %s: %s", type(error).__name__, last_line(error))
        return mod


def _planned(mod: IRModule, cascade: Cascade) -> IRModule:
    """Plan the module's static regions; return the module unchanged if TVM's passes refuse."""
    try:
        return tvm.ir.transform.Sequential([LowerQuantized(), cascade])(mod)
    except (CascadeError, SearchStopped):
        raise
    except Exception as error:  # TVM's passes have no common class of errors
        _require_refusal(error)
        LOG.warning("everything is left to TVM: %s: %s", type(error).__name__, last_line(error))
        return mod


def _require_refusal(error: Exception) -> None:
    """Raise `error` if `TVM_CASCADE_STRICT` is set and no pass refused the module by a `CascadeError`. For tests: if
    TVM's default pipeline builds the module instead, nobody sees a fault of the passes.
    """
    if os.environ.get(STRICT) and not isinstance(error, CascadeError):
        raise error


def _of_less_latency(mod: IRModule, cascade: Cascade) -> IRModule:
    """Replace `main` by a faster network, if the model promises one with no larger arena."""

    def arena(mod: IRModule) -> int:
        return plan_network(mod, cascade.request, cascade.core).plan.peak

    try:
        done = rewrite_for_latency(mod, arena=arena)
    except Exception as error:
        _require_refusal(error)
        LOG.info("main: no substitutions: %s: %s", type(error).__name__, last_line(error))
        return mod
    return done.mod.with_attr(SUBSTITUTIONS_ATTR, list(done.steps)) if done.steps else mod


def _staged(mod: IRModule, precision: str, device: str | None, floats_alone: bool) -> dict[str, IRModule]:
    """Stage the functions of the module, and return the programs by name. With `floats_alone` stage only functions in
    float32.
    """
    target: Any = tvm.target.Target.current(allow_none=True)
    kind: str = "llvm" if target is None else target.kind.name
    if kind not in ("llvm", "cuda"):
        LOG.info("no stages: they are for processors and for CUDA, not for %s", kind)
        return {}
    if PREFIX_ATTR in dict(mod.attrs or {}):
        LOG.info("no stages: TVM's pass that prefixes names of a system library breaks calls of functions")
        return {}
    model = AnalyticCost(_priced_device(device, kind, target), precision)
    stages = ScheduleStages(model=model, lower=_lowered_for(target), precision=precision)
    staged: dict[str, IRModule] = {}
    for name in entry_functions(mod):
        try:
            own = alone(mod, name)
            if floats_alone and not computes_in_float32(own):
                continue
            staged[name] = stages(own)
        except (UsageError, SearchStopped):
            raise
        except Exception as error:  # TVM's passes have no common class of errors
            _require_refusal(error)
            known = isinstance(error, CascadeError)
            LOG.info("%s: no stages: %s%s", name, "" if known else f"{type(error).__name__}: ", last_line(error))
    return staged


def _priced_device(name: str | None, kind: str, target: Any) -> Device:
    """Describe the device that prices stages: this processor as `doctor --measure` has it, else a built-in description."""
    if kind != "llvm":
        return find_device(name, kind)
    if name is None and (target is None or written(target) == written(host_target())):
        return device_for(None, kind, threads())
    return find_device(name or "cpu", kind, threads())


def _without(mod: IRModule, staged: Mapping[str, IRModule]) -> IRModule:
    """Remove the staged functions; remove all functions if no remaining function has callers outside `mod`."""
    if not staged:
        return mod
    rest = IRModule({gv: f for gv, f in mod.functions.items() if gv.name_hint not in staged}, attrs=mod.attrs)
    return rest if entry_functions(rest) else IRModule({}, attrs=mod.attrs)


def _joined(staged: Mapping[str, IRModule], built: IRModule) -> IRModule:
    """Add the staged programs to `built`, the module lowered by TVM's default pipeline."""
    if not staged:
        return built
    attrs = dict(built.attrs or {})
    programs = stage_pipeline()(
        join_modules(staged, [gv.name_hint for gv in built.get_global_vars()]).with_attrs(attrs)
    )
    return IRModule({**built.functions, **programs.functions}, attrs=built.attrs)


def _chosen(mod: IRModule, staged: Mapping[str, IRModule], objective: str | None) -> str:
    """Describe the objectives of the functions in `mod`: one word, or "NAME=OBJECTIVE, ..." if they differ."""
    chosen = {name: objective or ("latency" if name in staged else "bytes") for name in entry_functions(mod)}
    several = ", ".join(f"{name}={word}" for name, word in sorted(chosen.items()))
    return several if len(set(chosen.values())) > 1 else next(iter(chosen.values()), objective or "bytes")


def _default_pipeline() -> Any:
    """Return the default pipeline of `tvm.compile` for the current target: with schedules for GPUs, without for others."""
    target: Any = tvm.target.Target.current(allow_none=True)
    if target is not None and "gpu" in target.keys:
        try:
            return relax.get_default_pipeline(target)
        except (ValueError, AttributeError):  # a GPU that TVM has no pipeline for
            pass
    return relax.get_pipeline("default_build")


def _lowered_for(target: Any) -> LowerOptions:
    """Return the options for lowering a program to a target; None is this processor."""
    if target is None:
        return LowerOptions(workers=threads())
    if target.kind.name == "cuda":
        return LowerOptions(f"cuda -arch={target.attrs['arch']}")
    return LowerOptions(written(target), workers=threads())
