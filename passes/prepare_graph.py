"""`prepare_graph`: a module's graph with the kernels chosen for a core, ready for planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tvm.ir import IRModule

from tvm_cascade.cascading import Plan
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Graph
from tvm_cascade.passes.choose_variants import choose_variants
from tvm_cascade.passes.extract_graph import Extracted, extract_graph, with_kernels
from tvm_cascade.schedules.forms.choose import Kernel, kernels_of_plan
from tvm_cascade.schedules.forms.patch import Patch, patch_kernel
from tvm_cascade.schedules.forms.pitch import pitched
from tvm_cascade.schedules.forms.stripe_patch import StripePatch, stripe_patch
from tvm_cascade.schedules.forms.tall import tall_kernel
from tvm_cascade.schedules.forms.transpose_over import over_kernel, planes_of
from tvm_cascade.schedules.kernels.accumulate import Accumulating
from tvm_cascade.schedules.kernels.channel_groups import grouped_stripe_kernel, groups_of
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.kernels.stripe_kernel import stripe_kernel
from tvm_cascade.schedules.rules.pool_sum import pool_sum
from tvm_cascade.schedules.rules.select import select
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.tune import Database, shipped


@dataclass(frozen=True)
class PreparedGraph:
    """A module's graph with the kernels chosen for a core; scratch and flash bytes of the graph are those of the kernels."""

    graph: Graph
    extracted: Extracted
    kernels: tuple[RowKernel | None, ...]

    core: KernelTarget = field(default_factory=KernelTarget)

    def kernels_of(self, plan: Plan, generic: bool = False) -> list[Kernel | None]:
        """The kernels that a plan calls; `generic` ones run on every machine."""
        made = self.extracted
        rows = made.kernels if generic else self.kernels
        patches, in_stripes, tall = (None, None, None) if generic else (self.patch, self.stripe_patch, self.tall)
        sums = made.accumulators if generic else self._sums()
        chosen = kernels_of_plan(
            plan, rows, made.pixel_kernels, sums, patches, self.stripe, self.over, in_stripes, tall
        )
        return [_into_place(plan, o, kernel) for o, kernel in enumerate(chosen)]

    def _sums(self) -> list[Accumulating | None]:
        """What sums up its input as it comes, for the core."""
        made = self.extracted
        return [None if s is None else pool_sum(made.spec(o), s, self.core) for o, s in enumerate(made.accumulators)]

    def stripe(self, index: int, width: int) -> RowKernel:
        """An operator's kernel for a vertical stripe of a row, `width` columns at most."""
        func, access = self.extracted.funcs[index], self.extracted.accesses[index]
        assert func is not None and access is not None
        if groups_of(func):
            return grouped_stripe_kernel(func, self.extracted.constants[index], access, width)
        made = stripe_kernel(func, self.extracted.constants[index], access)
        if isinstance(made, str):
            raise ValidationError(f"{self.graph.ops[index].name} was planned in stripes: {made}")
        return made

    def stripe_patch(self, index: int, columns: Sequence[tuple[int, int]]) -> StripePatch | None:
        """An operator's kernels for the columns of every stripe, where a performance schedule serves them."""
        spec = self._served(index)
        if spec is None:
            return None
        return stripe_patch(self.extracted.graph, self.graph.ops[index], spec, self.core, columns)

    def over(self, index: int) -> RowKernel:
        """An operator's kernel that leaves its output in the bytes of its input."""
        func = self.extracted.funcs[index]
        planes = None if func is None else planes_of(func)
        assert planes is not None
        return over_kernel(planes)

    def _served(self, index: int) -> OperatorSpec | None:
        """The spec of an operator that a performance schedule serves."""
        kernel = self.kernels[index]
        return None if kernel is None or kernel.rule == "generic" else self.extracted.spec(index)

    def tall(self, index: int, rows: int) -> RowKernel | None:
        """An operator's kernel for steps of `rows` rows, where a performance schedule serves it."""
        spec = self._served(index)
        if spec is None:
            return None
        return tall_kernel(self.extracted.graph, self.graph.ops[index], spec, self.core, rows)

    def patch(self, index: int, chunk: int) -> Patch | None:
        """An operator's kernel for steps of `chunk` pixels, where a performance schedule serves it."""
        spec = self._served(index)
        if spec is None:
            return None
        return patch_kernel(self.extracted.graph, self.graph.ops[index], spec, self.core, chunk)


def _into_place(plan: Plan, op: int, kernel: Kernel | None) -> Kernel | None:
    """The kernel of an operator of `plan`; where it makes a part of a join one that writes its pixels apart."""
    outputs = plan.graph.ops[op].outputs
    storage = plan.storages[outputs[0]] if outputs else None
    if storage is None or not storage.pitch or kernel is None or isinstance(kernel, Accumulating):
        return kernel
    tensor = plan.graph.tensors[outputs[0]]
    return pitched(kernel, tensor.row_bytes // tensor.columns, storage.pitch)


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
    graph = with_kernels(extracted.graph, kernels)
    made = PreparedGraph(graph, extracted, tuple(kernels), core)
    return replace(made, graph=_with_steps(made))


def _with_steps(prepared: PreparedGraph) -> Graph:
    """The graph with what each operator needs to locate the window of a step by pixels, and which can make several rows."""
    ops = []
    for op in prepared.graph.ops:
        patch = prepared.patch(op.index, 1)
        located = [g for g in patch.located if g is not None] if patch is not None else []
        rows = prepared.graph.tensors[op.outputs[0]].rows if op.outputs else 1
        kernels = replace(
            op.kernels,
            tile_fixed_bytes=sum(g.fixed for g in located),
            tile_pixel_bytes=sum(g.each for g in located),
            multi_row=rows > 1 and prepared.tall(op.index, rows) is not None,
        )
        ops.append(replace(op, kernels=kernels))
    return replace(prepared.graph, ops=tuple(ops))
