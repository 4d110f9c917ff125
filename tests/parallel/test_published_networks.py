"""NASNet and RandWire as the authors of IOS count them: operators and blocks of Table 2."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

from tvm_cascade.graph import Graph
from tvm_cascade.parallel.units import UnitGraph, unit_graph
from tvm_cascade.passes.stage_graph import stage_graph
from tvm_cascade.testing.zoo import nasnet_large
from tvm_cascade.testing.zoo.randwire import Wiring, edges


def cells(units: UnitGraph, graph: Graph) -> list[range]:
    """Runs of units that end in a cell's concatenation: one that more than one unit, or none, reads."""
    readers: dict[int, set[int]] = {}
    for unit in units.units:
        for p in units.predecessors[unit.index]:
            readers.setdefault(p, set()).add(unit.index)
    ends = [
        u.index
        for u in units.units
        if any(graph.ops[i].kind == "concat" for i in u.ops) and any(graph.ops[i].kind == "add" for i in u.ops)
    ]
    return [range(a + 1, b + 1) for a, b in pairwise([0, *ends])]


def shape_of(units: UnitGraph, cell: range) -> tuple[object, ...]:
    """What tells a cell's kind apart: its units' features and the edges among them."""
    inside = tuple(
        (units.features[v], tuple(p - cell.start if p in cell else -1 for p in units.predecessors[v])) for v in cell
    )
    return tuple(sorted(map(repr, inside)))


def test_nasnet_has_the_papers_operators_and_blocks():
    graph = stage_graph(nasnet_large.nasnet_large(43, 8)).graph
    units = unit_graph(graph, "cell")
    assert nasnet_large.OPERATORS == 374
    assert (
        len(units.units) == 374 - 1
    )  # the paper counts the last cell's relu apart, here it rides with the concatenation
    found = cells(units, graph)
    assert len(found) == 22 and sum(map(len, found)) == 374 - 3  # a convolution in front, a relu and a pool behind
    kinds = {shape_of(units, c) for c in found[:-1]}
    assert len(kinds) == 16  # of equal shapes: 2 stems, 3 first cells, 2 reductions, 3 * 3 normal ones


def test_randwire_has_the_papers_operators(test_data):
    """120 in the paper, where the last sum and relu are apart from the convolution that alone reads them."""
    spec = importlib.util.spec_from_file_location("randwire_file", Path(__file__).with_name("randwire_file.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net = module.Net("float32", "NCHW")
    x = net.conv(net.input((1, 3, 64, 64), "image"), 8, 3, 2)
    x = module.block(net, x, 16, list(edges(Wiring(16, 4, 0.75, 2))), 8)
    sizes = []
    for k in (3, 4, 5):
        path = test_data / "cases" / "ios" / f"randwire_ws-32-4-0.75-{k}.txt"
        nodes, wires = module.read_edges(path)
        x = module.block(net, x, nodes, wires, 8)
        sizes.append(nodes + 1)
    x = net.conv(net.relu(x), 16, 1)
    graph = stage_graph(net.finish(net.global_pool(x))).graph
    units = unit_graph(graph, "cell")
    assert sizes == [33, 33, 33]
    assert len(units.units) == 1 + 17 + sum(sizes) + 1 == 120 - 2
