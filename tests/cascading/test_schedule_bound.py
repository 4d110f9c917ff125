"""The bound of all schedules: below the best of all on tiny graphs, below every plan on others, and worth printing."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest

from tvm_cascade.cascading import PlanOptions, cascade
from tvm_cascade.cascading.boundaries import _reads, _reads_all, boundary
from tvm_cascade.cascading.schedule_bound import schedule_bound
from tvm_cascade.graph import Graph, Window
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.pebbles import least_peak
from tvm_cascade.testing.random_windows import random_graph


def tiny_graph(seed: int) -> Graph:
    """One to three operators, at most 13 pixels that they make, sometimes around a residual."""
    rng = Random(seed)
    while True:
        b = Builder()
        x = first = b.input(rng.randint(2, 5), rng.randint(1, 4), rng.randint(1, 3))
        for _ in range(rng.randint(1, 3)):
            kernel, stride = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(1, 2), rng.randint(1, 2))
            x = b.conv(x, rng.randint(1, 4), kernel, stride)
        if b.tensors[x].shape == b.tensors[first].shape:
            x = b.add(x, first)
        graph = b.finish(x)
        if sum(t.rows * t.columns for t in graph.tensors[1:]) <= 13:
            return graph


@pytest.mark.parametrize("seed", range(30))
def test_no_schedule_needs_less(seed: int) -> None:
    graph = tiny_graph(seed)
    assert 0 < schedule_bound(graph) <= least_peak(graph)


def test_it_is_met() -> None:
    """By most of the tiny graphs."""
    assert sum(schedule_bound(graph) == least_peak(graph) for graph in map(tiny_graph, range(30))) >= 27


@pytest.mark.parametrize("seed", range(24))
def test_no_plan_is_smaller(seed: int) -> None:
    graph = random_graph(seed, largest=9)
    assert 0 < schedule_bound(graph) <= cascade(graph, PlanOptions(alignment=1)).peak


def test_joins_views_and_streams() -> None:
    b = Builder()
    x = b.input(16, 16, 4)
    graph = b.finish(b.dense(b.flatten(b.global_pool(b.conv(x, 8, 3, 2))), 2))
    assert schedule_bound(graph, frozenset({x})) < schedule_bound(graph) <= cascade(graph).peak
    assert schedule_bound(graph, frozenset({x})) <= cascade(graph, PlanOptions(stream_input=True)).peak


def test_a_move_in_place_frees_its_input() -> None:
    b = Builder()
    x = b.conv(b.input(6, 5, 2), 4, 1)
    graph = b.finish(b.conv(b.relu(x), 4, 1))
    move = replace(graph.ops[1], windows=(Window(6, 0),), columns=(Window(5, 0),), in_place=())
    apart = replace(graph, ops=(graph.ops[0], move, graph.ops[2]))
    there = replace(move, kernels=replace(move.kernels, in_place_workspace_bytes=8))
    size = graph.tensors[x].bytes
    assert schedule_bound(apart) == 2 * size - 4
    assert schedule_bound(replace(apart, ops=(graph.ops[0], there, graph.ops[2]))) == size


def test_a_chain_of_convolutions_needs_its_rings() -> None:
    """Two rows of each map but the last, whatever the order of its pixels."""
    b = Builder()
    x = b.input(40, 8, 1)
    for _ in range(3):
        x = b.conv(x, 16, 3, 1)
    graph = b.finish(b.global_pool(x))
    assert schedule_bound(graph) >= 2 * 2 * 8 * 16


def test_squares_have_the_smallest_boundary() -> None:
    """In a corner, of k x k pixels with windows of 3 x 3: (k + 1)^2 are needed, (k - 1)^2 are complete."""
    window = Window(3, 1, 1, 1)
    bound = boundary(window, window, (20, 20), (20, 20))
    for k in range(1, 10):
        assert (bound.needed[k * k], bound.completed[k * k]) == ((k + 1) ** 2, (k - 1) ** 2)
        assert bound.between[k * k] == bound.between[400 - k * k] == 4 * k


Axis = tuple[Window, int, int]  # of a map: the window along it, inputs, outputs


def random_axis(rng: Random, outputs: int) -> Axis:
    """With strides, dilations, upsampling, padding, or all inputs read by every output."""
    extent = rng.choice((1, 2, 3, 3, 4, 5))
    stride, dilation = rng.choice(((1, 1), (1, 1), (2, 1), (3, 1), (1, 2)))
    up = rng.choice((1, 1, 2)) if stride == dilation == 1 else 1
    window = Window(extent, stride, dilation, rng.randint(0, extent - 1), up)
    inputs = max(1, window.first(outputs - 1) + window.span - rng.randint(0, min(2, extent - 1)))
    if rng.random() < 0.15:
        inputs = rng.randint(1, 4)
        window = Window.whole(inputs)
    return window, inputs, outputs


def random_axes(seed: int) -> tuple[Axis, Axis]:
    """Of at most 16 outputs."""
    rng = Random(seed)
    rows, columns = rng.choice(((1, 3), (2, 2), (2, 7), (3, 3), (3, 5), (4, 4), (5, 3)))
    return random_axis(rng, rows), random_axis(rng, columns)


LACKING = (Window(4, 3, 1, 2), 11, 4), (Window(5, 2, 1, 1), 10, 4)  # outputs at the border read fewer inputs


@pytest.mark.parametrize("axes", [LACKING, *map(random_axes, range(40))])
def test_boundaries_hold_for_all_sets_of_pixels(axes: tuple[Axis, Axis]) -> None:
    """What any m pixels complete, need and leave between, among the inputs that are counted."""
    (rows, height, oh), (columns, width, ow) = axes
    bound = boundary(rows, columns, (height, width), (oh, ow))
    readers: dict[tuple[int, int], int] = {}  # masks of the outputs that read an input
    for k, (y, x) in enumerate(product(range(oh), range(ow))):
        for pixel in product(_taps(rows, y, height), _taps(columns, x, width)):
            readers[pixel] = readers.get(pixel, 0) | 1 << k
    sets = np.arange(1 << oh * ow)
    sizes = sum((sets >> k & 1 for k in range(oh * ow)), start=np.zeros_like(sets))
    needed = sum(((sets & mask != 0).astype(int) for mask in readers.values()), start=np.zeros_like(sets))
    done = sum(((sets & mask == mask).astype(int) for mask in readers.values()), start=np.zeros_like(sets))
    most = np.zeros(oh * ow + 1, int)
    least, between = np.full((2, oh * ow + 1), len(readers))
    np.maximum.at(most, sizes, done)
    np.minimum.at(least, sizes, needed)
    np.minimum.at(between, sizes, needed - done)
    assert bound.pixels <= len(readers)
    assert (bound.needed <= least).all() and (bound.between <= between).all()
    left = len(readers) - bound.pixels  # inputs that are not counted may be completed too
    assert (bound.completed + left >= most).all()


def _taps(window: Window, y: int, size: int) -> list[int]:
    return [t for k in range(window.extent) if 0 <= (t := window.first(y) + k * window.dilation) < size]


def test_windows_that_read_everything() -> None:
    for extent, stride, padding, inputs, outputs in product((1, 3, 6), (0, 1), (0, 1, 2), (1, 2, 5), (1, 2, 4)):
        window = Window(extent, stride, padding=padding)
        assert _reads_all(window, inputs, outputs) == bool(_reads(window, inputs, outputs).all())


def test_signals_of_many_samples_take_little_memory() -> None:
    """Sound as it comes has tens of thousands of samples a second: tables of outputs by inputs would take gigabytes."""
    b = Builder()
    graph = b.finish(b.global_pool(b.conv(b.conv(b.input(1, 16_000, 1), 4, (1, 3)), 8, (1, 3))))
    tracemalloc.start()
    assert 0 < schedule_bound(graph) <= cascade(graph).peak
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
