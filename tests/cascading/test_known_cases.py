"""Cases with published figures: the RFC's example, the two of TVM's former cascader, the networks of the literature."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tvm_cascade.cascading import Plan, assemble, bounds, cascade, layerwise, validate
from tvm_cascade.graph import IDENTITY, Graph, Window
from tvm_cascade.testing.graphs import Builder, ds_cnn, mobilenet_v1, resnet8, vgg16
from tvm_cascade.testing.plan_options import rows_alone

PIXELS: dict[str, Any] = {"pixels": True, "accumulators": True}


def without_io(plan: Plan) -> int:
    """Bytes of the arena but for graph inputs and outputs, where these overlap with nothing."""
    graph = plan.graph
    return plan.peak - sum(graph.tensors[t].bytes for t in (*graph.inputs, *graph.outputs))


def test_example_of_the_rfc() -> None:
    """26x26x3 -> conv 3x3x32 -> conv 1x1x8: 18,432 bytes between them become 1,152 in the RFC, one pixel here."""
    b = Builder()
    mid = b.conv(b.input(26, 26, 3), 32, 3, valid=True)
    graph = b.finish(b.conv(mid, 8))
    assert graph.tensors[mid].bytes == 18_432
    rows = cascade(graph, rows_alone(overlap=False))
    assert rows.storages[mid].size == 24 * 32
    pixels = cascade(graph, rows_alone(overlap=False, pixels=True))
    assert pixels.storages[mid].size == 32
    assert without_io(pixels) <= 1_152
    validate(pixels)


def two_convolutions() -> Graph:
    """321x212x6 -> 3x2, 10 channels, VALID, dilation (2, 1) -> 1x1, 3 channels, stride (3, 2), SAME."""
    b = Builder()
    x = b.conv(b.input(321, 212, 6), 10, (3, 2), valid=True, dilation=(2, 1))
    return b.finish(b.conv(x, 3, 1, (3, 2)))


def four_operators() -> Graph:
    """80x75x3 -> conv 3x2 -> depthwise 3x3 and relu -> conv 3x2 -> max pool 3x3."""
    b = Builder()
    x = b.conv(b.input(80, 75, 3), 7, (3, 2), valid=True)
    x = b.relu(b.depthwise(x, 3, valid=True))
    return b.finish(b.max_pool(b.conv(x, 2, (3, 2)), 3, 1))


@pytest.mark.parametrize(
    ("graph", "former"), [(two_convolutions(), 4_080), (four_operators(), 15_200)], ids=["two", "four"]
)
def test_former_cascader(graph: Graph, former: int) -> None:
    plan = cascade(graph, rows_alone(overlap=False))
    assert without_io(plan) <= former
    validate(plan)


@pytest.mark.parametrize(
    ("graph", "resident", "disjoint", "streamed"),
    [
        (mobilenet_v1(96, 96, 1, alpha=0.25, classes=2), 14_500, 20_500, 12_500),
        (mobilenet_v1(96, 96, 3, alpha=0.25, classes=2), 31_500, 39_000, 13_000),
        (resnet8(), 16_500, 17_000, 14_000),
        (ds_cnn(), 5_000, 5_000, 5_000),
        (mobilenet_v1(224, 224, 3), 290_000, 290_000, 290_000),
    ],
    ids=["person", "vww", "resnet8", "kws", "v1-100"],
)
def test_smallest_arenas(graph: Graph, resident: int, disjoint: int, streamed: int) -> None:
    ways: list[tuple[int, dict[str, Any]]] = [
        (resident, {}),
        (disjoint, {"overlap": False}),
        (streamed, {"stream_input": True}),
    ]
    for limit, more in ways:
        plan = cascade(graph, rows_alone(**PIXELS, **more))
        assert plan.bound <= plan.peak <= limit
        assert plan.macs == plan.baseline_macs
        if graph.macs < 5_000_000:
            validate(plan)


def test_vgg16() -> None:
    assert cascade(vgg16(), rows_alone(overlap=False)).peak <= 670_000
    assert cascade(vgg16(), rows_alone(**PIXELS)).peak <= 400_000


def test_bounds_of_rows_and_pixels() -> None:
    """Without sharing, the rolling bounds of the literature, plus the driver's counters."""
    graph = mobilenet_v1(96, 96, 3, alpha=0.25, classes=2)
    proven = bounds(graph, rows_alone(overlap=False))
    assert (proven.rows, proven.pixels) == (40_704 + 4, 37_952 + 16)
    assert cascade(graph, rows_alone(overlap=False)).peak == proven.rows


def test_element_wise_operators_overwrite_maps_of_several_planes() -> None:
    """NCHW: a step writes a row of every plane, so the output lies exactly where the input is, not behind it."""
    b, window = Builder(), Window(3, 1, 1, 1)

    def tensor(channels: int) -> int:
        return b.tensor((1, channels, 6, 5), rows=2, columns=3)

    x, made, y = tensor(1), [tensor(4) for _ in range(3)], tensor(1)
    b.inputs.append(x)
    b.op("conv2d", [x], made[:1], [window], [window])
    for before, after in pairwise(made):
        b.op("relu", [before], [after], [IDENTITY], [IDENTITY], in_place=(0,))
    b.op("conv2d", made[-1:], [y], [window], [window])
    plan = layerwise(b.finish(y))
    validate(plan)
    offsets = assemble.offsets_of(plan)
    assert plan.peak == plan.bound == 150
    assert len({offsets[f"tensor {t}"] for t in made}) == 1
