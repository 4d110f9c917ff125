"""The equivalent network of less latency, by the analytic model of a device; where nothing is promised the network stays.

Quantized networks only see rules that are exact on integers, so that every bit stays; floats are equal up to reassociation.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.passes.rewriting import MAIN, Rewritten, search_main, unchanged
from tvm_cascade.substitution.costs import TVM, Latency

SECONDS = 20.0  # of a search
GAIN = 0.01  # of the latency promised, relative: less is no reason to change a network


def rewrite_for_latency(
    mod: tvm.IRModule,
    target: str = "llvm",
    device: str | None = None,
    arena: Callable[[tvm.IRModule], int] | None = None,
) -> Rewritten:
    """The equivalent network of less latency, by the analytic model of a device.

    With `arena`, which plans a module and gives its bytes, one whose arena is larger is refused.
    """
    serial = Latency("latency", TVM, model=AnalyticCost(find_device(device, target)))
    if MAIN not in {gv.name_hint for gv in mod.get_global_vars()}:
        return unchanged(mod, 0.0, "ms", "the module has no function main")
    done = search_main(mod, serial, SECONDS)
    if MAIN not in done.found:
        return unchanged(mod, 0.0, "ms", done.skipped[MAIN])
    found = done.found[MAIN]
    if not found.cost_after < found.cost_before * (1 - GAIN):
        return unchanged(mod, found.cost_before, "ms", "no substitution promises a gain")
    if arena is not None and arena(done.mod) > arena(mod):
        return unchanged(mod, found.cost_before, "ms", "the arena of the rewritten network is larger")
    steps = tuple(s.rule for s in found.steps)
    gain = found.cost_before / found.cost_after
    return Rewritten(
        done.mod, steps, found.cost_before, found.cost_after, "ms", f"{gain:.2f} times faster by the model"
    )
