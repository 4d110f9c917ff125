"""`plan_graph`, the planner's entry point: a search, then tiles of several rows, then rows at addresses of their own."""

from __future__ import annotations

from tvm_cascade.cascading.layerwise import layerwise
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.planner import cascade
from tvm_cascade.cascading.raise_tile_rows import raise_tile_rows
from tvm_cascade.cascading.row_addresses import or_row_addresses
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph

_DEFAULTS = PlanOptions()


def plan_graph(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """Plan a graph as the options ask, with multi-row tiles where the arena has room for them.

    Raises
    ------
    InfeasibleError
        The arena exceeds `options.sram`.
    """
    if options.layerwise:
        return raise_tile_rows(layerwise(graph, options), options)
    try:
        plan = cascade(graph, options)
        return or_row_addresses(graph, options, plan if options.draft else raise_tile_rows(plan, options))
    except InfeasibleError as error:
        found = or_row_addresses(graph, options, error)
        if isinstance(found, InfeasibleError):
            raise
        return found
