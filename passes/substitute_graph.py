"""`SubstituteGraph`: MetaFlow's search (SysML 2019) on the functions of a Relax module.

The functions are read as substitution graphs, searched, and written back with their weights folded. A function that
cannot be read (control flow, symbolic shapes) stays as it is; `Substituted.skipped` gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import GraphError
from tvm_cascade.passes.substitution_read import Read, read_function
from tvm_cascade.passes.substitution_write import write_function
from tvm_cascade.substitution.costs import AnyCost, Latency
from tvm_cascade.substitution.metaflow import Found, Progress, SearchOptions
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.rules import ALL_RULES
from tvm_cascade.substitution.schedule_cost import ScheduleLatency, optimize_schedule
from tvm_cascade.substitution.split import optimize


@dataclass(frozen=True)
class Substituted:
    """A rewritten module and what the search did, by function name."""

    mod: tvm.IRModule
    found: Mapping[str, Found] = field(default_factory=dict)
    read: Mapping[str, Read] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)


def substitute(
    mod: tvm.IRModule,
    cost: AnyCost,
    rules: Sequence[Rule] = ALL_RULES,
    options: SearchOptions | None = None,
    total_seconds: float = 60.0,
    progress: Progress | None = None,
    functions: Callable[[str], bool] = lambda name: True,
) -> Substituted:
    """The module with every readable function replaced by a cheaper one; `mod` stays as it is."""
    made = mod.clone()
    found: dict[str, Found] = {}
    reads: dict[str, Read] = {}
    skipped: dict[str, str] = {}
    for gv, func in list(mod.functions_items()):
        name = gv.name_hint
        if not isinstance(func, relax.Function) or not functions(name):
            continue
        try:
            read = read_function(func)
        except GraphError as error:
            skipped[name] = str(error)
            continue
        if isinstance(cost, ScheduleLatency):
            result = optimize_schedule(read.dag, cost, rules, options, progress, total_seconds)
        else:
            result = optimize(read.dag, cost, rules, options, progress, total_seconds)
        found[name], reads[name] = result, read
        if result.steps:
            made.update_func(gv, write_function(result.dag, read, func.attrs))
    return Substituted(made, found, reads, skipped)


@tvm.transform.module_pass(opt_level=0, name="SubstituteGraph")
class SubstituteGraph:
    """The pass. Without a cost it minimizes latency on the analytic model of the generic device for `target`.

    Requires static shapes. Ensures that results are equal up to the reassociation of floats, and bit for bit where the
    rules are `integer_rules()`. Changes nothing where nothing is gained.
    """

    def __init__(
        self,
        cost: AnyCost | None = None,
        rules: Sequence[Rule] = ALL_RULES,
        options: SearchOptions | None = None,
        target: str = "llvm",
        total_seconds: float = 60.0,
    ) -> None:
        self.cost = cost or Latency("latency", model=AnalyticCost(find_device(None, target)))
        self.rules, self.options, self.total_seconds = tuple(rules), options, total_seconds

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """`mod` rewritten; the argument stays as it is."""
        return substitute(mod, self.cost, self.rules, self.options, self.total_seconds).mod
