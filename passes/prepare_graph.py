"""`prepare_graph`: a module's graph with the kernels chosen for a core, ready for planning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tvm.ir import IRModule

from tvm_cascade.cascading import Plan
from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import Graph
from tvm_cascade.passes.choose_variants import choose_variants
from tvm_cascade.passes.extract_graph import Extracted, extract_graph, with_kernels
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.forms.choose import footprints_of, kernels_of_plan
from tvm_cascade.schedules.forms.form import Site
from tvm_cascade.schedules.forms.pixels import pixel_tile_kernel
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules.select import select
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.tune import Database, shipped


@dataclass(frozen=True)
class PreparedGraph:
    """A module's graph with the kernels chosen for a core; scratch and flash bytes of the graph are those of the kernels."""

    graph: Graph
    extracted: Extracted
    kernels: tuple[RowKernel | None, ...]  # of rows, by operator; None for views

    core: KernelTarget = field(default_factory=KernelTarget)

    def kernels_of(self, plan: Plan, generic: bool = False) -> list[BuiltKernel | None]:
        """The kernels that a plan calls; `generic` ones run on every machine."""
        return kernels_of_plan(plan, [self.site(o, generic) for o in range(len(self.graph.ops))])

    def site(self, index: int, generic: bool = False) -> Site | None:
        """An operator as forms of kernels see it, None for a view; `generic` leaves performance schedules out."""
        made = self.extracted
        func, access, row = made.funcs[index], made.accesses[index], (made.kernels if generic else self.kernels)[index]
        if func is None or access is None or row is None:
            return None
        constants, pixels, core = made.constants[index], made.pixel_kernels[index], None if generic else self.core
        return Site(made.graph, self.graph.ops[index], func, constants, access, row, pixels, core)

    def row_and_pixel_kernels(self, index: int) -> list[RowKernel]:
        """Every kernel that may make rows or single pixels of an operator, generic ones included."""
        made, site = self.extracted, self.site(index)
        found = [self.kernels[index], made.kernels[index], made.pixel_kernels[index]]
        fast = "it is a view" if site is None else pixel_tile_kernel(site, 1)
        return [k for k in (*found, *(() if isinstance(fast, str) else fast.variants)) if k is not None]


def prepare_graph(
    mod: IRModule, core: KernelTarget, database: Database | None = None, counter: Counter | None = None
) -> PreparedGraph:
    """Extract the graph of `mod` (integers already lowered) and choose every operator's kernel.

    The choice follows the counts in `database` (by default those that come with the package). With `counter` shapes
    that it lacks are counted, and added to it.
    """
    extracted = extract_graph(mod)
    core = choose_variants(extracted, core, shipped() if database is None else database, counter)
    kernels = []
    for op in extracted.graph.ops:
        access, generic = extracted.accesses[op.index], extracted.kernels[op.index]
        if access is None or generic is None:
            kernels.append(None)
            continue
        kernels.append(select(extracted.spec(op.index), access, core, generic))
    made = PreparedGraph(with_kernels(extracted.graph, kernels), extracted, tuple(kernels), core)
    sites = [made.site(op.index) for op in made.graph.ops]
    ops = (
        op if s is None else replace(op, kernels=footprints_of(s)) for op, s in zip(made.graph.ops, sites, strict=True)
    )
    return replace(made, graph=replace(made.graph, ops=tuple(ops)))
