"""Traces as loops, and operators that sum up what comes."""

from __future__ import annotations

from random import Random

import pytest

from tvm_cascade.cascading import PlanOptions, cascade, validate
from tvm_cascade.cascading.accumulators import accumulator_bytes, with_accumulators
from tvm_cascade.cascading.program import Loop, compress, expand, size
from tvm_cascade.testing.graphs import Builder, ds_cnn, mobilenet_v1, resnet8


def test_loops_of_loops() -> None:
    trace = ([1] * 3 + [2]) * 5 + [7]
    program = compress(trace)
    assert program == (Loop(5, (Loop(3, (1,)), 2)), 7)
    assert list(expand(program)) == trace
    assert size(program) == 7


@pytest.mark.parametrize("seed", range(50))
def test_expand_undoes_compress(seed: int) -> None:
    rng = Random(seed)
    block = [rng.randrange(3) for _ in range(rng.randint(1, 6))]
    trace = [o for _ in range(rng.randint(1, 40)) for o in (block if rng.random() < 0.8 else [rng.randrange(3)])]
    assert list(expand(compress(trace))) == trace


def test_pixel_traces_are_short_programs() -> None:
    plan = cascade(mobilenet_v1(96, 96, 3, alpha=0.25, classes=2), PlanOptions(overlap=False, pixels=True))
    longest = max((s.trace for s in plan.segments), key=len)
    assert len(longest) > 9_000
    assert size(compress(longest)) < 500


def test_accumulators_by_kind() -> None:
    graph = ds_cnn()
    bytes_of = {op.kind: accumulator_bytes(graph, op) for op in graph.ops}
    assert (bytes_of["mean"], bytes_of["dense"], bytes_of["conv2d"], bytes_of["softmax"]) == (256, 48, 0, 0)
    only = {op.kind: op.accumulator_bytes for op in with_accumulators(graph, ["mean"]).ops}
    assert (only["mean"], only["dense"]) == (256, 0)


@pytest.mark.parametrize(("graph", "limit"), [(ds_cnn(), 6_300), (resnet8(), 14_000)], ids=["ds_cnn", "resnet8"])
def test_last_map_never_exists(graph, limit: int) -> None:
    plan = cascade(graph, PlanOptions(accumulators=True))
    validate(plan)
    assert plan.peak <= limit
    summing = [o for s in plan.segments for o in s.accumulating]
    assert [graph.ops[o].kind for o in summing] == ["mean"]


def test_dense_sums_up_a_flattened_map() -> None:
    b = Builder()
    x = b.conv(b.input(20, 8, 2), 8, 3)
    graph = b.finish(b.dense(b.flatten(x), 3))
    without = cascade(graph, PlanOptions(overlap=False))
    plan = cascade(graph, PlanOptions(overlap=False, accumulators=True))
    validate(plan)
    assert plan.peak < without.peak - 1_000
    assert plan.segments[0].accumulating == (2,)
