"""`Incremental`: rewrites a network with a sliding window into the network of a frame, which takes only the new rows.

`main(window) -> outputs` becomes `main(new rows, states...) -> (outputs..., states...)`: called for every frame with
the states left by the previous frame, it returns the whole window's outputs, bit for bit on integers, from the first
frame with a full window on. The kept and computed rows are a `tvm_cascade.sliding.FramePlan` (rfc/0019).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import IRModule

from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.sliding.read import read_sliding
from tvm_cascade.passes.sliding.rewrite import write_frame
from tvm_cascade.sliding import FramePlan, frame_frontier, plan_frame

_MOST_WORK = 1.1  # of the least work: rows kept to save less are computed again


@dataclass(frozen=True)
class FrameModule:
    """The network of a frame."""

    mod: IRModule
    plan: FramePlan
    states: tuple[str, ...]  # names of the last parameters, whose new values are the last results


def frame_module(mod: IRModule, hop: int, most_state: int | None = None, axis: int = 1) -> FrameModule:
    """Rewrite a network to process a frame of `hop` new rows along an input axis, with the fewest bytes kept for a tenth
    more than the least work; with `most_state`, with the least work that keeps no more bytes.

    `mod` is a module as imported, before integers are lowered; it is not modified. Raises `UsageError` if no work would
    be saved, with the responsible operator, `GraphError` for a network without a window, and `InfeasibleError` if every
    plan keeps more bytes.
    """
    read = read_sliding(mod["main"], axis)
    plan = plan_frame(read.network, hop)
    refusal = plan.refusal()
    if refusal is not None:
        why = f"--hop {hop}: nothing of a frame can be reused in the next: {refusal.reason}"
        raise UsageError(why, refusal.operators)
    plans = frame_frontier(read.network, hop)
    if most_state is None:
        plan = [p for p in plans if sum(p.work) <= _MOST_WORK * sum(plan.work)][-1]
    else:
        plan = next((p for p in plans if p.state_bytes <= most_state), None)
        if plan is None:
            culprit = read.network.series[read.network.input].name
            raise InfeasibleError(plans[-1].state_bytes, most_state, [culprit], "raise --hop-state")
    written = write_frame(mod, read, plan)
    return FrameModule(written.mod, plan, written.states)


@dataclass(frozen=True)
class Incremental(CascadePass):
    """The pass: `main` becomes the network of a frame of `hop` rows along an axis, by default the first after the
    batch.
    """

    hop: int = 1
    axis: int = 1

    def call(self, mod: IRModule) -> PassResult:
        return PassResult(frame_module(mod, self.hop, axis=self.axis).mod, True)
