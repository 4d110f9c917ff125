"""`SubstituteGraph`: relaxed graph substitution (MetaFlow, SysML 2019) on the functions of a Relax module.

Functions are converted to substitution graphs, searched for cheaper equivalents, and written back with their weights
folded. A function that cannot be converted (control flow, symbolic shapes) is not changed; `Substituted.skipped` has why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tvm
from tvm import relax

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.substitution_read import Read, read_function
from tvm_cascade.passes.substitution_write import write_function
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.substitution.costs import Cost, Latency
from tvm_cascade.substitution.metaflow import SearchOptions, SearchResult
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.rules import ALL_RULES
from tvm_cascade.substitution.split import optimize


@dataclass(frozen=True)
class Substituted:
    """A module and, by function name, the outcome of the search."""

    source: tvm.IRModule  # before the search
    results: Mapping[str, SearchResult] = field(default_factory=dict)
    read: Mapping[str, Read] = field(default_factory=dict)  # the graphs before the search
    skipped: Mapping[str, str] = field(default_factory=dict)  # reasons why functions were not searched

    @cached_property
    def mod(self) -> tvm.IRModule:
        """Return the rewritten module, written at first use."""
        rewritten = self.source.clone()
        for gv, func in list(self.source.functions_items()):
            found = self.results.get(gv.name_hint)
            if found is not None and found.steps:
                rewritten.update_func(gv, write_function(found.dag, self.read[gv.name_hint], func.attrs))
        return rewritten


def substitute(
    mod: tvm.IRModule,
    cost: Cost,
    rules: Sequence[Rule] = ALL_RULES,
    options: SearchOptions | None = None,
    functions: Callable[[str], bool] = lambda name: True,
) -> Substituted:
    """Replace functions in a copy of `mod` by the cheapest equivalents found under `cost`.

    Only functions with a name accepted by the predicate `functions` are searched.
    """
    results: dict[str, SearchResult] = {}
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
        own: Callable[..., SearchResult] | None = getattr(cost, "search", None)
        result = optimize(read.dag, cost, rules, options) if own is None else own(read.dag, rules, options)
        results[name], reads[name] = result, read
    return Substituted(mod, results, reads, skipped)


@dataclass(frozen=True)
class SubstituteGraph(CascadePass):
    """Replace every function by an equivalent one of lower cost, found by backtracking search over substitution rules.

    Works on every module: functions that cannot be converted, or have no cheaper equivalent in the search, do not
    change. Ensures that results are equal up to the reassociation of floats, and bit for bit if the rules are
    `integer_rules()`.

    Before, where a single convolution of both kernels costs less than two::

        a = R.nn.conv2d(x, v)
        b = R.nn.conv2d(x, w)

    After (rule `fuse_convs`), the two kernels concatenated when the module is compiled::

        ab = R.nn.conv2d(x, vw)
        parts = R.split(ab, 2, axis=1)
        a = parts[0]
        b = parts[1]
    """

    cost: Cost | None = None  # None: latency by the analytic model of the generic device for `target`
    rules: Sequence[Rule] = ALL_RULES
    options: SearchOptions | None = None  # of the search; None: the defaults
    target: str = "llvm"
    time_limit: float | None = None  # seconds, after which the best graphs so far are taken; None: no limit

    def call(self, mod: tvm.IRModule) -> PassResult:
        """Rewrite the module's functions."""
        cost = self.cost or _predicted_latency(self.target)
        with SearchMonitor(self.time_limit):
            done = substitute(mod, cost, tuple(self.rules), self.options)
        return PassResult(done.mod, any(f.steps for f in done.results.values()))


def _predicted_latency(target: str) -> Cost:
    from tvm_cascade.cost import AnalyticCost, find_device  # plans of less memory price no latency

    return Latency("latency", model=AnalyticCost(find_device(None, target)))
