"""`ScheduleStages`: lowers a network to the stages of an inter-operator schedule (IOS), for a stock Relax virtual machine.

On CPUs a stage with several groups is one kernel with one parallel region (`stage_cpu`) of single-threaded groups; a
stage with a single group calls kernels in sequence, large kernels multi-threaded. Kernels with MetaSchedule records
(`stage_records`) use these, all others default schedules. On CUDA groups run on streams (`stage_cuda`). In both cases
`main` consists of kernel calls on tensors at planned addresses (`stage_program`), so no further pass has to plan memory
or fuse: compile the result with `tvm_cascade.runtime.compile_stages`.

Requires float or integer operators as `stage_graph` reads them. Ensures the same results as one operator after another:
the same bits for concurrent stages, float reassociation for merges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tvm_cascade.cost.device import PARALLEL_WORK
from tvm_cascade.cost.interface import CostModel
from tvm_cascade.errors import UsageError
from tvm_cascade.parallel.problem import Options, Schedule
from tvm_cascade.parallel.scheduler import schedule as find_schedule
from tvm_cascade.parallel.units import UnitGraph, unit_graph
from tvm_cascade.parallel.validate import validate_schedule
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.relax_functions import ByStructure
from tvm_cascade.schedules.tir.nan import choices_for_bounds
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.staging.kernels.dots import PLAIN
from tvm_cascade.staging.kernels.processors import accumulators, integer_dot
from tvm_cascade.staging.kernels.records import TunedKernels
from tvm_cascade.staging.program.concat import write_in_place
from tvm_cascade.staging.program.cpu import Use, parallel_lanes
from tvm_cascade.staging.program.emit import Emitter, keys
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.lanes import lanes, work_of
from tvm_cascade.staging.program.memory import MemoryPlan, plan_memory
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.program import Program, check_groups, plan_program
from tvm_cascade.staging.program.specs import Kernel


@dataclass(frozen=True, slots=True)
class LowerOptions:
    """Options of lowering a schedule. The last two are for tests, and must not change any result."""

    target: str = "llvm"  # "llvm" (this processor), another one: "llvm -mcpu=NAME"; or "cuda -arch=sm_90"
    winograd: int = 4  # CPU: largest tiles of outputs of convolutions in Winograd's form, 2 or 4; 0: none has it
    workers: int = 2  # threads that share the groups of a stage on a CPU; 1: nothing is shared
    cuda_graph: bool = True  # CUDA: capture the program into one CUDA graph
    device: int = 0  # CUDA: number of the GPU that owns the streams
    streams: int | None = None  # CUDA: streams that share the groups of a stage; None: as many as the widest stage has
    metaschedule: str | Path | None = None  # folder with records of tuned kernels; None: default schedules
    serial_reversed: bool = False  # groups of a stage one after the other, last first
    before_step: Callable[[Emitter, int], None] | None = None  # called before each step (by number); may emit code


@dataclass(frozen=True)
class ScheduleStages(CascadePass):
    """Lower `main` to the stages of `schedule`, or of the best schedule for the cost model `model`.

    Requires a function `main` with operators readable by `stage_graph`. Ensures that `main` consists of kernel calls in
    stage order, and that results are equal: bit for bit for concurrent stages, up to float reassociation for merged
    operators. The module keeps the attributes.

    Before::

        a = R.nn.conv2d(x, v)
        b = R.nn.max_pool2d(x)
        c = R.concat((a, b), axis=1)

    After, if convolution and pool are two groups of a single stage (on a CPU)::

        cls.stage_0(x, v, a, b)    # for lane in T.parallel(2): a single group a lane
        cls.concat(a, b, c)

    Raises `UsageError` without `schedule` and `model`, `ValidationError` for a schedule of another network, `GraphError`
    for control flow and symbolic shapes.
    """

    schedule: Schedule | None = None  # stages of operator indices of `stage_network`
    options: Options = field(default_factory=Options)  # of the search, which runs if `schedule` is None
    model: CostModel | None = None  # cost that the search minimizes
    lower: LowerOptions = field(default_factory=LowerOptions)
    precision: str = "fp32"  # of tensors between kernels: "fp32", "fp16", "bf16" or "tf32" (`stage_precision`)
    time_limit: float | None = None  # seconds, after which the best schedule so far is taken; None: no limit

    def requires(self, mod: tvm.IRModule) -> None:
        """Raise `UsageError` if there is neither a schedule nor a cost model."""
        if self.schedule is None and self.model is None:
            raise UsageError("ScheduleStages needs a schedule, or a cost model to find one with")

    def call(self, mod: tvm.IRModule) -> PassResult:
        """Lower the module to the stages of the schedule."""
        net = stage_network(mod, self.lower.target, self.precision)
        units = unit_graph(net.graph, self.options.unit)
        schedule = self.schedule
        if schedule is None:
            assert self.model is not None
            with SearchMonitor(self.time_limit):
                schedule = find_schedule(net.graph, self.model, self.options).schedule
        staged = lower_stages(net, units, schedule, self.lower)
        attrs = dict(getattr(mod, "attrs", None) or {})
        return PassResult(staged.with_attrs(attrs) if attrs else staged, True)


def stage_pipeline() -> tvm.ir.transform.Pass:
    """Return the Relax passes that lower builtins and shapes in a module of `ScheduleStages`, and keep NaN within bounds; none
    fuses or plans memory.
    """
    return tvm.transform.Sequential(
        [
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
            choices_for_bounds(),
        ]
    )


def lower_stages(net: StageGraph, units: UnitGraph, schedule: Schedule, lower: LowerOptions) -> tvm.IRModule:
    """Lower a network to the stages of a schedule.

    Raises `ValidationError` for a schedule that does not fit the network, `UsageError` for unreadable records.
    """
    validate_schedule(net.graph, schedule)
    cpu = not lower.target.startswith("cuda")
    program = _program(net, units, schedule, cpu)
    check_groups(program)
    tiles, dot = (accumulators(lower.target), integer_dot(lower.target)) if cpu else (None, PLAIN)
    kernels = build_kernels(net, program.specs, cpu, program.slices, program.packed, lower.winograd, tiles, dot)
    tuned = TunedKernels(lower.metaschedule, lower.target)
    if not cpu:
        from tvm_cascade.staging.program.cuda import emit_cuda  # CUDA's schedule rules are slow to import
        from tvm_cascade.staging.program.library_kernels import with_library

        kernels = with_library(net, program.specs, kernels, program.slices, tuned.by_library)
        kernels = tuple(replace(k, func=tuned.scheduled(k.func, True)) for k in kernels)
        return emit_cuda(program, kernels, lower.target, lower.cuda_graph, f"cuda:{lower.device}", lower.streams)
    return emit_cpu(program, kernels, plan_memory(program), lower, tuned)


def _program(net: StageGraph, units: UnitGraph, schedule: Schedule, cpu: bool) -> Program:
    return write_in_place(plan_program(net, units, schedule, captured=not cpu))


def processor_calls(net: StageGraph, units: UnitGraph, schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the operators of every kernel call in a processor's program, by index, in the order of `emit_cpu`."""
    program = _program(net, units, schedule, cpu=True)

    def operators(kernels: Sequence[int]) -> tuple[int, ...]:
        return tuple(i for k in kernels for i in program.specs[k].ops)

    calls: list[tuple[int, ...]] = []
    for step in program.steps:
        if len(step.groups) == 1:
            calls += [operators((k,)) for k in step.groups[0]]
        else:
            calls.append(operators([k for group in step.groups for k in group]))
    return tuple(calls)


