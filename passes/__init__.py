"""Relax passes for memory planning, cascading, integer lowering and graph rewriting; each runs in a `transform.Sequential`."""

from __future__ import annotations

from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.cascade import Cascade
from tvm_cascade.passes.extract_graph import Extracted, extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.order_ops import OrderOps
from tvm_cascade.passes.partition_regions import PartitionRegions
from tvm_cascade.passes.rewrite_for_memory import RewriteForMemory
from tvm_cascade.passes.schedule_stages import ScheduleStages
from tvm_cascade.passes.split_channels import SplitChannels
from tvm_cascade.passes.substitute_graph import SubstituteGraph
from tvm_cascade.passes.tune_kernels import tune_kernels

__all__ = [
    "Cascade",
    "CascadePass",
    "Extracted",
    "LowerQuantized",
    "OrderOps",
    "PartitionRegions",
    "PassResult",
    "RewriteForMemory",
    "ScheduleStages",
    "SplitChannels",
    "SubstituteGraph",
    "extract_graph",
    "tune_kernels",
]
