"""The report of `tvm-cascade stages`: a schedule as a JSON object with stable keys, and as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tvm_cascade.cost import AnalyticCost, CostModel, device_for
from tvm_cascade.graph import Graph
from tvm_cascade.parallel.problem import Options, Schedule
from tvm_cascade.parallel.schedule_file import load_schedule, save_schedule
from tvm_cascade.parallel.scheduler import NetworkSchedule, schedule, stage_ms
from tvm_cascade.parallel.timeline import LISTED, draw_timeline, text_timeline
from tvm_cascade.schema.filled import filled
from tvm_cascade.schema.searches import Beside as BesideJson
from tvm_cascade.schema.searches import Schedule as ScheduleJson
from tvm_cascade.search_monitor import above

Kept = Callable[[tuple[NetworkSchedule, str]], object]  # called with a schedule and the name of its cost model


def stages_report(graph: Graph, options: Options, model: CostModel) -> ScheduleJson:
    """Search for the best schedule of `graph` and describe it as a JSON object; see `describe` for the keys."""
    return describe(schedule(graph, model, options), model)


def describe(network_schedule: NetworkSchedule, model: CostModel) -> ScheduleJson:
    """Describe a network's schedule as a JSON object.

    Keys: `stages` (list of `{strategy, groups}` with groups of operator names), `cost_ms`, `bound_ms`, `sequential_ms`,
    `greedy_ms`, `transitions` (pairs of state and ending, identical blocks once), `priced` (stages priced), `optimal`,
    `gap_percent`, `blocks`, `operators`, `units`, `cost_model`, `description`, `seconds`; of networks without edges between
    them `beside`, the prices of `scheduler.Beside`.
    """
    ops, beside = network_schedule.units.graph.ops, network_schedule.beside
    cost, bound = network_schedule.schedule.cost_ms, network_schedule.schedule.bound_ms
    told: ScheduleJson = {
        "stages": [
            {"strategy": s.strategy, "groups": [[ops[i].name for i in g] for g in s.groups]}
            for s in network_schedule.schedule.stages
        ],
        "cost_ms": cost,
        "bound_ms": bound,
        "sequential_ms": network_schedule.sequential_ms,
        "greedy_ms": network_schedule.greedy_ms,
        "transitions": network_schedule.schedule.transitions,
        "priced": network_schedule.schedule.priced,
        "optimal": network_schedule.schedule.optimal,
        "gap_percent": round(above(cost, bound), 2),
        "blocks": len(network_schedule.sizes),
        "units": len(network_schedule.units.units),
        "operators": len(ops),
        "cost_model": model.name,
        "description": model.described if isinstance(model, AnalyticCost) else "",
        "seconds": network_schedule.schedule.seconds,
    }
    if beside is not None:
        told["beside"] = filled(BesideJson, beside)
    return told


def run_stages(
    graph: Graph,
    target: str = "cuda",
    device: str | None = None,
    *,
    options: Options | None = None,
    model: CostModel | None = None,
    load: str | Path | None = None,
    output: str | Path | None = None,
    picture: str | Path | None = None,
    details: bool = False,
) -> tuple[ScheduleJson, str]:
    """Run the command `stages`: return a schedule's JSON object and text.

    Parameters
    ----------
    target, device : str
        "cuda" or "llvm"; name of a device description, None takes the target's generic description.
    model : CostModel, optional
        None is the analytic model of the device.
    load, output, picture : path, optional
        Saved schedule to price instead of searching; files for the schedule and for a picture of its timeline.
    details : bool
        List every group of the timeline, not only the first.

    Raises `UsageError` for an unknown device or the schedule of another graph, `LoadError` if the schedule cannot be read.
    """
    options = options or Options()
    model = model if model is not None else AnalyticCost(device_for(device, target))
    return finish_report(found_or_loaded(graph, options, model, load), model, output, picture, details=details)


def found_or_loaded(graph: Graph, options: Options, model: CostModel, load: str | Path | None) -> NetworkSchedule:
    """Search the best schedule, or load the schedule in the file `load` and price it by the model."""
    return schedule(graph, model, options) if load is None else _loaded(graph, load, options, model)


def finish_report(
    network_schedule: NetworkSchedule,
    model: CostModel,
    output: str | Path | None,
    picture: str | Path | None,
    kept: Kept = lambda _found: None,
    *,
    details: bool = False,
) -> tuple[ScheduleJson, str]:
    """Save the schedule and draw the timeline, if paths are given; return the JSON object and the text."""
    kept((network_schedule, model.name))
    if output is not None:
        save_schedule(output, network_schedule.units.graph, network_schedule.schedule, model.name)
    if picture is not None:
        draw_timeline(network_schedule.units, network_schedule.schedule, model, picture)
    return describe(network_schedule, model), _text(network_schedule, model, details)


def _loaded(graph: Graph, path: str | Path, options: Options, model: CostModel) -> NetworkSchedule:
    saved = load_schedule(path, graph)
    base = schedule(graph, model, replace(options, variant="greedy"))
    cost = sum(stage_ms(base.units, stage, model) for stage in saved.stages)
    return replace(base, schedule=Schedule(saved.stages, cost, bound_ms=base.schedule.bound_ms))


def _text(network: NetworkSchedule, model: CostModel, details: bool) -> str:
    schedule = network.schedule
    proof = ", proven optimal for this cost" if schedule.optimal else f", bound {schedule.bound_ms:.4f} ms"
    gain = network.sequential_ms / schedule.cost_ms if schedule.cost_ms else 1.0
    described = f" ({model.described})" if isinstance(model, AnalyticCost) else ""
    head = (
        f"{gain:.2f}x as fast as one operator after the other: {schedule.cost_ms:.4f} ms for {network.sequential_ms:.4f}, "
        f"by {model.name}\n"
        f"{len(network.units.graph.ops)} operators, {len(network.units.units)} units, {len(network.sizes)} blocks, "
        f"{len(schedule.stages)} stages; cost model {model.name}{described}\n"
        f"sequential {network.sequential_ms:.4f} ms, greedy {network.greedy_ms:.4f} ms, "
        f"schedule {schedule.cost_ms:.4f} ms{proof}\n"
        f"{schedule.transitions} transitions, {schedule.priced} stages priced, {schedule.seconds:.2f} s\n"
    )
    if network.beside is not None:
        head += f"{network.beside.to_text()}\n"
    return head + text_timeline(network.units, schedule, model, None if details else LISTED)
