"""The function behind the command `stages`: schedules by the analytic, measured or learned cost model.

Costs are measured at the place given by `runtime.measuring`: on this machine, or with `tracker` on the servers of TVM's
RPC tracker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tvm

from tvm_cascade.cost import AnalyticCost, Device, device_for, find_device
from tvm_cascade.cost.interface import CostModel
from tvm_cascade.cost.learned import LearnedCost, refine
from tvm_cascade.cost.measured import MeasuredCost, MeasureOptions, Stages, confirm
from tvm_cascade.cost.processor import BUILT_IN
from tvm_cascade.cost.records import CONCURRENT, RecordStore, measured_kernels
from tvm_cascade.errors import UsageError
from tvm_cascade.graph import Graph
from tvm_cascade.measured.choose_library import Chosen, choose_library, require_cudnn
from tvm_cascade.measured.finalists import keep_fastest
from tvm_cascade.measured.measure_farm import QUICK, FarmRunner, fill_for_search, on_farm
from tvm_cascade.measured.runners import analytic_of, runner_on
from tvm_cascade.measured.tune_stages import tune_stages
from tvm_cascade.parallel.batch import with_batch
from tvm_cascade.parallel.problem import Options
from tvm_cascade.parallel.report import Kept, finish_report, found_or_loaded
from tvm_cascade.parallel.scheduler import NetworkSchedule, priced_stages, schedule
from tvm_cascade.parallel.units import UnitGraph, unit_graph
from tvm_cascade.request import SearchRequest, StagesRequest
from tvm_cascade.runtime.bench import Bench
from tvm_cascade.runtime.measuring import measuring, refuse_idle_farm
from tvm_cascade.schedules.tuning.metaschedule import Progress, Search
from tvm_cascade.schema.searches import Schedule
from tvm_cascade.staging.kernels.records import TunedKernels
from tvm_cascade.staging.kernels.tuning import Report
from tvm_cascade.staging.program.cpu import threads
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.network import stage_network

_LEARNED_BUDGET = 400  # measurements of a learned search, besides the operators alone


@dataclass(frozen=True)
class Found:
    """A network and the schedule found."""

    net: StageGraph
    schedule: NetworkSchedule
    cost_model: str  # its name


def stages(
    mod: tvm.IRModule,
    request: StagesRequest | None = None,
    progress: Progress = lambda _text: None,
    kept: Callable[[Found], object] = lambda _found: None,
) -> tuple[Schedule, str]:
    """Run the command `stages`: return the JSON object (`parallel.report.describe`) and the text for a reader.

    Measured and learned schedules are run in turn with the sequential and the greedy schedule (`finalists`), on this
    machine or on a farm's server, and the fastest is kept; times are under the key `measured`. With `metaschedule`
    tuned kernels are measured; operators without a record are tuned first, with `trials` candidates each (0: none;
    merged operators keep the default kernels); the tuning report is under the key `tuned`. `kept` is called with the
    kept schedule.

    Raises
    ------
    UsageError
        For measuring on a device that this machine does not have, or with options that only the analytic cost has.
    LoadError
        The schedule to load cannot be read.
    """
    asked = request or StagesRequest()
    refuse_idle_farm(asked)
    _refuse_idle_cudnn(asked)
    net = stage_network(mod, asked.target, asked.precision)
    options = Options(variant=asked.variant, unit=asked.unit, r=asked.r or None, s=asked.s or None)
    if asked.cost == "analytic":
        if asked.metaschedule is not None and asked.emit is None:
            raise UsageError(
                "--metaschedule is for kernels that run: give --cost measured or --cost learned with it, or --emit DIR"
            )
        graph = net.graph if asked.batch is None else with_batch(net.graph, asked.batch)
        return _run(graph, asked, options, kept=lambda found: kept(Found(net, *found)))
    if asked.batch not in (None, 1):
        raise UsageError(f"--cost {asked.cost} measures the model as it is loaded: set the batch with --input-shape")
    with measuring(asked) as bench:
        return _measured(net, options, asked, bench, progress, lambda found: kept(Found(net, *found)))


def search_by_description(mod: tvm.IRModule, asked: StagesRequest) -> Found:
    """Search a module's best schedule by the description of a device."""
    net = stage_network(mod, asked.target, asked.precision)
    options = Options(variant=asked.variant, unit=asked.unit, r=asked.r or None, s=asked.s or None)
    model = AnalyticCost(priced_device(asked), asked.precision)
    return Found(net, schedule(net.graph, model, options), model.name)


def _run(
    graph: Graph, asked: StagesRequest, options: Options, model: CostModel | None = None, *, kept: Kept
) -> tuple[Schedule, str]:
    """Run `run_stages` with the files of a request."""
    if model is None:
        device = priced_device(asked)
        model = AnalyticCost(device, asked.precision, measured_kernels(asked.database, device))
    best = found_or_loaded(graph, options, model, asked.load)
    return finish_report(best, model, asked.output, asked.picture, kept, details=asked.details)


def priced_device(asked: SearchRequest) -> Device:
    """Describe the device that prices a search. A folder for a processor without a description is priced with the threads
    that will run it.
    """
    device = device_for(asked.device, asked.target, asked.threads)
    generic = asked.device is None and device.kind == "cpu" and device.source == BUILT_IN
    if generic and asked.emit is not None and asked.threads is None and asked.database is None:
        return find_device(None, asked.target, threads())
    return device


