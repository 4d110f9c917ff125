"""Static arena allocation: offsets for buffers with lifetimes (`Problem` -> `Allocation`), lower bounds and a validator."""

from __future__ import annotations

from tvm_cascade.memory.allocate import AllocateOptions, allocate
from tvm_cascade.memory.bounds import max_live, max_live_step
from tvm_cascade.memory.placement import PlacedPlan, Placement, PlacementProblem
from tvm_cascade.memory.pools import place
from tvm_cascade.memory.problem import Allocation, Buffer, OffsetConstraint, Problem
from tvm_cascade.memory.validate import validate

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
