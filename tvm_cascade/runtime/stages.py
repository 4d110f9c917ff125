"""`tvm-cascade stages` for a module: any of the three cost models, saved schedules, a picture."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import tvm

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.interface import CostModel, Runner
from tvm_cascade.cost.learned import LearnedCost, refine
from tvm_cascade.cost.measured import MeasuredCost, confirm
from tvm_cascade.cost.records import CONCURRENT, RecordStore
from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.parallel.problem import Options
from tvm_cascade.parallel.report import finish_report, run_stages
from tvm_cascade.parallel.scheduler import NetworkSchedule, priced_stages, schedule
from tvm_cascade.parallel.units import UnitGraph, unit_graph
from tvm_cascade.passes.stage_graph import StageGraph, stage_graph
from tvm_cascade.runtime.finalists import keep_fastest
from tvm_cascade.runtime.tune_stages import tune_stages
from tvm_cascade.schedules.stages.stage_records import TunedKernels
from tvm_cascade.schedules.tuning.metaschedule import Progress, Search

COSTS = ("analytic", "measured", "learned")
_LEARNED_BUDGET = 400  # measurements of a learned search, besides the operators alone


def stages(
    mod: tvm.IRModule,
    target: str = "cuda",
    device: str | None = None,
    batch: int | None = None,
    unit: str = "fused",
    variant: str = "both",
    r: int | None = 3,
    s: int | None = 8,
    cost: str = "analytic",
    load: str | Path | None = None,
    output: str | Path | None = None,
    picture: str | Path | None = None,
    database: str | Path | None = None,
    metaschedule: str | Path | None = None,
    trials: int = 32,
    progress: Progress = lambda _text: None,
) -> tuple[dict[str, object], str]:
    """The command `stages`: the JSON object (`parallel.report.describe`) and the text for a reader.

    Measured and learned schedules for this machine's CPU are run beside the sequential and the greedy one (`finalists`), and
    the fastest is kept; the key `measured` tells. `database` keeps measurements between runs (default: in memory).
    `metaschedule` is a folder with records of tuned kernels, which are what is measured then; operators without one are
    tuned first with `trials` candidates each (0: none; merged operators keep the default kernels); the key `tuned` tells.
    Raises `UsageError` for wrong options and for measuring on a device that this machine does not have, `LoadError` for an
    unreadable schedule.
    """
    if cost not in COSTS:
        raise UsageError(f"unknown cost {cost}: choose one of {', '.join(COSTS)}")
    if cost == "analytic" and metaschedule is not None:
        raise UsageError("--metaschedule is for kernels that run: give --cost measured or --cost learned with it")
    net = stage_graph(mod)
    if cost == "analytic":
        return run_stages(net.graph, target, device, batch, unit, variant, r, s, load, output, picture)
    if batch not in (None, 1):
        raise UsageError(f"--cost {cost} measures the model as it is loaded: set the batch with --input-shape")
    options = Options(variant=variant, unit=unit, r=r or None, s=s or None)
    units = unit_graph(net.graph, unit)
    tuning: dict[str, object] = {}
    if metaschedule is not None:
        tuned = tune_stages(net, units, metaschedule, target, None, Search(trials), progress)
        tuning = {"tuned": asdict(tuned)}
    model = measured_model(net, units, database, target, metaschedule)
    if load is not None:
        data, text = run_stages(net.graph, target, device, None, unit, variant, r, s, load, output, picture, model)
        return data | tuning, text
    pricing: CostModel = model
    if cost == "measured":
        found = search_measured(net, model, options)
    else:
        found, pricing = search_learned(net, units, model, options)
    if target.startswith("cuda"):
        data, text = finish_report(found, pricing, output, picture)
        return data | tuning, text
    found, run = keep_fastest(net, found, pricing, options, metaschedule=metaschedule)
    data, text = finish_report(found, pricing, output, picture)
    times = ", ".join(f"{n} {t:.3f} ms" for n, t in zip(run.names, run.choice.milliseconds, strict=True))
    return data | tuning | {"measured": run.to_dict()}, f"run in turn, least: {times}; kept: {run.kept}\n{text}"


def measured_model(
    net: StageGraph,
    units: UnitGraph,
    database: str | Path | None,
    target: str = "llvm",
    metaschedule: str | Path | None = None,
) -> MeasuredCost:
    """Costs measured on this machine: its CPU, or its GPU for `cuda`. Raises `MissingToolError` where it has none.

    `metaschedule`: folder with records of the tuned kernels to measure.
    """
    if target.startswith("cuda"):
        from tvm_cascade.runtime.measure_cuda import CudaRunner

        try:
            runner: Runner = CudaRunner(net, units, target, metaschedule=metaschedule)
        except MissingToolError as error:
            raise MissingToolError(error.tool, f"{error.remedy}; --cost analytic needs none of it") from None
    else:
        from tvm_cascade.runtime.measure import CpuRunner

        runner = CpuRunner(net, units, tuned=TunedKernels(metaschedule))
    return MeasuredCost(runner, RecordStore(database, runner.device))


def search_measured(net: StageGraph, model: MeasuredCost, options: Options) -> NetworkSchedule:
    """Every stage measured, the winner's once more."""
    found = []

    def search():
        found.append(schedule(net.graph, model, options))
        return found[-1], priced_stages(found[-1])

    confirm(model, search)
    return found[-1]


def search_learned(
    net: StageGraph, units: UnitGraph, measured: MeasuredCost, options: Options, budget: int = _LEARNED_BUDGET
) -> tuple[NetworkSchedule, CostModel]:
    """Few stages measured, the others predicted; returns the schedule and the model that priced it."""
    gpu = measured.runner.device.startswith("cuda")
    known = find_device(None, "cuda") if gpu else find_device("cpu", "llvm", measured.runner.workers)
    model = LearnedCost(measured, AnalyticCost(known))
    alone = [(CONCURRENT, [[k]]) for kernels in units.features for k in kernels if k.kind != "view"]
    found = []

    def search():
        found.append(schedule(net.graph, model, options))
        return found[-1], priced_stages(found[-1])

    refine(model, search, budget + len(set(map(str, alone))), alone)
    return found[-1], model
