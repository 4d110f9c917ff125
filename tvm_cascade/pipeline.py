"""The phases of a compilation, in order.

A file goes through `load`, `prepare` (integers, then the graph and its row kernels), `plan_graph` (cuts, rings, arena) and
`lower` (kernels and their driver). `micro` takes it from there to firmware; `passes.Cascade` back into a Relax module that
the stock VM runs.
"""

# TVM's pass decorators are untyped.
# pyright: reportReturnType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm
from tvm.ir import IRModule

from tvm_cascade.cascading import Bounds, Plan, PlanOptions, bounds, frontier, plan_graph, validate
from tvm_cascade.cascading.channel_search import frontier_in_groups
from tvm_cascade.cascading.regions import Partition, partition
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError, UsageError, ValidationError
from tvm_cascade.frontend import IoSpec, TensorSpec, io_spec
from tvm_cascade.graph import Graph
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.plan_channels import plan_channels
from tvm_cascade.passes.plan_concats import Choice, plan_concats
from tvm_cascade.passes.prepare_graph import PreparedGraph, prepare_graph
from tvm_cascade.passes.rewrite_for_memory import without_concats
from tvm_cascade.passes.rewrite_pipeline import Rewritten, rewrite_for_arena
from tvm_cascade.passes.split_channels import with_channel_groups
from tvm_cascade.report.estimate import Estimate, estimate
from tvm_cascade.report.text import block_rows, live_bytes
from tvm_cascade.schedules.driver.instrument import count_macs
from tvm_cascade.schedules.driver.lower_plan import Lowered, lower_plan
from tvm_cascade.schedules.kernels.row_kernel import RowKernel
from tvm_cascade.schedules.rules.intrinsics import C_PRELUDE
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.tune import Database

__all__ = ["Prepared", "front_phases", "left_out", "lower", "outlook", "plan_graph", "prepare", "replay"]


def front_phases() -> list[tvm.ir.transform.Pass]:
    """Relax passes before the graph is read, in order."""
    return [LowerQuantized()]


@dataclass(frozen=True)
class Prepared(PreparedGraph):
    """A module ready for planning: its graph and kernels, and its inputs and outputs as the model names them."""

    io: IoSpec = field(default_factory=lambda: IoSpec((), ()))
    prelude: str = ""  # C text that the kernels' helpers need


def prepare(
    mod: IRModule, core: KernelTarget, database: Database | None = None, counter: Counter | None = None
) -> Prepared:
    """Integers, graph and kernels of an imported module (or of one that was built with Relax).

    `database` and `counter` are those of `prepare_graph`: counts to choose kernels by, and how to get more.
    """
    lowered = tvm.ir.transform.Sequential(front_phases())(mod)
    made = prepare_graph(lowered, core, database, counter)
    return Prepared(
        made.graph,
        made.extracted,
        made.kernels,
        made.core,
        interface_of(mod, made.graph),
        prelude_of(made.kernels, core),
    )


def plan_prepared(
    mod: IRModule,
    prepared: Prepared,
    options: PlanOptions,
    database: Database | None = None,
    counter: Counter | None = None,
    tuned: Callable[[Prepared], Prepared] | None = None,
) -> Choice[Prepared]:
    """The plan of a prepared module, its concats written in place or read in parts, channels made in groups where that pays.

    `database` and `counter` are those that `mod` was prepared with, `tuned` what changed its kernels afterwards.
    """

    def without(names: tuple[str, ...]) -> Prepared:
        return again(without_concats(tvm.ir.transform.Sequential(front_phases())(mod), names))

    def split(groups: Mapping[str, int]) -> Prepared:
        return again(with_channel_groups(tvm.ir.transform.Sequential(front_phases())(mod), groups))

    def again(lowered: IRModule) -> Prepared:
        made = prepare_graph(lowered, prepared.core, database, counter)
        prelude = prelude_of(made.kernels, made.core)
        fresh = Prepared(made.graph, made.extracted, made.kernels, made.core, prepared.io, prelude)
        return fresh if tuned is None else tuned(fresh)

    try:
        plain: Choice[Prepared] | InfeasibleError = plan_concats(prepared, options, without)
    except InfeasibleError as error:
        plain = error
    return plan_channels(prepared, plain, options, split)


def replay(plan: Plan, alignment: int) -> None:
    """Replay `plan` on simulated memory before anything is emitted. Raises `ValidationError` unless it computes its graph."""
    try:
        validate(plan, alignment)
    except ValidationError as why:
        raise ValidationError(
            f"the plan is wrong and was not compiled ({why}); this is a fault of tvm-cascade: please report it, and compile "
            "with --layerwise or other options meanwhile"
        ) from why


def graph_of(mod: IRModule) -> Graph:
    """The graph of an imported module, integers lowered."""
    return extract_graph(tvm.ir.transform.Sequential(front_phases())(mod)).graph


def rewrite(
    mod: IRModule, core: KernelTarget, options: PlanOptions, database: Database | None = None, floats: bool = True
) -> Rewritten:
    """The equivalent network whose plan needs the smaller arena: both are planned where a gain is promised.

    Without `floats` only networks of integers are rewritten, bit for bit.
    """

    def arena(m: IRModule) -> int:
        return plan_prepared(m, prepare(m, core, database), options, database).plan.peak

    return rewrite_for_arena(mod, arena, options.max_macs, floats)


