"""Static arena allocation: offsets for buffers with lifetimes (`Problem` -> `Allocation`), lower bounds and a
validator.

Placement in several memories is imported at first use: most plans use a single memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_cascade.lazy import exports
from tvm_cascade.memory.allocate import AllocateOptions, allocate
from tvm_cascade.memory.bounds import max_live, max_live_step
from tvm_cascade.memory.problem import Allocation, Buffer, OffsetConstraint, Problem
from tvm_cascade.memory.validate import validate

if TYPE_CHECKING:
    from tvm_cascade.memory.placement import PlacedPlan, Placement, PlacementProblem
    from tvm_cascade.memory.pools import place

__all__ = [
    "AllocateOptions",
    "Allocation",
    "Buffer",
    "OffsetConstraint",
    "PlacedPlan",
    "Placement",
    "PlacementProblem",
    "Problem",
    "allocate",
    "max_live",
    "max_live_step",
    "place",
    "validate",
]

_MODULES = {"PlacedPlan": "placement", "Placement": "placement", "PlacementProblem": "placement", "place": "pools"}

__getattr__, __dir__ = exports(__name__, _MODULES)
