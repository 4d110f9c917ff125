"""The suggestion to end a network earlier (`--until`), where its end takes the most RAM and hardly any of its work."""

from __future__ import annotations

from dataclasses import replace

from tvm.ir import IRModule

from tvm_cascade import frontend, pipeline
from tvm_cascade.errors import CascadeError
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.plan_network import lower_integers
from tvm_cascade.report.suggestions import LITTLE_WORK, ends_large
from tvm_cascade.request import PlanRequest
from tvm_cascade.search_monitor import monitor
from tvm_cascade.tensor_spec import Cut

_LESS = 0.95  # of the arena: a cut that saves less is not worth the host's work


def shorter_end(loaded: pipeline.Loaded, planned: pipeline.Planned, asked: PlanRequest, kernels: KernelSource) -> str:
    """The sentence that suggests `--until`, with the bytes of the plan that it gives; empty where no cut helps.

    Without a cap only, and where the plan is largest at its end: then the file is cut behind its work, and planned again.
    """
    file, plan, request = loaded.file, planned.plan, loaded.request
    if file is None or loaded.frame is not None or asked.layerwise or planned.options.sram is not None:
        return ""
    if monitor().over() or not ends_large(plan):
        return ""
    enough = (1 - LITTLE_WORK) * plan.graph.macs
    try:
        names = frontend.cut_behind_work(
            file, request.input_shapes, Cut(request.until, request.from_), lambda mod: _work(mod) < enough
        )
        if not names:
            return ""
        shorter = pipeline.load(file, replace(request, until=names))
        peak = pipeline.plan(shorter, asked, kernels).plan.peak
    except CascadeError:  # what is left is no network that can be planned
        return ""
    if peak > _LESS * plan.peak:
        return ""
    return (
        f"{frontend.until_option(names)}: an arena of {peak} bytes in place of {plan.peak}; your program does the "
        f"rest, less than {LITTLE_WORK:.0%} of the multiply-accumulates"
    )


def _work(mod: IRModule) -> int:
    """Multiply-accumulates of a module as `frontend.load` returns it."""
    return extract_graph(lower_integers(mod)).graph.macs
