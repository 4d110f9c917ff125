"""Row rings and cuts: exact heights, known figures, and a validator that tells right from wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_cascade.cascading import cascade, layerwise, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.cascading.validate_structure import check_structure
from tvm_cascade.errors import InfeasibleError, ValidationError
from tvm_cascade.graph import PIXEL, ROW, Tile
from tvm_cascade.testing.graphs import Builder, ds_cnn, mobilenet_v1, mobilenet_v2, resnet8, vgg16
from tvm_cascade.testing.plan_options import ROWS_ALONE, rows_alone

ROWS = rows_alone(overlap=False)


def test_chain_of_stencils_needs_three_rows_each() -> None:
    b = Builder()
    x = b.input(64, 8, 1)
    for _ in range(8):
        x = b.conv(x, 1, 3)
    graph = b.finish(x)
    heights = Cascade(AccessTables(graph), range(8)).held()
    assert [heights[t] for t in range(1, 8)] == [3] * 7


def test_closed_form_on_chains() -> None:
    for kernel, stride, dilation in [(3, 1, 1), (5, 2, 1), (3, 2, 2), (2, 3, 1), (4, 1, 3)]:
        for tile in (ROW, PIXEL, Tile(columns=3)):
            b = Builder()
            mid = b.conv(b.input(40, 5, 1), 1, 3)
            graph = b.finish(b.conv(mid, 1, kernel, stride, dilation=dilation))
            cascade_of = Cascade(AccessTables(graph), range(2), tile)
            assert cascade_of.held()[mid] == cascade_of.closed_form(mid)


def test_skip_is_a_delay_ring() -> None:
    b = Builder()
    x = b.conv(b.input(32, 8, 1), 4, 3)
    graph = b.finish(b.add(x, b.conv(b.conv(x, 4, 3), 4, 3)))
    heights = Cascade(AccessTables(graph), range(4)).held()
    assert heights[x] == 3  # two rows ahead for the stencils, the row of the add itself


@pytest.mark.parametrize(
    ("graph", "before", "after"),
    [
        (mobilenet_v1(96, 96, 1, alpha=0.25, classes=2), 55_296, 23_500),
        (mobilenet_v1(96, 96, 3, alpha=0.25, classes=2), 55_296, 42_000),
        (ds_cnn(), 16_000, 14_500),
        (resnet8(), 49_152, 19_000),
        (mobilenet_v2(160, 160, 3, alpha=0.35), 384_000, 110_000),
        (mobilenet_v2(224, 224, 3), 1_505_280, 280_000),
        (mobilenet_v1(224, 224, 3), 1_204_224, 341_000),
    ],
    ids=["person", "vww", "kws", "resnet8", "v2-035", "v2-100", "v1-100"],
)
def test_known_networks(graph, before: int, after: int) -> None:
    plan = cascade(graph, ROWS)
    assert plan.baseline_peak == before
    assert layerwise(graph, ROWS_ALONE).peak == before
    assert plan.peak <= after
    replay = validate(plan)
    assert (replay.peak, replay.macs) == (plan.peak, graph.macs)


@pytest.mark.parametrize(("rows", "width"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_step_counters_are_as_wide_as_the_steps_ask(rows: int, width: int) -> None:
    b = Builder()
    x = b.input(rows, 1, 1)
    for channels in (8, 8, 1):
        x = b.conv(x, channels, 1)
    plan = cascade(b.finish(x), ROWS)
    (segment,) = plan.segments
    assert segment.state_bytes == 3 * width
    check_structure(plan, 1)
    for wrong in {3 * width - 1, 3 * width // 2, 3 * (width // 2), 0}:
        other = replace(plan, segments=(replace(segment, state_bytes=wrong),))
        with pytest.raises(ValidationError, match="bytes of step counters"):
            check_structure(other, 1)


def test_vgg16_reaches_a_tenth() -> None:
    plan = cascade(vgg16(), ROWS)
    assert plan.baseline_peak == 6_422_528
    assert plan.peak <= 670_000


def test_cap_is_a_cap() -> None:
    graph = mobilenet_v1(96, 96, 1, alpha=0.25, classes=2)
    with pytest.raises(
        InfeasibleError, match="needs 22276 bytes, 4096 available, 18180 bytes missing; peak at conv2d0"
    ) as refused:
        cascade(graph, rows_alone(sram=4096, overlap=False))
    assert refused.value.needed == 22_276
    loose = cascade(graph, rows_alone(sram=60_000))
    assert all(len(s.trace) == 0 or len(set(s.trace)) == 1 for s in loose.segments)
    with pytest.raises(InfeasibleError, match="--layerwise"):
        layerwise(graph, rows_alone(sram=30_000))
