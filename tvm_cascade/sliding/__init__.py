"""Incremental inference: what of a network's tensors stays from one window to the next, and what a frame has to compute.

A window of T rows slides by `hop` rows a frame. Most rows of most tensors are those of an earlier frame, some rows further
up. `interiors` finds them from the operators' windows, `plan_frame` keeps them between calls and computes the others,
`validate` replays that on symbols (rfc/0019). TVM is not known here; `passes.sliding` rewrites Relax modules by such a plan.
"""

from tvm_cascade.sliding.frame import FramePlan, SeriesPlan, frame_frontier, plan_frame
from tvm_cascade.sliding.interior import Interior, Reach, interiors
from tvm_cascade.sliding.network import Series, SlidingNetwork, Step

__all__ = [
    "FramePlan",
    "Interior",
    "Reach",
    "Series",
    "SeriesPlan",
    "SlidingNetwork",
    "Step",
    "frame_frontier",
    "interiors",
    "plan_frame",
]
