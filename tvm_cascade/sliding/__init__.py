"""Incremental inference: the parts of tensors that stay from window to window, and the work left to a frame.

A window of T rows slides by `hop` rows a frame. Most rows in most tensors equal rows in an earlier frame, some rows
further up. `interiors` finds them from the operators' windows, `plan_frame` keeps them between calls and computes the
rest, `validate` replays the plan on symbols (rfc/0019). This package does not know TVM; `passes.sliding` rewrites Relax
modules by such a plan.
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
