"""Measure stages on a farm: all stages of a search are compiled here, in order, and timed by as many servers as are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.interface import Groups, OpFeatures
from tvm_cascade.cost.measured import MeasuredCost, MeasureOptions, RecordedCost
from tvm_cascade.cost.records import CONCURRENT, MERGE
from tvm_cascade.parallel.problem import Options
from tvm_cascade.parallel.scheduler import schedule
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.runtime.bench import Timer
from tvm_cascade.runtime.farm import FarmBench, FarmTimer
from tvm_cascade.runtime.measure import CpuRunner
from tvm_cascade.schedules.stages.stage_records import TunedKernels
from tvm_cascade.search_monitor import monitor

QUICK = MeasureOptions(first=20, most=20)  # one round: a further one would be a job of its own
_ROUNDS = 5  # of guessing what a search asks for; what is missed is measured by the search, one by one


class FarmRunner(CpuRunner):
    """A `cost.interface.BatchRunner` for the operators of one network."""

    def __init__(self, net: StageGraph, units: UnitGraph, bench: FarmBench) -> None:
        super().__init__(net, units, tuned=TunedKernels(None, bench.target), bench=bench)
        self._used: list[Timer] | None = None  # timers that a stage uses, while they are collected

    def ahead(self, stages: Sequence[tuple[str, Groups]], repeats: int) -> Iterator[tuple[str, Groups]]:
        """See `BatchRunner`. Ends early where a limit strikes; then some stages are not yielded."""
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
        """Stages that are measured by now; to `wait`, after one more job."""
        pending = any(t.job.samples is None for timers in open_stages.values() for t in timers)
        for _ in self._farm.finished(wait and pending):
            pass
        for k in [k for k, timers in open_stages.items() if all(t.job.samples is not None for t in timers)]:
            del open_stages[k]
            yield stages[k]

    @property
    def _farm(self):
        assert isinstance(self.bench, FarmBench)
        return self.bench.farm

    def _timers_of(self, strategy: str, groups: Groups) -> list[FarmTimer]:
        """The timers of a stage, compiled now where they are new."""
        self._used = []
        try:
            self.run_merged(groups[0], 1) if strategy == MERGE else self.run(groups, 1)
            return [timer for timer in self._used if isinstance(timer, FarmTimer)]
        finally:
            self._used = None

    def _measured(self, timer: Timer, repeats: int) -> list[float]:
        if self._used is None:
            return timer(repeats)
        self._used.append(timer)
        return [0.0] * repeats


class _Guess(RecordedCost):
    """Costs of stages that were measured, else the analytic model's, scaled to them; remembers what it was asked."""

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


def fill_for_search(net: StageGraph, model: MeasuredCost, options: Options) -> None:
    """Measure the stages that a search asks for, before it does so one by one.

    Which those are depends on costs, by branch and bound. They are guessed by searching with the analytic model, measured,
    and guessed anew with what was measured, until nothing is new: then the search will find all that it needs.
    """
    analytic = AnalyticCost(find_device("cpu", "llvm", model.runner.workers))
    for _ in range(_ROUNDS):
        guess = _Guess(model, analytic)
        schedule(net.graph, guess, options)
        if all(model.known(*stage) is not None for stage in guess.stages) or monitor().over():
            return
        model.fill(guess.stages)
