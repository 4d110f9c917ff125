"""Learned stage costs: gradient-boosted trees predict latencies, and so select the stages worth measuring.

The trees predict log(measured / analytic cost) from features of the stage. The search uses measured costs if known,
else predictions. The stages of the resulting schedule are measured or, if all are known, the stages with the largest
predicted gain; the trees are trained again, and so on until all of these are measured or the budget of measurements is
spent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from typing import Any

import numpy as np

from tvm_cascade.cost.analytic import AnalyticCost
from tvm_cascade.cost.interface import Groups
from tvm_cascade.cost.measured import MeasuredCost, RecordedCost, Result, Stages, moving
from tvm_cascade.cost.records import MERGE, Record, stage_key
from tvm_cascade.errors import MissingToolError
from tvm_cascade.operators.record import Family
from tvm_cascade.operators.table import family
from tvm_cascade.search_monitor import monitor

BATCH = 4  # least number of promising stages measured between two searches, once the schedule's own are measured


def stage_vector(strategy: str, groups: Groups, analytic: AnalyticCost) -> list[float]:
    """Compute a stage's features for the trees: sizes, balance between groups, shares of operator families, analytic
    cost.
    """
    ops = [op for group in groups for op in group]
    families = [family(op.kind) for op in ops]
    lengths = sorted((sum(analytic.op_ms(op) for op in group) for group in groups), reverse=True)
    total = sum(lengths) or 1e-9
    works, sizes = [op.work for op in ops], [op.bytes for op in ops]
    return [
        float(strategy == MERGE),
        float(len(groups)),
        float(len(ops)),
        float(max(len(g) for g in groups)),
        log(total),
        lengths[0] / total,
        (lengths[1] if len(lengths) > 1 else 0.0) / total,
        log(sum(works) + 1),
        log(max(works) + 1),
        log(min(works) + 1),
        log(sum(sizes) + 1),
        log(max(sizes) + 1),
        log(sum(op.weight_bytes for op in ops) + 1),
        log(max(op.output_elements for op in ops) + 1),
        log(min(op.output_elements for op in ops) + 1),
        sum(log(op.reduction) for op in ops) / len(ops),
        sum(log(op.parallel_rows) for op in ops) / len(ops),
        *(families.count(one) / len(ops) for one in Family),
    ]


class LearnedCost(RecordedCost):
    """Stage costs: measured if there is a record, else predicted. `refine` decides which stages are measured."""

    def __init__(self, measured: MeasuredCost, analytic: AnalyticCost, seed: int = 0) -> None:
        self.measured, self.analytic, self.seed = measured, analytic, seed
        self.name = f"learned:{measured.runner.device}"
        self.asked: dict[str, tuple[str, Groups]] = {}  # by key: stages that searches have priced by prediction
        self._guesses: dict[str, float] = {}
        self._trees: Any = None

    def train(self) -> None:
        """Build the trees from all records in the device's store."""
        try:
            import xgboost
        except ImportError:
            raise MissingToolError("xgboost", "pip install xgboost") from None
        records = [r for r in self.measured.store if r.median > 0]
        self._guesses.clear()
        if len(records) < 4:
            return
        rows = np.array([stage_vector(r.strategy, r.groups, self.analytic) for r in records])
        targets = np.array([log(r.median / self._analytic(r.strategy, r.groups)) for r in records])
        settings = {"max_depth": 4, "eta": 0.12, "subsample": 0.9, "seed": self.seed, "nthread": 1}
        self._trees = xgboost.train(settings, xgboost.DMatrix(rows, label=targets), num_boost_round=120)

    def predict(self, stages: Sequence[tuple[str, Groups]]) -> None:
        """Estimate many stages at once: single predictions are slow."""
        missing = [(stage_key(s, g), s, g) for s, g in stages]
        missing = [m for m in missing if m[0] not in self._guesses]
        if not missing:
            return
        shift = np.zeros(len(missing))
        if self._trees is not None:
            shift = self._trees.inplace_predict(np.array([stage_vector(s, g, self.analytic) for _, s, g in missing]))
        for (key, strategy, groups), by in zip(missing, shift, strict=True):
            self._guesses[key] = self._analytic(strategy, groups) * exp(float(by))

    def promising(self, count: int) -> list[tuple[str, Groups]]:
        """List the `count` unmeasured stages with the largest predicted gain over sequential execution."""
        gains: list[tuple[float, str]] = []
        for key, (_, groups) in self.asked.items():
            if self.measured.store.get(key) is None and key in self._guesses:
                alone = sum(self.op_ms(op) for group in groups for op in group)
                gains.append((self._guesses[key] - alone, key))
        return [self.asked[key] for _, key in sorted(gains)[:count]]

    def price(self, strategy: str, groups: Groups) -> float:
        computing = moving(groups)
        if not computing:
            return 0.0
        key = stage_key(strategy, computing)
        known: Record | None = self.measured.store.get(key)
        if known is not None:
            return known.median
        if key not in self._guesses:
            self.asked[key] = strategy, computing
            self.predict([(strategy, computing)])
        return self._guesses[key]

    def _analytic(self, strategy: str, groups: Groups) -> float:
        """Return the analytic cost in ms, for a merged stage the sum over the parts, to be corrected by the trees."""
        return max(self.analytic.stage_ms(groups), 1e-6)


def refine(
    model: LearnedCost,
    search: Callable[[], tuple[Result, Stages]],
    budget: int,
    first: Sequence[tuple[str, Groups]] = (),
) -> Result:
    """Search, measure the stages found, and train, repeatedly, with at most `budget` new measurements; return the last
    result.

    A time limit (`search_monitor`) takes effect at the end of a round.

    Parameters
    ----------
    search : callable
        Returns a result and its stages as `(strategy, groups)`, priced by `model`.
    first : stages
        Measured before anything is predicted: the operators alone, usually.
    """
    start = model.measured.measurements

    def left() -> int:
        return budget - (model.measured.measurements - start)

    for strategy, groups in first:
        if left() > 0:
            model.measured.record(strategy, groups)
    model.train()
    result, stages = search()
    while left() > 0 and not monitor().over():
        before = model.measured.measurements
        for strategy, groups in stages:
            if left() > 0:
                model.measured.record(strategy, groups)
        if model.measured.measurements == before:  # all stages of the schedule are measured: try promising other ones
            for strategy, groups in model.promising(min(left(), max(BATCH, left() // 2))):
                model.measured.record(strategy, groups)
        if model.measured.measurements == before:
            break  # no prediction can improve the result further
        model.train()
        model.predict(list(model.asked.values()))
        result, stages = search()
    return result
