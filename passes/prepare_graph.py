"""`prepare_graph`: extracts the operator graph of a lowered module and selects a kernel per operator for a target core."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tvm.ir import IRModule

from tvm_cascade.cascading import Plan
from tvm_cascade.cores import KernelTarget
from tvm_cascade.cores.work import Work
from tvm_cascade.errors import about
from tvm_cascade.graph import Graph, KernelFootprints, Op
from tvm_cascade.passes.choose_variants import choose_variants, tensors_of
from tvm_cascade.passes.extract_graph import Analyses, Extracted, analyse, with_kernels
from tvm_cascade.passes.fuse_dynamic_layers import fuse_dynamic_layers
from tvm_cascade.passes.fuse_elementwise import fuse_elementwise
from tvm_cascade.passes.fuse_float_layers import fuse_float_layers
from tvm_cascade.passes.keep_stored import keep_stored
from tvm_cascade.passes.relax_ops import read_function
from tvm_cascade.passes.shared_estimates import SharedEstimates
from tvm_cascade.passes.small_weights import has_small_weights, small_floats_of
from tvm_cascade.passes.staged_reads import with_staged
from tvm_cascade.passes.states import state_count, with_states
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.forms.choose import footprints_of, kernels_of_plan
from tvm_cascade.schedules.forms.form import Site
from tvm_cascade.schedules.forms.pixels import pixel_tile_kernel
from tvm_cascade.schedules.forms.scan import planned_body, scan_kernel
from tvm_cascade.schedules.kernels.computation import Computation
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.scan import scan_of
from tvm_cascade.schedules.rules.select import select
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.tune import Database, shipped
from tvm_cascade.search_monitor import counted


@dataclass(frozen=True)
class PreparedGraph:
    """A module's graph and the kernel selected for each operator; the graph's scratch and weight bytes are the kernels'."""

    graph: Graph
    extracted: Extracted
    kernels: tuple[RowKernel | None, ...]  # the row kernel of each operator; None for views

    core: KernelTarget = field(default_factory=KernelTarget)
    # shared with other candidates of the network
    known: Analyses = field(default_factory=Analyses, compare=False, kw_only=True)

    def kernels_of(self, plan: Plan, generic: bool = False) -> list[BuiltKernel | None]:
        """List the kernels that `plan` calls, by operator. `generic` selects portable kernels in place of the core's
        own.
        """
        return kernels_of_plan(plan, [self.site(o, generic) for o in range(len(self.graph.ops))])

    def estimator(self) -> Callable[[Plan], Sequence[Work] | None]:
        """Return a function that estimates instructions and cycles of an inference by a plan, operator by operator.

        The function returns None for plans of other graphs and for the host; the work of all operators in all
        candidates is kept.
        """
        chosen = self.known.chosen(self.core)
        if "works" not in chosen:
            chosen["works"] = SharedEstimates(self.core)
        shared: SharedEstimates = chosen["works"]
        sites = [self.site(o) for o in range(len(self.graph.ops))]
        kinds = [None if s is None else (id(s.row), *_key(s.graph, s.op, s.computed)) for s in sites]

        def work(plan: Plan) -> Sequence[Work] | None:
            if self.core.core.steps is None or plan.graph.ops != self.graph.ops:
                return None
            return shared.count(plan, sites, kinds)

        return work

    def site(self, index: int, generic: bool = False) -> Site | None:
        """Return the input to `kernels_of_plan` for operator `index`; None for a view. `generic` excludes performance
        schedules.
        """
        made, row = self.extracted.operators[index], self.kernels[index]
        if made is None or row is None:
            return None
        row, core = (made.kernel, None) if generic else (row, self.core)
        return Site(self.extracted.graph, self.graph.ops[index], made, core, row)

    def row_and_pixel_kernels(self, index: int) -> list[RowKernel]:
        """List every kernel that a plan may call for rows or single pixels of operator `index`, generic kernels
        included.
        """
        made, site = self.extracted.operators[index], self.site(index)
        if made is None or site is None:
            return []
        fast = pixel_tile_kernel(site, 1)
        found = (site.row, made.kernel, made.pixel_kernel, *(() if isinstance(fast, str) else fast.variants))
        return [k for k in found if not isinstance(k, str)]


