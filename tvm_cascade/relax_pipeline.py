"""The Relax pipeline "cascade": `tvm.compile(mod, target, relax_pipeline="cascade")` builds the planned program."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule

from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.passes.cascade import Cascade
from tvm_cascade.passes.rewrite_for_latency import rewrite_for_latency
from tvm_cascade.pipeline import front_phases, graph_of

REWRITTEN_ATTR = "cascade_substitutions"  # of the module: the substitutions that "cascade" made, by name


def cascade_pipeline(options: PlanOptions | None = None, rewrite: bool = True) -> Any:  # a tvm.ir.transform.Pass
    """The Relax pipeline "cascade".

    With `rewrite` the network is first replaced by an equivalent one where the analytic latency promises a gain and the
    arena does not grow (`passes.rewrite_for_latency`).
    """
    chosen = options or PlanOptions()

    @tvm.ir.transform.module_pass(opt_level=0, name="tvm_cascade.pipeline")
    def apply(mod: IRModule, _context: tvm.ir.transform.PassContext) -> IRModule:
        if rewrite:
            made = rewrite_for_latency(mod, arena=lambda m: plan_graph(graph_of(m), chosen).peak)
            mod = made.mod.with_attr(REWRITTEN_ATTR, list(made.steps)) if made.steps else mod
        planned = tvm.ir.transform.Sequential([*front_phases(), Cascade(chosen)])(mod)
        return relax.get_pipeline("default_build")(planned)

    return apply
