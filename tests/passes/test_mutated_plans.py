"""Plans that are wrong in one place are refused, or compute what they should all the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade import pipeline
from tvm_cascade.cascading import plan_graph, validate
from tvm_cascade.cores import KernelTarget, get_core
from tvm_cascade.errors import ValidationError
from tvm_cascade.testing.builder import Value
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.mutations import mutant
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.random_dags import Planned, ways
from tvm_cascade.testing.transposed_branches import random_run, transposed_branches

WAYS = ("min", "rows", "streamed, 2x work", "3x work", "layerwise", "joined, rows", "joined, streamed", "several rows")
MUTANTS, RUN = 40, 3  # of each plan


def network() -> tvm.IRModule:
    """A transpose, branches joined along the channels, two halves of the rows, a mean."""
    net, y = transposed_branches()
    halves = net._emit(relax.op.split(y.expr, [2], axis=1))
    upper, lower = (
        Value(net._emit(relax.TupleGetItem(halves, k)), (1, rows, 4, 8), y.scale, y.zero_point)
        for k, rows in enumerate((2, 4))
    )
    return net.finish([net.conv(upper, 4, 1), net.global_pool(net.conv(lower, 8, 3))])


@pytest.fixture(scope="module")
def planned() -> dict[str, Planned]:
    mod = network()
    prepared = pipeline.prepare(mod, KernelTarget())
    able = ways(mod, prepared)
    graph = replace(
        prepared.graph, ops=tuple(replace(op, kernels=replace(op.kernels, multi_row=True)) for op in prepared.graph.ops)
    )
    whole = plan_graph(graph, rows_alone(layerwise=True)).peak
    tall = plan_graph(graph, rows_alone(granularity="row", sram=whole, steps=get_core("cortex-m4").steps))
    assert any(s.tile.rows > 1 for s in tall.segments)
    return {name: able[name]() for name in WAYS[:-1]} | {WAYS[-1]: (prepared, tall)}


@pytest.fixture(scope="module")
def expected() -> tuple[np.ndarray, list[np.ndarray]]:
    return random_run(network())


@pytest.mark.parametrize("way", WAYS)
def test_mutants(planned: dict[str, Planned], expected: tuple[np.ndarray, list[np.ndarray]], way: str) -> None:
    made, plan = planned[way]
    validate(plan)
    random, refused, accepted = Random(WAYS.index(way)), Counter[str](), []
    for _ in range(MUTANTS):
        name, wrong = mutant(plan, random)
        try:
            validate(wrong)
            accepted.append((name, wrong))
        except ValidationError:
            refused[name] += 1
    assert refused.total() > MUTANTS // 2 and len(refused) > 8
    for name, other in random.sample(accepted, min(RUN, len(accepted))):
        run = run_plan(made, other, [expected[0]])
        for got, want in zip(run.outputs, expected[1], strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{way}: {name}")
        assert run.executed_macs == other.macs and run.arena_high_water <= other.peak
