"""Stage costs measured on the device, as in IOS, section 5.

The cost is the median over runs, repeated until the 95 % confidence interval is narrow; cached by structure in a
database. A search over thousands of noisy costs prefers stages measured too low. `confirm` therefore measures the best
schedule's stages again and repeats the search, until the schedule stays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tvm_cascade.cost.interface import NO_BOUND, BatchRunner, Groups, OpBound, OpFeatures, Runner
from tvm_cascade.cost.records import CONCURRENT, MERGE, Record, RecordStore, stage_key
from tvm_cascade.search_monitor import monitor


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """When to stop repeating a measurement."""

    first: int = 10  # runs of a stage in the first round; every further round doubles their number
    most: int = 80  # no further round from this number of runs on
    precision: float = 0.03  # half width of the confidence interval, relative to the median
    rounds: int = 3  # limit of `confirm`


class RecordedCost(ABC):
    """A cost model that prices every stage as a whole (`price`), and has no lower bounds."""

    fork_ms = 0.0
    name: str

    @abstractmethod
    def price(self, strategy: str, groups: Groups) -> float:
        """Return the milliseconds of a stage; for a merge, `groups` is a single group with the merged operators."""

    def op_ms(self, op: OpFeatures) -> float:
        """Return the milliseconds of the operator alone."""
        return self.stage_ms([[op]])

    def stage_ms(self, groups: Groups) -> float:
        """Return the milliseconds of a concurrent stage."""
        return self.price(CONCURRENT, groups)

    def merged_ms(self, merged: OpFeatures, parts: Sequence[OpFeatures]) -> float:
        """Return the milliseconds of the merged operator."""
        return self.price(MERGE, [parts])

    def bound(self, op: OpFeatures, mergeable: bool) -> OpBound:
        """Return zeros: measured costs prove no bound, so the search prices every stage."""
        return NO_BOUND


class MeasuredCost(RecordedCost):
    """Costs from a `Runner`, through a `RecordStore`: medians, measured unless the store knows them."""

    def __init__(self, runner: Runner, store: RecordStore, options: MeasureOptions = MeasureOptions()) -> None:
        self.runner, self.store, self.options = runner, store, options
        self.name = f"measured:{runner.device}"
        self.measurements = 0

    def price(self, strategy: str, groups: Groups) -> float:
        return self.record(strategy, groups).median

    def known(self, strategy: str, groups: Groups) -> float | None:
        """Return the price for a measured stage, or for a stage without computation; None otherwise."""
        computing = moving(groups)
        record = self.store.get(stage_key(strategy, computing))
        return record.median if record is not None else None if computing else 0.0

    def record(self, strategy: str, groups: Groups) -> Record:
        """Return the stage's record; a new stage is measured."""
        computing = moving(groups)
        known = self.store.get(stage_key(strategy, computing))
        if known is not None:
            return known
        if not computing:
            return Record("", strategy, (), (0.0,))
        self.measurements += 1
        measured = self.store.add(strategy, computing, self._run(strategy, computing, self.options.first))
        while len(measured.samples) < self.options.most and not self._precise(measured):
            measured = self.store.add(strategy, computing, self._run(strategy, computing, len(measured.samples)))
        return measured

    def again(self, strategy: str, groups: Groups) -> None:
        """Add a fresh set of samples to a stage's record."""
        computing = moving(groups)
        if computing:
            self.store.add(strategy, computing, self._run(strategy, computing, self.options.first))

    def fill(self, stages: Iterable[tuple[str, Groups]]) -> None:
        """Measure the new stages: several at a time if the runner can, each written when done."""
        if not isinstance(self.runner, BatchRunner):
            return
        new = {stage_key(s, moving(g)): (s, moving(g)) for s, g in stages}
        todo = [stage for key, stage in new.items() if stage[1] and self.store.get(key) is None]
        for strategy, groups in self.runner.ahead(todo, self.options.first):
            self.record(strategy, groups)

    def all_again(self, stages: Iterable[tuple[str, Groups]]) -> None:
        """Measure every stage once more, several at a time if the runner can."""
        todo = [(s, moving(g)) for s, g in stages if moving(g)]
        for strategy, groups in (
            self.runner.ahead(todo, self.options.first) if isinstance(self.runner, BatchRunner) else todo
        ):
            self.again(strategy, groups)

    def _run(self, strategy: str, groups: Groups, repeats: int) -> list[float]:
        return self.runner.run_merged(groups[0], repeats) if strategy == MERGE else self.runner.run(groups, repeats)

    def _precise(self, record: Record) -> bool:
        low, high = record.interval
        return high - low <= 2 * self.options.precision * record.median


def moving(groups: Groups) -> list[list[OpFeatures]]:
    """Groups without their views, which cost nothing; groups of views alone are left out."""
    computing = [[op for op in group if op.kind != "view"] for group in groups]
    return [group for group in computing if group]


Stages = tuple[tuple[str, Groups], ...]
Result = TypeVar("Result")  # of a search


def confirm(model: MeasuredCost, search: Callable[[], tuple[Result, Stages]]) -> Result:
    """Search until the winner survives a second measurement of its stages, or a limit strikes.

    `search` returns a result and the stages used as `(strategy, groups)`, priced by `model`.
    """
    result, stages = search()
    for _ in range(model.options.rounds):
        if monitor().over():
            break
        model.all_again(stages)
        result, after = search()
        same = [stage_key(s, moving(g)) for s, g in after] == [stage_key(s, moving(g)) for s, g in stages]
        stages = after
        if same:
            break
    return result
