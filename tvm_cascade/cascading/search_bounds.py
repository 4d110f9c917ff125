"""`bounds`: proven lower bounds on the planner's results, for row rings and for pixel rings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.search_cache import searches
from tvm_cascade.graph import Graph

_DEFAULTS = PlanOptions()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds in bytes on the arena of plans without recompute, for row rings and for pixel rings."""

    rows: int
    pixels: int  # single pixels, where columns are known


def bounds(graph: Graph, options: PlanOptions = _DEFAULTS) -> Bounds:
    """Compute proven lower bounds of the search space; assumes that pixel kernels exist (`options.pixels` is ignored).

    Raises `SearchStopped` if a limit strikes first.
    """
    by_rows = replace(options, granularity="row", max_macs=1.0)
    by_pixels = replace(options, granularity="auto", pixels=True, max_macs=1.0)
    return Bounds(searches(graph, by_rows)[0].bound, searches(graph, by_pixels)[0].bound)
