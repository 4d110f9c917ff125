"""`order` against other ways to order operators, on random graphs of 50 to 3,000 operators.

    python benchmarks/order.py [--cases FOLDER]

Writes `results/order.md`. FOLDER holds plain graphs (`ordering.graph_file`), default: $TVM_CASCADE_TEST_DATA/cases/order.
Whole tensors, nothing overwritten; every order is measured by the validator. Made again here, from their descriptions:

- *file order*, which TFLM runs; its arena is laid out by its greedy planner, largest tensors first, which takes more;
- *list scheduler*, as XLA has it: next runs the ready operator that frees most less what it makes, then the one with most users;
- *greedy*: next runs the ready operator after which the fewest bytes are live;
- *chains*, hierarchical in the line of HMCOS (DAC 2022): chains of operators are one each, and these are ordered by beam search.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import exp, log
from pathlib import Path

from tvm_cascade.graph import Graph, Op, rebuilt
from tvm_cascade.memory.fit import Fit, Placer
from tvm_cascade.ordering import (
    OrderOptions,
    file_order,
    greedy,
    kahn_fifo,
    list_scheduler,
    order,
    peak_of,
    reverse_post_order,
    validate,
)
from tvm_cascade.ordering.graph_file import read_graph
from tvm_cascade.testing.order_arena import arena_problem
from tvm_cascade.testing.random_graphs import cell_graph, wired_graph

RESULTS = Path(__file__).parent / "results" / "order.md"
WHOLE = OrderOptions(in_place=False)


def chains(graph: Graph) -> tuple[int, ...]:
    """Operators that are the only reader of their only predecessor join it; the chains are ordered by beam search."""
    head = list(range(len(graph.ops)))
    for i, before in enumerate(graph.predecessors):
        if len(before) == 1 and graph.successors[before[0]] == (i,) and len(graph.ops[i].inputs) == 1:
            head[i] = head[before[0]]
    groups: dict[int, list[int]] = {}
    for i, h in enumerate(head):
        groups.setdefault(h, []).append(i)
    ops = []
    for k, rows in enumerate(groups.values()):
        first, last = graph.ops[rows[0]], graph.ops[rows[-1]]
        sizes = [sum(graph.tensors[t].bytes for t in graph.ops[i].outputs) for i in rows]
        inside = max((a + b for a, b in pairwise(sizes)), default=0)
        ops.append(Op(k, str(k), "op", first.inputs, last.outputs, scratch_bytes=max(0, inside - sizes[-1])))
    effort = OrderOptions(in_place=False, moves=0, work=1_000_000)
    found = order(rebuilt(graph.tensors, ops, graph.inputs, graph.outputs, graph.name), effort)
    rows = list(groups.values())
    return tuple(i for k in found.order for i in rows[k])


def arena_of_tflm(graph: Graph) -> int:
    """Bytes of the arena of file order, tensors placed from the largest to the smallest into the first gap."""
    problem = arena_problem(graph, file_order(graph), in_place=False)
    largest_first = sorted(range(len(problem.buffers)), key=lambda b: (-problem.buffers[b].size, b))
    placer = Placer(problem)
    placed = placer.place(largest_first, Fit.FIRST)
    assert placed is not None
    return placer.top(placed)


def graphs(cases: Path | None) -> Iterator[tuple[str, Graph]]:
    """The graphs by name."""
    for ops in (50, 100, 200, 300, 500, 1_000, 2_000, 3_000):
        for seed in range(3):
            yield f"wired, {ops} operators, seed {seed}", wired_graph(seed, ops)
    for ops in (100, 400, 1_000):
        for seed in range(2):
            yield f"wired within 40, {ops} operators, seed {seed}", wired_graph(seed, ops, 40)
    for cells in (2, 5, 10, 16, 40):
        for seed in range(2):
            yield f"{cells} cells, seed {seed}", cell_graph(seed, cells)
    for path in sorted(cases.glob("*.json")) if cases is not None else ():
        yield path.stem, read_graph(path)


WAYS: dict[str, Callable[[Graph], tuple[int, ...]]] = {
    "file order": file_order,
    "Kahn": kahn_fifo,
    "reverse post-order": reverse_post_order,
    "list scheduler": list_scheduler,
    "greedy": greedy,
    "chains": chains,
}


def measure(graph: Graph) -> tuple[dict[str, int], int, float]:
    """Bytes by way, the last one ours; its bound; its processor seconds."""
    peaks = {"TFLM's arena": arena_of_tflm(graph)}
    peaks |= {way: peak_of(graph, search(graph), in_place=False) for way, search in WAYS.items()}
    began = time.process_time()
    found = order(graph, WHOLE)
    seconds = time.process_time() - began
    validate(graph, found.order, found.peak, found.bound, found.optimal, in_place=False)
    return peaks | {"order": found.peak}, found.bound, seconds


def main() -> None:
    data = os.environ.get("TVM_CASCADE_TEST_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=Path, default=Path(data) / "cases" / "order" if data else None)
    rows: list[tuple[str, int, dict[str, int], int, float]] = []
    for name, graph in graphs(parser.parse_args().cases):
        rows.append((name, len(graph.ops), *measure(graph)))
        print(f"{name}: {rows[-1][2]['order']}, bound {rows[-1][3]}, {rows[-1][4]:.1f} s", flush=True)
    ways = list(rows[0][2])
    proven = sum(peaks["order"] == bound for _, _, peaks, bound, _ in rows)
    lines = [
        "# Orders of operators: peak memory by way\n",
        "`python benchmarks/order.py`; what each way is stands at its head. Bytes, whole tensors, nothing overwritten; an",
        "asterisk: proven optimal. Seconds: of processor time, `order` alone, at its default effort. Wired graphs of one seed",
        "and span begin alike, so that larger ones often have the peak of smaller ones.\n",
        f"{len(rows)} graphs, {proven} of them proven. Geometric means of bytes over those of `order`:\n",
        f"| {' | '.join(ways[:-1])} | bound |",
        f"|{' --- |' * len(ways)}",
    ]
    means = [exp(sum(log(p[way] / p["order"]) for _, _, p, _, _ in rows) / len(rows)) for way in ways[:-1]]
    means.append(exp(sum(log(bound / p["order"]) for _, _, p, bound, _ in rows) / len(rows)))
    lines += [f"| {' | '.join(f'{mean:.2f}' for mean in means)} |\n"]
    lines += [f"| graph | operators | {' | '.join(ways)} | bound | seconds |", f"|{' --- |' * (len(ways) + 4)}"]
    for name, ops, peaks, bound, seconds in rows:
        star = "*" if peaks["order"] == bound else ""
        values = " | ".join(f"{peaks[way]:,}{star if way == 'order' else ''}" for way in ways)
        lines.append(f"| {name} | {ops:,} | {values} | {bound:,} | {seconds:.1f} |")
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
