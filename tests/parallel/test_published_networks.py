"""NASNet and RandWire as the authors of IOS count them: operators and blocks of Table 2."""

from __future__ import annotations

from itertools import pairwise

from tvm_cascade.graph import Graph
from tvm_cascade.parallel.units import UnitGraph, unit_graph
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.testing.zoo import nasnet_large, randwire_files


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


def part_of(units: UnitGraph, graph: Graph, part: range) -> tuple[object, ...]:
    """What tells a part's kind and map apart, whatever the channels that it reads: its anchors and their rows."""
    anchors = [graph.ops[units.units[v].anchor] for v in part]
    rows = [(a.kind, a.windows[:1], graph.tensors[a.outputs[0]].shape[2:]) for a in anchors]
    return tuple(sorted(map(repr, rows)))


def test_nasnet_has_the_papers_operators_and_blocks():
    graph = stage_graph(nasnet_large.nasnet_large(43, 8)).graph
    units = unit_graph(graph, "cell")
    assert len(units.units) == nasnet_large.OPERATORS == 374
    found = cells(units, graph)
    assert len(found) == 22 and sum(map(len, found)) == 374 - 3  # a convolution in front, a relu and a pool behind
    kinds = {shape_of(units, c) for c in found}
    assert len(kinds) == 16  # of equal shapes: 2 stems, 3 first cells, 2 reductions, 3 * 3 normal ones
    parts = [range(1), *found, range(372, 373), range(373, 374)]  # as the authors' `get_parts` cuts
    assert len(parts) == 25
    # of one kind and map: a convolution, 2 stems, 3 first cells, 3 normal ones, 2 reductions, a relu, a pool
    assert len({part_of(units, graph, p) for p in parts}) == nasnet_large.BLOCKS == 13


def test_randwire_has_the_papers_operators_and_blocks(test_data):
    cases = test_data / "cases" / "ios"
    first = randwire_files.drop_sink(*randwire_files.read_edges(cases / "blocks" / "randwire_1.txt"))
    rest = [randwire_files.read_edges(cases / f"randwire_ws-32-4-0.75-{k}.txt") for k in (3, 4, 5)]
    graph = stage_graph(randwire_files.network([first, *rest], size=64, channels=8, head=16)).graph
    units = unit_graph(graph, "cell")
    assert [n for n, _ in (first, *rest)] == [16, 32, 32, 32]  # three blocks, and a small one in front
    # In front a convolution, behind a relu, a convolution, a pool. The authors end the small stage, which has one sink, with an
    # identity that sums one tensor: it is counted and copies; no program needs it.
    copies = sum(len({u for u, _ in wires} ^ set(range(nodes))) == 1 for nodes, wires in (first, *rest))
    assert copies == 1
    assert len(units.units) + copies == 1 + 17 + 3 * 33 + 3 == randwire_files.OPERATORS == 120