def interface_of(mod: IRModule, graph: Graph) -> IoSpec:
    """Names and quantization of inputs and outputs: the model's, or the graph's where the module was not loaded."""
    try:
        return io_spec(mod)
    except UsageError:
        sides = [
            tuple(TensorSpec(graph.tensors[t].name, graph.tensors[t].shape, graph.tensors[t].dtype) for t in side)
            for side in (graph.inputs, graph.outputs)
        ]
        return IoSpec(sides[0], sides[1])


def prelude_of(kernels: Sequence[RowKernel | None], core: KernelTarget) -> str:
    """C helpers of the performance schedules; empty where none was chosen."""
    if core.backend != "c" or all(k is None or k.rule == "generic" for k in kernels):
        return ""
    return C_PRELUDE


def lower(
    prepared: PreparedGraph, plan: Plan, counted: bool = False, fetch: str | None = None, hook: str | None = None
) -> Lowered:
    """The plan as functions; `counted` takes the generic kernels, which run everywhere, and counts their work.

    `fetch` names the C function that delivers rows of streamed inputs, `hook` one that is called after every step.
    """
    if not counted:
        return lower_plan(plan, prepared.kernels_of(plan), fetch=fetch, hook=hook)
    return lower_plan(plan, prepared.kernels_of(plan, generic=True), transform=count_macs, counted=True)


FRONTIER_MACS = 2.0  # how far `plan` looks, as a factor of the network's multiply-accumulates


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a plan is to be seen beside."""

    points: tuple[tuple[int, float], ...]  # peak bytes and factor of work of plans that no other beats, ascending bytes
    estimates: tuple[Estimate, ...]  # of these plans
    bounds: Bounds  # of the search space at 1.00x
    in_groups: tuple[bool, ...]  # whether these plans make channels in groups


def outlook(
    graph: Graph,
    options: PlanOptions,
    chosen: Plan,
    whole: bool = False,
    progress: Callable[[str], None] = lambda _line: None,
) -> Outlook:
    """The frontier with an estimate of each plan's traffic and instructions, and the bounds at 1.00x.

    The whole frontier takes a search of its own, up to twice the work or what the options allow; else the chosen plan
    stands alone. `graph` makes no channels in groups; points that do are looked for where the options allow more work.
    `progress` gets a line for every point found.
    """

    def tell(plan: Plan) -> None:
        progress(f"frontier: {plan.peak} bytes at {plan.macs / max(plan.baseline_macs, 1):.3f}x work")

    far = replace(options, sram=None, max_macs=max(options.max_macs, FRONTIER_MACS))
    plans: tuple[Plan, ...] = (chosen,)
    if whole and not options.layerwise:
        plans = (*frontier(graph, far, tell), *frontier_in_groups(graph, options, tell), chosen)
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (p.peak, p.macs)):
        if not best or plan.macs < best[-1].macs:
            best.append(plan)
    points = tuple((p.peak, p.macs / p.baseline_macs if p.baseline_macs else 1.0) for p in best)
    marks = tuple(any(op.kernels.channel_tiling is not None for op in p.graph.ops) for p in best)
    return Outlook(points, tuple(estimate(p, options.steps) for p in best), bounds(graph, options), marks)


def left_out(graph: Graph, plan: Plan, options: PlanOptions | None = None) -> dict[str, str]:
    """Operators that run alone: the reason, and what would change it."""
    regions = partition(graph)
    alone = {graph.ops[x.op].name: f"{x.reason}; {x.remedy}" for x in regions.left_out}
    peak = _peak_segment(plan)
    for k, segment in enumerate(plan.segments):
        ops = [graph.ops[o] for o in segment.ops if not graph.ops[o].view]
        if len(ops) == 1 and ops[0].name not in alone:
            alone[ops[0].name] = _why_alone(graph, regions, ops[0].index, k, peak, plan, options)
    return alone


def _why_alone(
    graph: Graph, regions: Partition, op: int, segment: int, peak: int, plan: Plan, options: PlanOptions | None
) -> str:
    region = regions.region_of[op]
    beside = [o for o in regions.regions[region] if not graph.ops[o].view] if region is not None else []
    if len(beside) < 2:
        return "none of its neighbours can cascade; see why these are left out"
    if options is not None and options.layerwise:
        return "operators run one by one as asked; plan without --layerwise"
    if options is not None and options.sram is not None:
        return "the plan fits its cap with this operator as it is; a smaller --sram takes it in"
    if segment == peak:
        return "the arena is largest here, and no cascade with its neighbours is smaller; --max-macs allows more forms"
    there = plan.segments[peak].ops
    names = [graph.ops[o].name for o in there if not graph.ops[o].view] or [graph.ops[o].name for o in there]
    where = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"a cascade with its neighbours would not lower the peak, which lies at {where}; that must shrink first"


def _peak_segment(plan: Plan) -> int:
    rows = block_rows(plan)
    return max(range(len(plan.segments)), key=lambda k: (live_bytes(rows, k), -k), default=0)
