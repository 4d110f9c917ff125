"""Cascaded (fused, depth-first) execution with rolling buffers: from a `Graph` to a memory `Plan`.

The operators of a segment take turns a few rows or pixels at a time, so no large intermediate tensor is ever whole.
"""

from __future__ import annotations

from tvm_cascade.cascading.assemble import offsets_of
from tvm_cascade.cascading.layerwise import baseline_peak, layerwise
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Granularity, Plan, Segment, Storage
from tvm_cascade.cascading.plan_graph import plan_graph
from tvm_cascade.cascading.planner import cascade, frontier
from tvm_cascade.cascading.schedule_bound import bound_of, schedule_bound
from tvm_cascade.cascading.search_bounds import Bounds, bounds
from tvm_cascade.cascading.search_cache import forget_searches, not_searched
from tvm_cascade.cascading.validate import Replay, validate

__all__ = [
    "Bounds",
    "Granularity",
    "Plan",
    "PlanOptions",
    "Replay",
    "Segment",
    "Storage",
    "baseline_peak",
    "bound_of",
    "bounds",
    "cascade",
    "forget_searches",
    "frontier",
    "layerwise",
    "not_searched",
    "offsets_of",
    "plan_graph",
    "schedule_bound",
    "validate",
]
