"""SwiftNet, the network of Serenity's own figures, from its file: every published number and our corrections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tvm_cascade.graph import Graph
from tvm_cascade.ordering import OrderOptions, kahn_fifo, order, peak_of, validate
from tvm_cascade.ordering.report import order_report
from tvm_cascade.ordering.rewriting import fold_concats, nodes
from tvm_cascade.testing.channel_partition import Accumulate, cell, partition_channels
from tvm_cascade.testing.tflite_graph import graph_of

CELLS = {"A": range(5, 33), "B": range(34, 57), "C": range(58, 82)}

# form: nodes (one for the cell's input included) and optimal peak of cells A, B, C
OPTIMA = {
    "folded": ((21, 200_704), (19, 81_536), (22, 32_536)),
    "beside": ((33, 188_160), (28, 59_584), (29, 16_856)),
    "in place": ((33, 163_072), (28, 53_312), (29, 16_268)),
    "int32": ((None, 301_056), (None, 119_168), (None, 28_224)),
    "concat": ((None, 275_968), (None, 122_304), (None, 53_900)),
}
FIRST_IN_FIRST_OUT = {"folded": (288_512, 128_576, 38_220), "concat": (388_864, 166_208, 53_900)}


@pytest.fixture(scope="module")
def swiftnet(models: Path) -> Graph:
    return graph_of(models / "swiftnet_vww_uint8.tflite")


def form_of(graph: Graph, form: str) -> Graph:
    if form == "concat":
        return graph
    return fold_concats(graph) if form == "folded" else partition_channels(graph, Accumulate(form))


@pytest.mark.parametrize("form", OPTIMA)
@pytest.mark.parametrize("name", CELLS)
def test_cells(swiftnet: Graph, name: str, form: str) -> None:
    graph = form_of(cell(swiftnet, CELLS[name]), form)
    count, best = OPTIMA[form]["ABC".index(name)]
    found = order(graph)
    validate(graph, found.order, found.peak, found.bound, found.optimal)
    assert (found.peak, found.optimal) == (best, True)
    assert count is None or nodes(graph) + 1 == count
    if form in FIRST_IN_FIRST_OUT:
        assert peak_of(graph, kahn_fifo(graph)) == FIRST_IN_FIRST_OUT[form]["ABC".index(name)]


def test_cells_with_concats_have_the_file_s_operators(swiftnet: Graph) -> None:
    assert [len(cell(swiftnet, ops).ops) for ops in CELLS.values()] == [28, 23, 24]


def test_whole_file(swiftnet: Graph) -> None:
    found = order(swiftnet)
    assert (len(swiftnet.ops), found.file_order_peak, found.peak, found.optimal) == (85, 351_232, 275_968, True)


def test_a_split_that_copies_costs_the_input_twice(swiftnet: Graph) -> None:
    first, *rest = swiftnet.ops
    copying = replace(swiftnet, ops=(replace(first, view=False, view_offsets=()), *rest))
    assert order(copying).peak == 301_056


def test_the_switches_change_the_work_and_not_the_optimum(swiftnet: Graph) -> None:
    graph = fold_concats(cell(swiftnet, CELLS["A"]))
    plain = order(graph, OrderOptions(divide=False, budgeting=False, dominance=False))
    full = order(graph)
    assert plain.peak == full.peak == 200_704
    assert full.states < plain.states


def test_report(swiftnet: Graph) -> None:
    report = order_report(swiftnet, rewrite=True, on_chip=256 * 1024)
    assert (report["file_order_peak_bytes"], report["peak_bytes"], report["optimal"]) == (351_232, 200_704, True)
    assert (report["rewritten"], report["traffic_bytes"]) == (True, 0)
    before = report["file_order_step_bytes"]
    assert isinstance(before, list) and max(before) == 351_232
    steps, order_ = report["step_bytes"], report["order"]
    assert isinstance(steps, list) and isinstance(order_, list)
    assert max(steps) == 200_704 and len(steps) == len(order_)
