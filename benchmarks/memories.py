"""Where a network lies in several memories: by our plans, by filling banks, and all in one memory.

python benchmarks/memories.py --data FOLDER

FOLDER holds `models/`. The machine is a Cortex-M7 with 64 KiB of DTCM, 320 KiB of SRAM and 8 MiB of slow RAM; bytes cost what
`MEMORIES` says, by accesses counted in the emitted code. Bank filling is what ExecuTorch's planner does with bank capacities
(pytorch/executorch#21821, as described there): tensors of the network run layer by layer, the largest first, each in the first
bank with room while it lives. Writes results/memories.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_cascade import api
from tvm_cascade.cascading import Plan
from tvm_cascade.cascading.memories import joined
from tvm_cascade.cores import kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.machine import Ram
from tvm_cascade.memory import Buffer
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.tuning.plan_cost import PlanCounter
from tvm_cascade.schedules.tuning.traffic import TrafficCounter

RESULTS = Path(__file__).parent / "results"
MEMORIES = (Ram("dtcm", 64 << 10, 0.25), Ram("sram", 320 << 10, 0.5), Ram("psram", 8 << 20, 4.0))
NETWORKS = ("mobilenetv2_100_224_int8", "mobilenetv2_035_160_int8", "vww_96_int8", "person_detect")
_CORE = "cortex-m7"


@dataclass(frozen=True, slots=True)
class Row:
    """A way to use the memories, in cycles of an inference and bytes of each memory."""

    name: str
    cycles: int
    peaks: tuple[int, ...]


def bank_filled(plan: Plan, memories: Sequence[Ram]) -> tuple[list[int], list[int]]:
    """The bank of every buffer of a plan, and the bytes of every bank: by size, each where it fits beside those before it."""
    position = {b.name: k for k, b in enumerate(plan.problem.buffers)}
    with_ = dict((position[a], position[b]) for a, b in joined(plan))
    chosen, peaks = [0] * len(position), [0] * len(memories)
    placed: list[list[tuple[int, Buffer]]] = [[] for _ in memories]
    for k, buffer in sorted(enumerate(plan.problem.buffers), key=lambda item: -item[1].size):
        for m, ram in enumerate(memories):
            offset = _first_gap(buffer, placed[m])
            if ram.capacity is None or offset + buffer.size <= ram.capacity or m == len(memories) - 1:
                placed[m].append((offset, buffer))
                chosen[k], peaks[m] = m, max(peaks[m], offset + buffer.size)
                break
    assert all(chosen[a] == chosen[b] for a, b in with_.items()), "row tables belong beside their rings"
    return chosen, peaks


def _first_gap(buffer: Buffer, placed: Sequence[tuple[int, Buffer]]) -> int:
    """The lowest offset at which a buffer overlaps none that lives with it."""
    offset = 0
    for at, other in sorted(
        ((at, o) for at, o in placed if o.lower < buffer.upper and buffer.lower < o.upper), key=_at
    ):
        if at - offset >= buffer.size:
            break
        offset = max(offset, -(-(at + other.size) // max(buffer.alignment, 1)) * max(buffer.alignment, 1))
    return offset


def _at(placed: tuple[int, Buffer]) -> int:
    return placed[0]


def rows(path: Path) -> Iterator[Row]:
    """Our plan beside the others."""
    ours = api.plan(path, target=_CORE, memory=MEMORIES)
    yield Row("planned", ours.cycles, tuple(use.bytes for use in ours.plan.placed))
    whole = 8 << 20
    for ram in MEMORIES:
        alone = api.plan(path, target=_CORE, memory=Ram(ram.name, whole, ram.cycles_per_byte))
        peaks = tuple(alone.peak_bytes if other.name == ram.name else 0 for other in MEMORIES)
        yield Row(f"all in {ram.name}, were it large enough", alone.cycles, peaks)
    core = kernel_target(_CORE)
    found = plan_network(load(path), PlanRequest(layerwise=True), core)
    kernels = found.prepared.kernels_of(found.plan)
    work = sum(w.cycles for w in PlanCounter(core).count(found.plan, kernels))
    accessed = TrafficCounter(core).count(found.plan, kernels).sum(axis=(0, 1))
    chosen, peaks = bank_filled(found.plan, MEMORIES)
    costs = np.array([MEMORIES[m].cycles_per_byte for m in chosen])
    yield Row("layer by layer, banks filled by size", round(work + float(accessed @ costs)), tuple(peaks))
    slow = work + float(accessed.sum()) * MEMORIES[-1].cycles_per_byte
    yield Row(f"layer by layer, all in {MEMORIES[-1].name}", round(slow), (0, 0, found.plan.peak))


def table(name: str, found: Sequence[Row]) -> str:
    """A network's rows, beside that of all in the fastest memory."""
    fast = next(row.cycles for row in found if row.name.startswith(f"all in {MEMORIES[0].name}"))
    lines = [
        f"## {name}\n",
        "| | million cycles | of all in the fastest memory | "
        + " | ".join(f"bytes of {m.name}" for m in MEMORIES)
        + " |",
        "| --- " * (3 + len(MEMORIES)) + "|",
    ]
    for row in found:
        peaks = " | ".join(f"{n:,}" for n in row.peaks)
        lines.append(f"| {row.name} | {row.cycles / 1e6:.1f} | {row.cycles / fast:.2f}x | {peaks} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Networks in several memories.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = ", ".join(f"{(m.capacity or 0) >> 10} KiB of {m.name} at {m.cycles_per_byte:g}" for m in MEMORIES)
    text = [
        "# Several memories",
        "",
        "`python benchmarks/memories.py --data FOLDER`. Estimated cycles of an inference on a Cortex-M7: arithmetic, and what",
        f"the bytes cost that kernels access, {machine}",
        "cycles a byte; no cache is assumed, and weights are read at no cost.",
        "",
        "Filling banks is our rendering of what is described for ExecuTorch (pytorch/executorch#21821, `banked_greedy`): the",
        "network layer by layer, tensors by size, each in the fastest bank that can hold it. No board was measured.",
        "",
    ]
    for name in NETWORKS:
        text.append(table(name, list(rows(options.data / "models" / f"{name}.tflite"))))
        print(text[-1], flush=True)
    (options.out / "memories.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
