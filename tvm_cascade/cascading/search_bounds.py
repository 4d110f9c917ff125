"""`bounds`: proven lower bounds of what the planner searches, by rings of rows and by rings of pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.search_cache import searches
from tvm_cascade.graph import Graph

_DEFAULTS = PlanOptions()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds in bytes on the arena of plans without recompute, for rings of rows and for rings of pixels."""

    rows: int
    pixels: int  # single pixels, where columns are known


def bounds(graph: Graph, options: PlanOptions = _DEFAULTS) -> Bounds:
    """Compute proven lower bounds of the search space; assumes that pixel kernels exist (`options.pixels` is ignored).

    Raises `SearchStopped` if a limit strikes first.
    """
    by_rows = replace(options, granularity="row", max_macs=1.0)
    by_pixels = replace(options, granularity="auto", pixels=True, max_macs=1.0)
    return Bounds(searches(graph, by_rows)[0].bound, searches(graph, by_pixels)[0].bound)
