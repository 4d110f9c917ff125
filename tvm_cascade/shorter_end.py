"""The suggestion to end a network earlier (`--until`), where its end takes the most RAM and hardly any of its work: in a plan,
and in the refusal where no plan fits a cap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm.ir import IRModule

from tvm_cascade import frontend, pipeline
from tvm_cascade.errors import CascadeError, InfeasibleError
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.extract_graph import Analyses, extract_work
from tvm_cascade.passes.plan_network import lower_integers
from tvm_cascade.report.suggestions import LITTLE_WORK, ends_large, large_ends
from tvm_cascade.request import PlanRequest
from tvm_cascade.search_monitor import monitor
from tvm_cascade.tensor_spec import Cut

_LESS = 0.95  # of the arena: a cut that saves less is not worth the host's work


def plan_or_suggest(
    loaded: pipeline.Loaded, asked: PlanRequest, kernels: KernelSource, progress: Callable[[str], None]
) -> pipeline.Planned:
    """`pipeline.plan`; where nothing fits the cap but the network without its end does, the refusal says where to cut it.

    Raises what that raises.
    """
    try:
        return pipeline.plan(loaded, asked, kernels, progress)
    except InfeasibleError as error:
        end = _end_that_fits(loaded, asked, kernels, error.available)
        if not end:
            raise
        raise InfeasibleError(error.needed, error.available, error.culprits, f"{error.remedy}; or {end}") from None


def shorter_end(loaded: pipeline.Loaded, planned: pipeline.Planned, asked: PlanRequest, kernels: KernelSource) -> str:
    """The sentence that suggests `--until`, with the bytes of the plan that it gives; empty where no cut helps.

    Without a cap only, and where the plan is largest at its end: then the file is cut behind its work, and planned again.
    """
    plan = planned.plan
    if not _may_be_cut(loaded, asked) or planned.options.sram is not None or not ends_large(plan):
        return ""
    names, peak = _without_end(loaded, plan.graph.macs, asked, kernels)
    return _sentence(names, f"{peak} bytes in place of {plan.peak}") if names and peak <= _LESS * plan.peak else ""


def _end_that_fits(loaded: pipeline.Loaded, asked: PlanRequest, kernels: KernelSource, cap: int) -> str:
    """The same where no plan of the whole network fits the cap: empty where that of the shorter one does not either."""
    if not _may_be_cut(loaded, asked):
        return ""
    graph = extract_work(lower_integers(loaded.mod), kernels.analyses)
    if not any(large_ends(graph, cap)):
        return ""
    names, peak = _without_end(loaded, graph.macs, asked, kernels)
    return _sentence(names, f"{peak} bytes, which fits") if names else ""


def _may_be_cut(loaded: pipeline.Loaded, asked: PlanRequest) -> bool:
    return loaded.file is not None and loaded.frame is None and not asked.layerwise and not monitor().over()


def _sentence(names: Sequence[str], arena: str) -> str:
    return (
        f"{frontend.until_option(names)}: an arena of {arena}; your program does the rest, less than "
        f"{LITTLE_WORK:.0%} of the multiply-accumulates"
    )


def _without_end(
    loaded: pipeline.Loaded, macs: int, asked: PlanRequest, kernels: KernelSource
) -> tuple[tuple[str, ...], int]:
    """The tensors of the file behind which there is hardly any of its work, `macs`, and the arena, in bytes, of the network
    that ends there; no tensors where there are none, or that network has no plan."""
    file, request = loaded.file, loaded.request
    assert file is not None
    enough = (1 - LITTLE_WORK) * macs
    try:
        names = frontend.cut_behind_work(
            file,
            request.input_shapes,
            Cut(request.until, request.from_),
            lambda mod: _work(mod, kernels.analyses) < enough,
        )
        if not names:
            return (), 0
        shorter = pipeline.load(file, replace(request, until=names))
        return tuple(names), pipeline.plan(shorter, asked, kernels).plan.peak
    except CascadeError:  # what is left is no network that can be planned
        return (), 0


def _work(mod: IRModule, known: Analyses) -> int:
    """Multiply-accumulates of a module as `frontend.load` returns it."""
    return extract_work(lower_integers(mod), known).macs
