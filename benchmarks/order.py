"""`order` against other ways to order operators, on random graphs of 50 to 3,000 operators.

    python benchmarks/order.py [--cases FOLDER] [--hmcos PROGRAM]

Writes `results/order.md`. FOLDER holds plain graphs (`ordering.graph_file`), default: $TVM_CASCADE_TEST_DATA/cases/order.
Whole tensors, nothing overwritten; every order is measured by the validator. Made again here, from their descriptions:

- *file order*, which TFLM runs; its arena is laid out by its greedy planner, largest tensors first, which takes more;
- *list scheduler*, as XLA has it: next runs the ready operator that frees most less what it makes, then the one with most users;
- *greedy*: next runs the ready operator after which the fewest bytes are live;
- *chains*, hierarchical in the line of HMCOS (DAC 2022): chains of operators are one each, and these are ordered by beam search.

*HMCOS* itself is PROGRAM, its authors' `op_sched` (`benchmarks/hmcos.py`); its peaks are those that it prints.
Without PROGRAM that column is empty.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from pathlib import Path

from hmcos import MEMORY, SECONDS, peak_by_hmcos

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
COLUMNS = ("TFLM's arena", *WAYS, "HMCOS")  # of the tables, before `order`


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one graph."""

    name: str
    ops: int
    peaks: dict[str, int]  # bytes by way; a way without an answer is missing
    bound: int  # bytes
    seconds: float  # of processor time, of `order`

    @property
    def proven(self) -> bool:
        return self.peaks["order"] == self.bound

    @property
    def cells(self) -> list[str]:
        """The cells of the row in the table of all graphs."""
        star = "*" if self.proven else ""
        peaks = [f"{self.peaks[way]:,}" if way in self.peaks else "" for way in COLUMNS]
        return [
            self.name,
            f"{self.ops:,}",
            *peaks,
            f"{self.peaks['order']:,}{star}",
            f"{self.bound:,}",
            f"{self.seconds:.1f}",
        ]


def measure(name: str, graph: Graph, hmcos: Path | None) -> Row:
    """All orders of one graph."""
    peaks = {"TFLM's arena": arena_of_tflm(graph)}
    peaks |= {way: peak_of(graph, search(graph), in_place=False) for way, search in WAYS.items()}
    if hmcos and (peak := peak_by_hmcos(hmcos, graph)):
        peaks["HMCOS"] = peak
    began = time.process_time()
    found = order(graph, WHOLE)
    seconds = time.process_time() - began
    validate(graph, found.order, found.peak, found.bound, found.optimal, in_place=False)
    return Row(name, len(graph.ops), peaks | {"order": found.peak}, found.bound, seconds)


def geometric_mean(ratios: list[float]) -> str:
    """Of ratios, as text; empty if there are none."""
    return f"{exp(sum(map(log, ratios)) / len(ratios)):.2f}" if ratios else ""


def table(rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table, the first row its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]


def against_hmcos(rows: list[Row]) -> list[str]:
    """A sentence that compares where HMCOS printed a peak."""
    pairs = [(row.peaks["HMCOS"], row.peaks["order"]) for row in rows if "HMCOS" in row.peaks]
    if not pairs:
        return []
    equal, less = sum(peak == ours for peak, ours in pairs), sum(peak < ours for peak, ours in pairs)
    return [
        f"HMCOS printed a peak for {len(pairs)} graphs (up to three runs a graph, each within {SECONDS} s of processor time and",
        f"{MEMORY >> 30} GiB), equal to that of `order` for {equal}, less for {less}. Its mean is of these graphs.\n",
    ]


def report(rows: list[Row]) -> str:
    """The page of results."""
    means = [geometric_mean([r.peaks[way] / r.peaks["order"] for r in rows if way in r.peaks]) for way in COLUMNS]
    means.append(geometric_mean([row.bound / row.peaks["order"] for row in rows]))
    proven = sum(row.proven for row in rows)
    lines = [
        "# Orders of operators: peak memory by way\n",
        "`python benchmarks/order.py --hmcos PROGRAM`; what each way is stands at its head. Bytes, whole tensors, nothing",
        "overwritten; an asterisk: proven optimal. Seconds: of processor time, `order` alone, at its default effort. Wired",
        "graphs of one seed and span begin alike, so that larger ones often have the peak of smaller ones.\n",
        *against_hmcos(rows),
        f"{len(rows)} graphs, {proven} of them proven. Geometric means of bytes over those of `order`:\n",
        *table([[*COLUMNS, "bound"], means]),
        "",
        *table([["graph", "operators", *COLUMNS, "order", "bound", "seconds"], *(row.cells for row in rows)]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    data = os.environ.get("TVM_CASCADE_TEST_DATA")
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cases", type=Path, default=Path(data) / "cases" / "order" if data else None)
    parser.add_argument("--hmcos", type=Path, help="op_sched, built from wzh99/HMCOS")
    args = parser.parse_args()
    rows = []
    for name, graph in graphs(args.cases):
        rows.append(measure(name, graph, args.hmcos))
        print(" | ".join(rows[-1].cells), flush=True)
    RESULTS.write_text(report(rows))


if __name__ == "__main__":
    main()