def _measured(
    net: StageGraph, options: Options, asked: StagesRequest, bench: Bench, progress: Progress, kept: Kept
) -> tuple[Schedule, str]:
    """`stages` with costs of a bench."""
    units = unit_graph(net.graph, asked.unit)
    tuned: Report | None = None
    if asked.metaschedule is not None:
        search = Search(asked.trials)
        tuned = tune_stages(net, units, asked.metaschedule, asked.target, None, search, progress, bench)
    theirs = _library(net, units, asked, bench, options, progress)
    model = measured_model(net, units, asked.database, bench, asked.metaschedule, options.s)
    pricing: CostModel = model
    if asked.load is not None:
        data, text = _run(net.graph, asked, options, model, kept=kept)
        return _with_tuning(data, tuned, theirs), text
    if asked.cost == "measured":
        fill_for_search(net, model, analytic_of(bench), options)
        best = search_measured(net, model, options)
    else:
        best, pricing = search_learned(net, units, model, analytic_of(bench), options)
    best, run = keep_fastest(net, best, pricing, options, bench, asked.metaschedule)
    data, text = finish_report(best, pricing, asked.output, asked.picture, kept, details=asked.details)
    times = ", ".join(f"{n} {t:.3f} ms" for n, t in zip(run.names, run.choice.milliseconds, strict=True))
    made: Schedule = {**_with_tuning(data, tuned, theirs), "measured": run.to_dict()}
    return made, f"run in turn, least: {times}; kept: {run.chosen}\n{text}"


def _with_tuning(data: Schedule, report: Report | None, library: Chosen | None) -> Schedule:
    made: Schedule = {**data}
    if report is not None:
        made["tuned"] = {"kernels": report.kernels, "tuned": report.tuned, "measured": report.measured}
    if library is not None:
        made["cudnn"] = {"kernels": library.kernels, "chosen": library.chosen, "measured": library.measured}
    return made


def _refuse_idle_cudnn(asked: StagesRequest) -> None:
    """Raise `UsageError` if cuDNN's kernels cannot be measured, or the measurements cannot be kept."""
    if not asked.cudnn:
        return
    if asked.metaschedule is None or not asked.target.startswith("cuda"):
        raise UsageError("--cudnn is of --target cuda and --metaschedule DIR, which keeps what was measured: give both")
    if not asked.measures:
        raise UsageError("--cudnn measures: give --cost measured or --cost learned with it")
    if asked.tracker is not None:
        raise UsageError("--cudnn measures on this machine: a farm's servers have TVM alone; leave it or --tracker out")


def _library(
    net: StageGraph, units: UnitGraph, asked: StagesRequest, bench: Bench, options: Options, progress: Progress
) -> Chosen | None:
    """Measure cuDNN's kernels if asked for, and load cuDNN if records call some faster."""
    if asked.metaschedule is None or not asked.target.startswith("cuda"):
        return None
    if not asked.cudnn:
        if TunedKernels(asked.metaschedule, bench.target).uses_library:
            if asked.tracker is not None:
                raise UsageError(
                    f"by records in {asked.metaschedule} some kernels are cuDNN's, which a farm's servers cannot run: "
                    "give another --metaschedule DIR"
                )
            require_cudnn()
        return None
    require_cudnn()
    chosen = choose_library(net, units, asked.metaschedule, bench, options, progress)
    progress(f"cuDNN takes less time at {chosen.chosen} of {chosen.kernels} kernels")
    for reason in chosen.refused:
        progress(f"cuDNN does not run a kernel: {reason}")
    return chosen


def measured_model(
    net: StageGraph,
    units: UnitGraph,
    database: str | Path | None,
    bench: Bench,
    metaschedule: str | Path | None = None,
    streams: int | None = None,
) -> MeasuredCost:
    """Make the costs measured on a bench. `metaschedule`: folder with records of the tuned kernels to measure.
    `streams`: for a GPU; None: one per unit.
    """
    runner = on_farm(runner_on(bench, net, units, metaschedule, streams), bench)
    options = QUICK if isinstance(runner, FarmRunner) else MeasureOptions()
    return MeasuredCost(runner, RecordStore(database, runner.device), options)


def search_measured(net: StageGraph, model: MeasuredCost, options: Options) -> NetworkSchedule:
    """Search by measurements of every stage; the best schedule's stages are measured once more."""
    return confirm(model, partial(_priced, net, model, options))


def search_learned(
    net: StageGraph,
    units: UnitGraph,
    measured: MeasuredCost,
    analytic: AnalyticCost,
    options: Options,
    budget: int = _LEARNED_BUDGET,
) -> tuple[NetworkSchedule, CostModel]:
    """Search by measurements of few stages and predictions for the rest, which correct the device's `analytic` model;
    returns the schedule and the model behind.
    """
    model = LearnedCost(measured, analytic)
    alone = [(CONCURRENT, [[k]]) for kernels in units.features for k in kernels if k.kind != "view"]
    measured.fill(alone)  # several at a time where the bench can
    return refine(model, partial(_priced, net, model, options), budget + len(set(map(str, alone))), alone), model


def _priced(net: StageGraph, model: CostModel, options: Options) -> tuple[NetworkSchedule, Stages]:
    """Search the best schedule by a model; return this schedule and the stages priced."""
    best = schedule(net.graph, model, options)
    return best, priced_stages(best)
