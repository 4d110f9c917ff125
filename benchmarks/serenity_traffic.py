"""Off-chip traffic as Serenity's Figure 11 has it, and by our placement in two memories.

python benchmarks/serenity_traffic.py --data FOLDER

The paper's networks at 256 KiB on chip: SwiftNet's cells in bytes, DARTS and RandWire in floats. Averages are geometric means
over cells that move anything in both orders; the paper's legend tells apart what fits on chip in any order ("N/A") and where
Serenity's order avoids all traffic. `placed` is the same integer program that plans use (`memory.pools`): whole tensors, for
their whole lives either on chip at no cost or outside at one cycle a byte. Writes results/serenity_traffic.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serenity import WHOLE, Network, mean, swiftnet, zoo

from tvm_cascade.graph import Graph
from tvm_cascade.machine import Ram
from tvm_cascade.memory import PlacementProblem, place
from tvm_cascade.memory.traffic import traffic
from tvm_cascade.ordering import kahn_fifo, order
from tvm_cascade.ordering.model import model
from tvm_cascade.testing.order_arena import arena_problem

RESULTS = Path(__file__).parent / "results"
ON_CHIP = 256 << 10
PAPER = 1.76  # section 4.2, for 256 KB on chip
_SIZES = (32, 64, 128, 192, 256, 320, 384)  # KiB


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of a network moved between chip and outside, without the compulsory ones."""

    name: str
    kahn: int
    ordered: int
    rewritten: int  # parts of concats read in place, in the optimal order
    placed: int  # whole tensors, in the optimal order


def moved(network: Network, on_chip: int) -> Moved:
    """What a network moves with `on_chip` bytes of memory, in bytes of its own data type."""
    item = 1 if network.name.startswith("SwiftNet") else 4
    chip, folded = on_chip // item, network.folded
    best = order(network.graph, WHOLE).order
    rows = (
        traffic(network.graph, kahn_fifo(network.graph), chip),
        traffic(network.graph, best, chip),
        traffic(folded, order(folded, WHOLE).order, chip),
    )
    return Moved(network.name, *(row.bytes * item for row in rows), placed(network.graph, best, chip) * item)


def placed(graph: Graph, best: Sequence[int], on_chip: int) -> int:
    """Bytes that cross the chip's border where each tensor lies on one side of it, by the placement's integer program."""
    problem = arena_problem(graph, best, in_place=False)
    storages = model(graph, in_place=False).storages
    uses = [float(s.size * (s.writers.bit_count() + s.readers.bit_count())) for s in storages]
    uses += [0.0] * (len(problem.buffers) - len(uses))
    memories = (Ram("chip", on_chip, 0.0), Ram("outside", None, 1.0))
    return round(place(PlacementProblem(problem, memories, tuple(uses))).cycles)


def ratio(before: int, after: int) -> str:
    """How the paper's figure would show it."""
    if not before:
        return "N/A"
    return f"{before / after:.2f}x" if after else "avoided"


def table(found: Sequence[Moved]) -> list[str]:
    """Bytes and ratios of every network, and the averages."""
    lines = [
        "| network | Kahn | optimal order | parts read in place | by order | with rewriting | placed whole |",
        "| --- " * 7 + "|",
    ]
    for m in found:
        ratios = f"{ratio(m.kahn, m.ordered)} | {ratio(m.kahn, m.rewritten)}"
        lines.append(f"| {m.name} | {m.kahn:,} | {m.ordered:,} | {m.rewritten:,} | {ratios} | {m.placed:,} |")
    by_order = [m.kahn / m.ordered for m in found if m.kahn and m.ordered]
    rewritten = [m.kahn / m.rewritten for m in found if m.kahn and m.rewritten]
    average = f"{mean(by_order):.2f}x by order over {len(by_order)}, {mean(rewritten):.2f}x with rewriting over {len(rewritten)}"
    return [*lines, "", f"Geometric means of those that move bytes either way: {average} (paper: {PAPER}x)."]


def sweep(networks: Sequence[Network]) -> list[str]:
    """The ratios by order and rewriting at several sizes of on-chip memory."""
    lines = ["| network | " + " | ".join(f"{k} KiB" for k in _SIZES) + " |", "| --- " * (1 + len(_SIZES)) + "|"]
    for network in networks:
        cells = [moved(network, k << 10) for k in _SIZES]
        lines.append(f"| {network.name} | " + " | ".join(ratio(m.kahn, m.rewritten) for m in cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Off-chip traffic of irregularly wired networks.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    cells = [n for n in swiftnet(options.data) if n.part]
    networks = [*cells, *(n for n in zoo() if n.name.startswith(("DARTS", "RandWire")))]
    text = [
        "# Serenity: off-chip traffic",
        "",
        "`python benchmarks/serenity_traffic.py --data FOLDER`. Bytes moved under Belady's replacement, without the compulsory",
        "ones, beside the paper's Figure 11: SwiftNet's cells in bytes, DARTS and RandWire in floats, 256 KiB on chip. The first",
        "order is Kahn's; the paper's is TensorFlow Lite's, and its random networks are of other seeds. *Placed whole*: no",
        "tensor moves, each lies on one side for its life, by the integer program of plans in several memories.",
        "",
        *table([moved(n, ON_CHIP) for n in networks]),
        "",
        "## With rewriting, by bytes on chip",
        "",
        *sweep(networks),
        "",
    ]
    (options.out / "serenity_traffic.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
