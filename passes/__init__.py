"""Relax passes for memory planning, cascading, integer lowering and graph rewriting; each runs in a `transform.Sequential`.

A pass is imported when first asked for: planning does not wait for the passes of stages and of tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_cascade.lazy import exports
from tvm_cascade.passes.extract_graph import Extracted, extract_graph  # at once: the module has the function's name

if TYPE_CHECKING:
    from tvm_cascade.passes.base import CascadePass, PassResult
    from tvm_cascade.passes.cascade import Cascade
    from tvm_cascade.passes.kernel_tuning import tune_kernels
    from tvm_cascade.passes.lower_quantized import LowerQuantized
    from tvm_cascade.passes.order_ops import OrderOps
    from tvm_cascade.passes.partition_regions import PartitionRegions
    from tvm_cascade.passes.rewrite_for_memory import RewriteForMemory
    from tvm_cascade.passes.shrink_channels import ShrinkChannels
    from tvm_cascade.passes.sliding.incremental import Incremental
    from tvm_cascade.passes.split_channels import SplitChannels
    from tvm_cascade.passes.substitute_graph import SubstituteGraph
    from tvm_cascade.staging.program.schedule_stages import ScheduleStages

__all__ = [
    "Cascade",
    "CascadePass",
    "Extracted",
    "Incremental",
    "LowerQuantized",
    "OrderOps",
    "PartitionRegions",
    "PassResult",
    "RewriteForMemory",
    "ScheduleStages",
    "ShrinkChannels",
    "SplitChannels",
    "SubstituteGraph",
    "extract_graph",
    "tune_kernels",
]

_MODULES = {
    "Cascade": "cascade",
    "CascadePass": "base",
    "Incremental": "sliding.incremental",
    "LowerQuantized": "lower_quantized",
    "OrderOps": "order_ops",
    "PartitionRegions": "partition_regions",
    "PassResult": "base",
    "RewriteForMemory": "rewrite_for_memory",
    "ScheduleStages": "tvm_cascade.staging.program.schedule_stages",
    "ShrinkChannels": "shrink_channels",
    "SplitChannels": "split_channels",
    "SubstituteGraph": "substitute_graph",
    "tune_kernels": "kernel_tuning",
}

__getattr__, __dir__ = exports(__name__, _MODULES)