def emit_cpu(
    program: Program,
    kernels: Sequence[Kernel],
    plan: MemoryPlan,
    lower: LowerOptions,
    tuned: TunedKernels = TunedKernels(None),  # noqa: B008
) -> tvm.IRModule:
    """Emit the module for a CPU: a parallel region per stage of several groups, multi-threaded kernels elsewhere."""
    emitter = Emitter(program, plan)
    functions = ByStructure[Any]()  # equal kernels are one function
    emitter.constants(kernels)

    def add(func: PrimFunc, name: str) -> Any:
        return functions.get(func, lambda: emitter.add(func.with_attr("tirx.is_scheduled", True), name))

    for time, step in enumerate(program.steps):
        if lower.before_step is not None:
            lower.before_step(emitter, time)
        if len(step.groups) == 1:
            for k in step.groups[0]:
                many = lower.workers > 1 and work_of(program.net.graph, program.specs[k]) >= PARALLEL_WORK
                function = add(tuned.scheduled(kernels[k].func, many), kernels[k].name)
                emitter.call(function, emitter.arguments(k, kernels[k]))
            continue
        shared = lanes(program, step.groups, lower.workers)
        uses = [
            [Use(tuned.scheduled(kernels[k].func, False), keys(program, k, kernels[k])) for k in lane]
            for lane in shared
        ]
        func, names = parallel_lanes(uses, lower.serial_reversed)
        emitter.call(add(func, f"stage_{step.stage}"), [emitter.value(key) for key in names])
    return emitter.finish()
