"""Measure stages on a farm: all stages of a search are compiled here, in order, and timed by as many servers as are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from tvm_cascade.cost import AnalyticCost
from tvm_cascade.cost.interface import BatchRunner, Groups, OpFeatures, Runner
from tvm_cascade.cost.measured import MeasuredCost, MeasureOptions, RecordedCost
from tvm_cascade.cost.records import CONCURRENT, MERGE
from tvm_cascade.parallel.problem import Options
from tvm_cascade.parallel.scheduler import schedule
from tvm_cascade.runtime.bench import Bench
from tvm_cascade.runtime.farm_bench import FarmBench, FarmTimer
from tvm_cascade.search_monitor import monitor
from tvm_cascade.staging.program.graph import StageGraph

QUICK = MeasureOptions(first=20, most=20)  # one round: a further one would be a job of its own
_ROUNDS = 5  # of guessing what a search asks for; what is missed is measured by the search, one by one


class FarmRunner:
    """A `cost.interface.BatchRunner`: another runner, on a farm as bench, several stages at the same time."""

    def __init__(self, runner: Runner, bench: FarmBench) -> None:
        self._runner, self._bench = runner, bench
        self.workers, self.device = runner.workers, runner.device

    def run(self, groups: Groups, repeats: int) -> list[float]:
        """Measure a stage; see `Runner`."""
        return self._runner.run(groups, repeats)

    def run_merged(self, parts: Sequence[OpFeatures], repeats: int) -> list[float]:
        """Measure a merged stage; see `Runner`."""
        return self._runner.run_merged(parts, repeats)

    def ahead(self, stages: Sequence[tuple[str, Groups]], repeats: int) -> Iterator[tuple[str, Groups]]:
        """Measure several stages ahead and yield each; see `BatchRunner`. A limit ends this early, with stages missing."""
        submitted: dict[FarmTimer, None] = {}
        open_stages: dict[int, list[FarmTimer]] = {}
        try:
            for k, (strategy, groups) in enumerate(stages):
                open_stages[k] = self._timers_of(strategy, groups)
                for timer in open_stages[k]:
                    if timer not in submitted:
                        timer.forget()
                        timer.submit(repeats)
                        submitted[timer] = None
                yield from self._complete(stages, open_stages, wait=False)
                if monitor().over():
                    return
            while open_stages and not monitor().over():
                yield from self._complete(stages, open_stages, wait=True)
        finally:
            for timer in submitted:
                timer.forget()

    def _complete(
        self, stages: Sequence[tuple[str, Groups]], open_stages: dict[int, list[FarmTimer]], wait: bool
    ) -> Iterator[tuple[str, Groups]]:
        """Yield the stages measured by now; to `wait`, after one more job."""
        pending = any(not t.job.done for timers in open_stages.values() for t in timers)
        for _ in self._bench.farm.finished(wait and pending):
            pass
        for k in [k for k, timers in open_stages.items() if all(t.job.done for t in timers)]:
            del open_stages[k]
            yield stages[k]

    def _timers_of(self, strategy: str, groups: Groups) -> list[FarmTimer]:
        """Return the timers of a stage, compiling new timers now."""
        with self._bench.collecting() as timers:
            self.run_merged(groups[0], 1) if strategy == MERGE else self.run(groups, 1)
        return timers


def on_farm(runner: Runner, bench: Bench) -> Runner:
    """Return a runner for several stages at a time if the bench is a farm, else the runner itself."""
    return FarmRunner(runner, bench) if isinstance(bench, FarmBench) else runner


class _Guess(RecordedCost):
    """Costs of measured stages, else the analytic model's scaled to them; remembers all stages asked for."""

    name = "guess"

    def __init__(self, measured: MeasuredCost, analytic: AnalyticCost) -> None:
        self.stages: list[tuple[str, Groups]] = []
        self._measured, self._analytic = measured, analytic
        pairs = [(r.median, analytic.stage_ms(r.groups)) for r in measured.store if r.strategy == CONCURRENT]
        self._scale = median([known / guess for known, guess in pairs if guess > 0] or [1.0])

    def price(self, strategy: str, groups: Groups) -> float:
        return self._price(strategy, groups, lambda: self._analytic.stage_ms(groups))

    def merged_ms(self, merged: OpFeatures, parts: Sequence[OpFeatures]) -> float:
        return self._price(MERGE, [parts], lambda: self._analytic.merged_ms(merged, parts))

    def _price(self, strategy: str, groups: Groups, guess: Callable[[], float]) -> float:
        self.stages.append((strategy, groups))
        known = self._measured.known(strategy, groups)
        return self._scale * guess() if known is None else known


def fill_for_search(net: StageGraph, model: MeasuredCost, analytic: AnalyticCost, options: Options) -> None:
    """Measure the stages a search will ask for, several at a time; `analytic` is the device's model.

    By branch and bound, the stages asked for depend on costs. The search runs with the analytic model, the stages found
    are measured, and the search runs again with these measurements until no stage is new. A runner for single stages
    measures nothing here.
    """
    if not isinstance(model.runner, BatchRunner):
        return
    for _ in range(_ROUNDS):
        guess = _Guess(model, analytic)
        schedule(net.graph, guess, options)
        if all(model.known(*stage) is not None for stage in guess.stages) or monitor().over():
            return
        model.fill(guess.stages)
