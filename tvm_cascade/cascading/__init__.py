"""Cascading: operators run stripe by stripe, so that no large intermediate ever exists. `Graph` -> `Plan`."""

from __future__ import annotations

from tvm_cascade.cascading.assemble import offsets_of
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Granularity, Plan, Segment, Storage
from tvm_cascade.cascading.planner import Bounds, baseline_peak, bounds, cascade, frontier, layerwise, plan_graph
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
    "bounds",
    "cascade",
    "frontier",
    "layerwise",
    "offsets_of",
    "plan_graph",
    "validate",
]