def _footprints(site: Site, chosen: dict[Any, Any]) -> KernelFootprints:
    """Collect an operator's kernel forms; `chosen` caches the forms across candidates."""
    key = ("forms", id(site.row), *_key(site.graph, site.op, site.computed))
    if key not in chosen:
        with about(site.op.name):
            chosen[key] = footprints_of(site), site
    return chosen[key][0]


def _selected(
    graph: Graph,
    op: Op,
    made: Computation | None,
    core: KernelTarget,
    chosen: dict[Any, Any],
    database: Database | None,
) -> RowKernel | None:
    """Choose an operator's kernel, None for a view; `chosen` caches choices across candidates."""
    if made is None:
        return None
    key = ("kernel", *_key(graph, op, made))
    if key not in chosen:
        with about(op.name):
            scanned = _scan_kernel(made, core, database)
            chosen[key] = scanned or select(made, tensors_of(graph, op), core), made
    return chosen[key][0]


def _scan_kernel(made: Computation, core: KernelTarget, database: Database | None) -> RowKernel | None:
    """Return the kernel of a scan, whose body is prepared as a network of its own; None for other operators."""
    scan = scan_of(made.func)
    if scan is None:
        return None
    body, first = prepare_graph(scan.body, core, database), made.constants[: scan.initial.count("0")]
    return scan_kernel(planned_body(scan, body.graph, first, body.kernels_of, core.core.align), made.kernel)


def _key(graph: Graph, op: Op, made: Computation) -> tuple[object, ...]:
    """Return the key of everything an operator's kernels depend on besides the core; keep the key beside `made`: the
    key contains the id of `made`.
    """
    tensors = tuple((t.shape, t.dtype, t.row_axis, t.col_axis) for t in tensors_of(graph, op))
    return id(made), op.kind, tensors, tuple(op.inputs.index(t) for t in op.inputs)


def prepare_graph(
    mod: IRModule,
    core: KernelTarget,
    database: Database | None = None,
    counter: Counter | None = None,
    fused_floats: bool = True,
    known: Analyses | None = None,
    staged: Collection[str] = (),
) -> PreparedGraph:
    """Extract the graph of `mod`, after `LowerQuantized`, and select every operator's kernel.

    Kernels are selected by the instruction counts in `database`; None takes the shipped counts. With a `counter`,
    shapes missing in the database are counted and added. With `fused_floats`, float layers are fused first. `known` has
    analyses of further candidates, and gets the new ones. Tensors named in `staged` are read through copies.
    """
    mod = fuse_dynamic_layers(mod)
    fused = keep_stored(fuse_float_layers(mod) if fused_floats else mod)
    joined = partial(fuse_elementwise, vectors=core.mve, joins=core.backend == "llvm")
    source = read_function(fused, "main", joined if fused_floats else None)
    source = with_staged(source, staged) if staged else source
    core = replace(core, small_weights=has_small_weights(mod), small_floats=bool(small_floats_of(mod)))
    known = known or Analyses()
    extracted = analyse(with_states(source, state_count(mod)), known=known)
    core = choose_variants(extracted, core, shipped() if database is None else database, counter)
    graph = extracted.graph
    operators = counted("kernels chosen", list(zip(graph.ops, extracted.operators, strict=True)))
    chosen = known.chosen(core)
    kernels = tuple(_selected(graph, op, o, core, chosen, database) for op, o in operators)
    made = PreparedGraph(with_kernels(graph, kernels), extracted, kernels, core, known=known)
    ops = tuple(
        op if (site := made.site(op.index)) is None else replace(op, kernels=_footprints(site, chosen))
        for op in counted("forms of kernels", made.graph.ops)
    )
    return replace(made, graph=replace(made.graph, ops=ops))
