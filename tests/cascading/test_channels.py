"""Inverted bottlenecks in groups of channels: the operator that they become, in plans that are replayed, and which are chosen."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain, combinations, product

import pytest

from tvm_cascade.cascading import PlanOptions, cascade, frontier, validate
from tvm_cascade.cascading.channel_search import ChannelSearch, best_groups, frontier_in_groups, plan_in_groups
from tvm_cascade.cascading.channels import Block, blocks, group_counts, in_groups
from tvm_cascade.errors import InfeasibleError, ValidationError
from tvm_cascade.graph import Graph
from tvm_cascade.testing.graphs import Builder

CAN = PlanOptions()


def bottlenecks(
    size: int, *strides: int, channels: int = 4, grow: int = 6, kernel: int = 3, head: bool = True
) -> Graph:
    """Blocks one behind the other, with residual adds where the stride allows."""
    b = Builder()
    x = b.conv(b.input(size, size + 1, 3), channels, 3) if head else b.input(size, size, channels)
    for stride in strides:
        y = b.conv(b.depthwise(b.conv(x, channels * grow), kernel, stride), channels)
        x = b.add(x, y) if stride == 1 else y
    return b.finish(b.global_pool(x) if head else x)


def test_what_a_block_becomes() -> None:
    graph = bottlenecks(9, 1, 2)
    found = blocks(graph)
    assert [(b.expand, b.depthwise, b.project) for b in found] == [(1, 2, 3), (5, 6, 7)]
    assert group_counts(graph, found[0]) == (1, 2, 3, 4, 6)
    merged = in_groups(graph, {found[1]: 3})
    op = next(op for op in merged.ops if op.kernels.channel_tiling is not None)
    assert (op.name, op.windows, len(merged.ops)) == (graph.ops[7].name, graph.ops[6].windows, len(graph.ops) - 2)
    assert (
        op.scratch_bytes == -(-3 * 11 * 8 // 8) * 8 + -(-4 * (8 + 5 * 4) // 8) * 8 + 16
    )  # rows of 10, one more column
    rows = sum(len(range(max(2 * y - 1, 0), min(2 * y + 2, 9))) for y in range(5))
    assert op.macs == graph.ops[5].macs * rows // 9 + graph.ops[6].macs + graph.ops[7].macs


def test_what_is_no_block() -> None:
    graph = bottlenecks(9, 1)
    wide = graph.ops[1].outputs[0]
    assert not blocks(replace(graph, outputs=(*graph.outputs, wide)))  # somebody else wants it
    assert not blocks(bottlenecks(9, 1, grow=1))  # no wider than its input
    floats = tuple(replace(t, dtype="float32") for t in graph.tensors)
    assert not blocks(replace(graph, tensors=floats))  # sums in another order would differ
    b = Builder()
    x = b.depthwise(b.conv(b.input(9, 9, 4), 24, 3), 3)
    assert not blocks(b.finish(b.conv(x, 4)))  # the expansion has a window of its own


def test_blocks_that_share_a_convolution() -> None:
    b = Builder()
    x = b.input(24, 24, 4)
    for channels in (8, 16, 32, 64):  # widening separable convolutions: every projection expands for the next
        x = b.depthwise(b.conv(x, channels), 3, 2)
    graph = b.finish(b.conv(x, 96))
    assert [(k.expand, k.project) for k in blocks(graph)] == [(0, 2), (4, 6)]
    options = replace(CAN, max_macs=1.6, stream_input=True)
    for plan in (cascade(graph, options), *frontier_in_groups(graph, options)):
        assert validate(plan).macs == plan.macs <= 1.6 * graph.macs


@pytest.mark.parametrize("seed", range(8))
def test_random_plans(seed: int) -> None:
    """Every form of plans with channels in groups is replayed; less scratch than a step takes is found."""
    rng = random.Random(seed)
    graph = bottlenecks(rng.randint(4, 7), *(rng.choice((1, 2)) for _ in range(2)), kernel=rng.choice((3, 5)))
    chosen = {b: rng.choice(group_counts(graph, b)) for b in blocks(graph) if rng.random() < 0.8}
    merged = in_groups(graph, chosen)
    for options in (
        CAN,
        replace(CAN, granularity="row"),
        replace(CAN, layerwise=True),
        replace(CAN, stream_input=True),
    ):
        for plan in frontier(merged, replace(options, max_macs=2.0)):
            validate(plan)
            at = [
                k
                for k, s in enumerate(plan.segments)
                if any(merged.ops[o].kernels.channel_tiling is not None for o in s.ops)
            ]
            for k in at:
                less = replace(plan.segments[k], scratch_bytes=plan.segments[k].scratch_bytes - 1)
                with pytest.raises(ValidationError):
                    validate(replace(plan, segments=(*plan.segments[:k], less, *plan.segments[k + 1 :])))


def every_choice(graph: Graph) -> list[dict[Block, int]]:
    found = blocks(graph)
    some = chain.from_iterable(combinations(found, n) for n in range(len(found) + 1))
    return [dict(zip(s, counts, strict=True)) for s in some for counts in product(*(group_counts(graph, b) for b in s))]


@pytest.mark.parametrize(("size", "strides", "channels"), [(5, (1,), 2), (6, (2,), 3), (4, (1, 2), 2)])
def test_choice_against_all(size: int, strides: tuple[int, ...], channels: int) -> None:
    """Against every set of blocks in every number of groups: the choice is never larger than without, and near the best."""
    graph = bottlenecks(size, *strides, channels=channels, grow=4)
    for factor in (1.2, 1.8):
        options = replace(CAN, max_macs=factor, alignment=1)
        search = ChannelSearch(graph, options)
        least = min((b for b, _ in search.trades), default=search.ceiling)
        peaks = {}
        for chosen in every_choice(graph):
            merged = in_groups(graph, chosen)
            if factor * graph.macs >= merged.macs:
                plan = plan_in_groups(graph, merged, options) if chosen else cascade(graph, options)
                peaks[tuple(chosen.items())] = plan.peak
                if not chosen or (len(chosen) == len(blocks(graph)) and all(n == 2 for n in chosen.values())):
                    assert least <= plan.peak
        groups = best_groups(graph, options)
        taken = min(peaks[()], peaks[tuple(groups.items())])
        assert taken <= 1.1 * min(peaks.values())


def test_groups_go_below_stripes() -> None:
    """Blocks of few pixels and many channels, where the narrowest stripes still hold all channels of a window."""
    graph = bottlenecks(6, 1, 1, 1, channels=16, head=False)
    options = replace(CAN, max_macs=1.9)
    plain = cascade(graph, options)
    groups = best_groups(graph, options)
    plan = plan_in_groups(graph, in_groups(graph, groups), options)
    validate(plan)
    assert groups and plan.peak < 0.8 * plain.peak and plan.macs <= 1.9 * graph.macs
    assert (plan.baseline_macs, plan.baseline_peak) == (plain.baseline_macs, plain.baseline_peak)
    points = frontier_in_groups(graph, options)
    assert points[0].peak <= plan.peak
    for point in points:
        validate(point)
        assert graph.macs < point.macs <= 1.9 * graph.macs


def test_groups_stay_few() -> None:
    """A cap is met in as few groups as it takes."""
    graph = bottlenecks(6, 1, 1, 1, channels=16, head=False)
    options = replace(CAN, max_macs=1.9)
    finest = best_groups(graph, options)
    least = plan_in_groups(graph, in_groups(graph, finest), options).peak
    capped = replace(options, sram=least + least // 4)
    with pytest.raises(InfeasibleError):
        cascade(graph, capped)
    groups = best_groups(graph, capped)
    assert plan_in_groups(graph, in_groups(graph, groups), capped).peak <= least + least // 4
    assert sum(groups.values()) < sum(finest.values())


def test_only_where_work_is_allowed() -> None:
    graph = bottlenecks(6, 1, 1, channels=16, head=False)
    assert not best_groups(graph, CAN)
    assert not best_groups(graph, replace(CAN, max_macs=2.0, layerwise=True))
    assert not frontier_in_groups(graph, CAN)
    merged = in_groups(graph, dict.fromkeys(blocks(graph), 2))
    with pytest.raises(InfeasibleError):
        plan_in_groups(graph, merged, replace(CAN, max_macs=1.01))
