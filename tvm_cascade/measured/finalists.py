"""Final choice of a measured schedule: whole programs are run in turn on the bench that measured the stages.

A sum of stages' medians leaves out effects between stages (caches, the waking of threads), and the least of many noisy
costs is too low. So the searched schedule is run in turn with the sequential and the greedy schedule, and for several
networks with the schedule that makes each network a group of a single stage, on the same inputs. The searched schedule
is kept unless a rival is faster by `MARGIN` in the median of paired runs and the median's confidence interval excludes
chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvm_cascade.cost.interface import CostModel
from tvm_cascade.measured.choose_module import Choice, decide, lowering
from tvm_cascade.parallel.problem import Options, Schedule
from tvm_cascade.parallel.scheduler import NetworkSchedule, apart, schedule, stage_ms
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.runtime.bench import Bench, Program
from tvm_cascade.runtime.execute import compile_stages
from tvm_cascade.schema.searches import Timed
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.schedule_stages import lower_stages

MARGIN = 0.01
RUNS = 15
_BATCHES = 3
_BASELINES = ("sequential", "greedy")


@dataclass(frozen=True)
class Finalists:
    """Names of the schedules run, the searched first, and the choice with times and ratios."""

    names: tuple[str, ...]
    choice: Choice

    @property
    def chosen(self) -> str:
        return self.names[self.choice.best]

    def to_dict(self) -> Timed:
        """Return the JSON object `measured` of a schedule."""
        return {
            "kept": self.chosen,
            "milliseconds": dict(zip(self.names, self.choice.milliseconds, strict=True)),
            "speedup": dict(zip(self.names, self.choice.ratios, strict=True)),
        }


def keep_fastest(
    net: StageGraph,
    network_schedule: NetworkSchedule,
    model: CostModel,
    options: Options,
    bench: Bench,
    metaschedule: str | Path | None = None,
) -> tuple[NetworkSchedule, Finalists]:
    """Run `network_schedule` and the rivals above; return the fastest with the measurements. Equal schedules run once.

    `bench` runs all schedules. `metaschedule`: folder with records of tuned kernels, used by all.
    """
    candidates = {"searched": network_schedule.schedule}
    others: dict[str, Schedule] = {}
    for name in _BASELINES if options.variant in ("both", "parallel") else ():
        other = schedule(net.graph, model, replace(options, variant=name)).schedule
        others[name] = other
    stage = apart(network_schedule.units, options)
    if stage is not None:
        others["apart"] = Schedule((stage,), stage_ms(network_schedule.units, stage, model))
    for name, other in others.items():
        if all(other.stages != s.stages for s in candidates.values()):
            candidates[name] = other
    programs = programs_of(net, network_schedule.units, tuple(candidates.values()), bench, metaschedule)
    finalists = Finalists(tuple(candidates), judge(bench, programs))
    return replace(network_schedule, schedule=candidates[finalists.chosen]), finalists


def programs_of(
    net: StageGraph, units: UnitGraph, schedules: Sequence[Schedule], bench: Bench, metaschedule: str | Path | None
) -> list[Program]:
    """Compile every schedule for a bench."""
    lower = lowering(bench, metaschedule)
    return [program_of(net, compile_stages(lower_stages(net, units, s, lower), bench.built_for)) for s in schedules]


def program_of(net: StageGraph, built: Any) -> Program:
    """Make a timeable program from a compiled network."""
    return Program(built, [(net.graph.tensors[t].shape, net.graph.tensors[t].dtype) for t in net.graph.inputs])


def judge(bench: Bench, programs: Sequence[Program], runs: int = RUNS) -> Choice:
    """Choose the fastest program: the first, unless another is certainly faster. In doubt all run again, up to
    `_BATCHES` times.
    """
    rounds: list[tuple[float, ...]] = []
    while True:
        columns = bench.in_turn(programs, runs)
        rounds += [tuple(t / 1e3 for t in row) for row in zip(*columns, strict=True)]
        choice = decide(rounds, MARGIN, certain=True)
        if choice.best == decide(rounds, MARGIN).best or len(rounds) >= _BATCHES * runs:
            return choice
