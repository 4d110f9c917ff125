"""`Incremental`: rewrites a network whose window slides into the network of one frame, which takes the new rows alone.

`main(window) -> outputs` becomes `main(new rows, states...) -> (outputs..., states...)`: called with every frame's states as
the frame before left them, it returns the outputs of the whole window, bit for bit on integers, from the first frame on
whose window is full. What a frame keeps and computes is a `tvm_cascade.sliding.FramePlan` (rfc/0019).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import IRModule

from tvm_cascade.errors import UsageError
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.sliding.read import read_sliding
from tvm_cascade.passes.sliding.rewrite import write_frame
from tvm_cascade.sliding import FramePlan, plan_frame


@dataclass(frozen=True)
class FrameModule:
    """The network of one frame."""

    mod: IRModule
    plan: FramePlan
    states: tuple[str, ...]  # names of the last parameters, whose new values are the last results


def frame_module(mod: IRModule, hop: int) -> FrameModule:
    """The network of one frame of `hop` new rows; `mod` is not modified.

    `mod` is a module as imported, before integers are lowered. Raises `UsageError` where no work would be saved, with the
    operator that ends it, and `GraphError` for a network that is not one of a window.
    """
    read = read_sliding(mod["main"])
    plan = plan_frame(read.network, hop)
    refusal = plan.refusal()
    if refusal is not None:
        raise UsageError(f"--hop {hop}: nothing of a frame can be reused in the next: {refusal}")
    written = write_frame(mod, read, plan)
    return FrameModule(written.mod, plan, written.states)


@dataclass(frozen=True)
class Incremental(CascadePass):
    """The pass: `main` becomes the network of one frame of `hop` rows along the first axis after the batch."""

    hop: int = 1

    def call(self, mod: IRModule) -> PassResult:
        return PassResult(frame_module(mod, self.hop).mod, True)
