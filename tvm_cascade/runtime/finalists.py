"""Final choice of a measured schedule: whole programs are run in turn on this machine's CPU.

A sum of stages' medians leaves out effects between stages (caches, the waking of threads), and the least of many noisy
costs is too low. So the schedule that the search returns is run in turn with the sequential and the greedy one, on the
same inputs, and is kept unless one of these is faster by `MARGIN` in the median of paired runs and the median's confidence
interval excludes chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tvm_cascade.cost.interface import CostModel
from tvm_cascade.parallel.problem import Options, Schedule
from tvm_cascade.parallel.scheduler import NetworkSchedule, schedule
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.passes.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.passes.stage_cpu import threads
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.runtime.choose_module import Choice, decide
from tvm_cascade.runtime.execute import Session, compile_stages
from tvm_cascade.schema.searches import Timed

MARGIN = 0.01
RUNS = 15
_BATCHES = 3
_BASELINES = ("sequential", "greedy")


@dataclass(frozen=True)
class Finalists:
    """Names of the schedules that were run, the searched one first, and the choice with their times and ratios."""

    names: tuple[str, ...]
    choice: Choice

    @property
    def chosen(self) -> str:
        return self.names[self.choice.best]

    def to_dict(self) -> Timed:
        """The JSON object `measured` of a schedule."""
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
    metaschedule: str | Path | None = None,
) -> tuple[NetworkSchedule, Finalists]:
    """`network_schedule`, or the sequential or greedy schedule where that runs faster; and the measurements. Equal ones run once.

    `metaschedule`: folder with records of tuned kernels that all of them run.
    """
    candidates = {"searched": network_schedule.schedule}
    for name in _BASELINES if options.variant in ("both", "parallel") else ():
        other = schedule(net.graph, model, replace(options, variant=name)).schedule
        if all(other.stages != s.stages for s in candidates.values()):
            candidates[name] = other
    sessions = sessions_of(net, network_schedule.units, tuple(candidates.values()), metaschedule)
    rng = np.random.default_rng(0)
    tensors = [net.graph.tensors[t] for t in net.graph.inputs]
    finalists = Finalists(tuple(candidates), judge(sessions, [rng.random(t.shape).astype(t.dtype) for t in tensors]))
    return replace(network_schedule, schedule=candidates[finalists.chosen]), finalists


def sessions_of(
    net: StageGraph, units: UnitGraph, schedules: Sequence[Schedule], metaschedule: str | Path | None
) -> list[Session]:
    """Every schedule compiled for this machine."""
    lower = LowerOptions(workers=threads(), metaschedule=metaschedule)
    return [Session(compile_stages(lower_stages(net, units, s, lower))) for s in schedules]


def judge(sessions: Sequence[Session], data: Sequence[np.ndarray], runs: int = RUNS) -> Choice:
    """Which session is the fastest: the first, unless another certainly is. In doubt all run again, `_BATCHES` times at most."""
    rounds: list[tuple[float, ...]] = []
    while True:
        rounds += in_turn(sessions, data, runs)
        choice = decide(rounds, MARGIN, certain=True)
        if choice.best == decide(rounds, MARGIN).best or len(rounds) >= _BATCHES * runs:
            return choice


def in_turn(sessions: Sequence[Session], data: Sequence[np.ndarray], runs: int) -> tuple[tuple[float, ...], ...]:
    """Seconds of every session, round by round, in reversed order in every other round.

    Each session runs once untimed before its timed run, because the others' weights have filled the caches.
    """
    rounds = []
    for k in range(runs):
        order = range(len(sessions)) if k % 2 == 0 else range(len(sessions) - 1, -1, -1)
        seconds = {s: sessions[s].times_ms(data, 1, 1)[0] / 1e3 for s in order}
        rounds.append(tuple(seconds[s] for s in range(len(sessions))))
    return tuple(rounds)
