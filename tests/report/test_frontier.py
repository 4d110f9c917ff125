"""The frontier: no point that another beats in bytes, work and instructions; smaller steps are on it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cores import get_core
from tvm_cascade.report.frontier import frontier_report, unbeaten
from tvm_cascade.testing.graphs import ds_cnn, resnet8

STEPS = get_core("cortex-m4").steps


def test_unbeaten_plans_by_pairs() -> None:
    random = Random(0)
    for _ in range(200):
        figures = [
            (random.randrange(5), random.randrange(4), float(random.randrange(4)))
            for _ in range(random.randrange(1, 9))
        ]
        plans: list[Any] = [SimpleNamespace(number=k) for k in range(len(figures))]
        kept = [p.number for p in unbeaten(plans, figures)]
        beaten = {
            k
            for k, own in enumerate(figures)
            if any(o != own and o[0] <= own[0] and o[1] <= own[1] and o[2] <= own[2] for o in figures)
        }
        distinct = {figures[k]: k for k in reversed(range(len(figures))) if k not in beaten}
        assert kept == [distinct[f] for f in sorted(distinct)]


def test_smaller_steps_are_points_of_the_frontier() -> None:
    for graph in (ds_cnn(), resnet8()):
        options = PlanOptions(steps=STEPS, max_time=1.0, max_macs=1.0)
        chosen = plan_graph(graph, options)
        report = frontier_report(graph, options, chosen, whole=True)
        smaller = plan_graph(graph, replace(options, max_time=100.0))
        assert smaller.peak < chosen.peak
        assert (smaller.peak, 1.0) in report.points and (chosen.peak, 1.0) in report.points
        at = dict(zip(report.points, report.estimates, strict=True))
        assert at[smaller.peak, 1.0].instructions > at[chosen.peak, 1.0].instructions
        figures = [(peak, factor, e.instructions) for (peak, factor), e in at.items()]
        for own in figures:
            assert not any(o != own and all(a <= b for a, b in zip(o, own, strict=True)) for o in figures)
