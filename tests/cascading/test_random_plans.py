"""Random graphs, every option: the replay accepts the plan, no ring can be smaller, the cuts are the best there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from typing import Any

import pytest

from tvm_cascade.cascading import Granularity, Plan, PlanOptions, cascade, layerwise, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.cores import get_core
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import IDENTITY, Graph
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.plan_options import ROWS_ALONE, rows_alone
from tvm_cascade.testing.random_windows import random_graph

OPTIONS: dict[str, dict[str, Any]] = {
    "rows": {"overlap": False},
    "rows, overlap": {},
    "rows, streamed": {"stream_input": True},
    "pixels": {"overlap": False, "pixels": True, "granularity": "pixel"},
    "auto": {"pixels": True, "accumulators": True, "in_place": True},
    "auto, streamed": {"pixels": True, "accumulators": True, "stream_input": True},
}


def has_holes(graph: Graph, tensor: int) -> bool:
    """Whether some reader skips units between those it reads: a ring holds what lies between all the same."""
    windows = [
        per_input[i]
        for op in graph.ops
        for i, t in enumerate(op.inputs)
        if t == tensor
        for per_input in (op.windows, op.columns)
    ]
    return any(w is None or w.dilation > 1 or w.stride > w.extent for w in windows)


def smaller_rings(plan: Plan) -> Iterator[Plan]:
    """The plan with one unit less in one ring, for each ring of more than one whose readers leave no holes."""
    for storage in plan.storages:
        tensor = plan.graph.tensors[storage.tensor]
        if storage.root is not None or not storage.is_ring(tensor.rows) or has_holes(plan.graph, tensor.index):
            continue
        if storage.granularity is Granularity.PIXEL:
            pixels, height = storage.pixels - 1, storage.height
            size = pixels * (tensor.row_bytes // tensor.columns)
        else:
            pixels, height = 0, storage.height - 1
            size = height * tensor.row_bytes
        if size > 0:
            changed = tuple(
                replace(s, pixels=pixels, height=height, size=size) if storage.tensor in (s.tensor, s.root) else s
                for s in plan.storages
            )
            yield replace(plan, storages=changed)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("first", range(0, 20, 10))
def test_replay_and_minimal_rings(first: int, options: dict[str, Any]) -> None:
    for seed in range(first, first + 10):
        graph = random_graph(seed, operators=3 + seed % 9, largest=10)
        plan = cascade(graph, rows_alone(**options))
        replay = validate(plan)
        assert replay.peak <= plan.peak
        assert replay.macs == plan.macs == graph.macs
        for smaller in smaller_rings(plan):
            with pytest.raises(ValidationError):
                validate(smaller)


def orders(graph: Graph) -> Iterator[tuple[int, ...]]:
    return (o for o in permutations(range(len(graph.ops))) if graph.is_order(o))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_best_of_all_orders_and_cuts(seed: int, overlap: bool) -> None:
    """The bound is the minimum over every order and every set of cuts; without sharing the arena meets it."""
    graph = random_graph(seed, operators=2 + seed % 4, largest=9)
    n = len(graph.ops)
    all_cuts = [(0, *inner, n) for size in range(n) for inner in combinations(range(1, n), size)]
    least: int | None = None
    for order in orders(graph):
        costs = SegmentCosts(AccessTables(graph), order, Settings(alignment=1, overlap=overlap))
        table = {(i, j): costs.exact_cost(i, j) for i in range(n) for j in range(i + 1, n + 1)}
        found = min(max(table[piece] for piece in pairwise(cuts)) for cuts in all_cuts)
        least = found if least is None else min(least, found)
    plan = cascade(graph, rows_alone(overlap=overlap, alignment=1))
    validate(plan, alignment=1)
    assert plan.bound == least
    assert overlap or plan.peak == plan.bound


@pytest.mark.parametrize("seed", range(8, 20))
def test_caps(seed: int) -> None:
    graph = random_graph(seed, operators=3 + seed % 9, largest=10)
    least, most = cascade(graph, ROWS_ALONE).peak, layerwise(graph, ROWS_ALONE).peak
    for cap in {least, (least + most) // 2, most}:
        plan = cascade(graph, rows_alone(sram=max(cap, least)))
        assert plan.peak <= max(cap, least)
        validate(plan)


@pytest.mark.parametrize(
    ("seeds", "operators", "options"),
    [
        ((5020,), 9, rows_alone(alignment=16, pixels=True)),
        (range(100, 106), 4, rows_alone()),
        (range(100, 106), 4, rows_alone(overlap=False)),
        (range(100, 106), 4, rows_alone(stripes=True, max_macs=2.0)),
        (range(100, 106), 4, PlanOptions(steps=get_core("cortex-m4").steps, max_time=1.05)),
    ],
    ids=["aligned", "rows", "apart", "recompute", "time"],
)
def test_what_was_planned_without_a_cap_fits_a_cap_of_its_size(
    seeds: Sequence[int], operators: int, options: PlanOptions
) -> None:
    """Searches under a cap look for little overhead first, and missed arenas that were found without one."""
    for seed in seeds:
        graph = random_graph(seed, operators=operators, largest=5 + seed % 9)
        free = cascade(graph, options)
        for cap in (free.peak, free.peak + 50):
            plan = cascade(graph, replace(options, sram=cap))
            validate(plan, options.alignment)
            assert plan.bound <= plan.peak <= cap


def test_deterministic() -> None:
    graph = random_graph(5, operators=9)
    options = rows_alone(pixels=True, accumulators=True, stream_input=True)
    first, second = cascade(graph, options), cascade(graph, options)
    assert (first.segments, first.storages, first.allocation.offsets) == (
        second.segments, second.storages, second.allocation.offsets,
    )  # fmt: skip


def test_only_the_first_output_is_written_over_an_input() -> None:
    """`Op.in_place` names inputs that output 0 may overwrite; plans keep the others apart, and the replay refuses them there."""
    b = Builder()
    x, (first, second) = b.relu(b.input(4, 4, 4)), [b.tensor((1, 4, 4, 4)) for _ in range(2)]
    b.op("two", [x], [first, second], [IDENTITY], [IDENTITY], in_place=(0,))
    plan = layerwise(b.finish(b.relu(first), b.relu(second)))
    places = {f"tensor {x}": 0, f"tensor {first}": 0, f"tensor {second}": 64}
    free = [places.get(name, 128 + 64 * k) for k, name in enumerate(plan.buffers)]
    for over, apart, valid in ((first, second, True), (second, first, False)):
        at = dict(zip(plan.buffers, free, strict=True)) | {f"tensor {over}": 0, f"tensor {apart}": 64}
        moved = replace(
            plan, allocation=replace(plan.allocation, offsets=tuple(at.values()), peak=max(at.values()) + 64)
        )
        if valid:
            validate(moved)
            continue
        with pytest.raises(ValidationError, match="writes over what it reads"):
            validate(moved)
    larger = Builder()
    x, outputs = larger.relu(larger.input(4, 4, 4)), (larger.tensor((1, 4, 4, 8)), larger.tensor((1, 4, 4, 4)))
    larger.op("two", [x], outputs, [IDENTITY], [IDENTITY], in_place=(0,))
    validate(cascade(larger.finish(*outputs), PlanOptions()))
