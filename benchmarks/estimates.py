"""Rates of kernels (`schedules/data/rates.json`), and how far estimates of instructions are from counts in the emulator.

python benchmarks/estimates.py --rates              counts kernels of every family on every core, writes the rates
python benchmarks/estimates.py --results DIR        whole firmware: estimated against counted, as a table in DIR
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path
from statistics import median

from tvm.ir import IRModule

from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.errors import CascadeError
from tvm_cascade.micro.board_files import find_board
from tvm_cascade.micro.count import counter_of
from tvm_cascade.passes.choose_variants import candidates_of, tensors_of
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.tuning import rates
from tvm_cascade.schedules.tuning.counting import Task
from tvm_cascade.schedules.tuning.plan_cost import task_instructions
from tvm_cascade.schedules.tuning.rates import Family, Rates
from tvm_cascade.schedules.tuning.tune import device
from tvm_cascade.testing.estimate_cases import CHECKED, layers, operators

# cores, back ends and boards on which kernels are counted; other cores are compatible with one of them
COUNTED = (
    ("cortex-m0plus", "c", "mps2-an385"),  # whose code runs there as well, where more fits
    ("cortex-m3", "c", "mps2-an385"),
    ("cortex-m3", "obj", "mps2-an385"),
    ("cortex-m4", "c", "mps2-an386"),
    ("cortex-m4", "obj", "mps2-an386"),
    ("cortex-m7", "c", "mps2-an500"),  # floats of 64 bits by hardware
    ("cortex-m55", "obj", "mps3-an547"),
    ("riscv32", "c", "riscv32-virt"),
)
SEVERAL = 3  # shapes of which a rate of a variant alone is taken
MOST = 4  # variants of a shape that are counted, besides the generic kernel


def tasks_of(mod: IRModule, target: KernelTarget, most: int = MOST) -> Iterator[tuple[Family, Task]]:
    """The kernels of a network's operators, each with its family: the first variants, and the generic one."""
    made = prepare(mod, target)
    for op in made.graph.ops:
        computed = made.extracted.operators[op.index]
        if computed is None:
            continue
        if computed.access.opaque is None and not computed.has_plain_rows(tensors_of(made.graph, op)):
            continue
        listed = list(candidates_of(made.extracted, op.index, target))
        for candidate in {id(c): c for c in (*listed[:most], *listed[-1:])}.values():
            dtype = made.graph.tensors[op.outputs[0]].dtype
            yield Family.of(op.kind, dtype, candidate.variant), candidate.task


def counted_rates(
    target: KernelTarget, board: str, known: dict[str, int], only: Sequence[str] = ()
) -> dict[str, float]:
    """The rates of every family on a core, or of the families of some networks; `known` are counts by kernel, which get
    those that they lack."""
    found: dict[str, tuple[Family, Task]] = {}
    for turn in range(CHECKED):
        networks = (*layers(turn), *operators(turn)) if not only else tuple(n for n in layers(turn) if n[0] in only)
        for name, mod in networks:
            try:
                for k, (family, task) in enumerate(tasks_of(mod, target)):
                    found[f"{device(target)} | {turn} {name} {k} | {family.keys[0]}"] = family, task
            except CascadeError as why:
                print(f"{name}: {why}")
    missing = [key for key in found if key not in known]
    count = counter_of(target.core, find_board(Path(), board), target.backend)
    counts = count([found[key][1] for key in missing]) if missing else []
    known |= {key: count.instructions for key, count in zip(missing, counts, strict=True)}
    ratios = defaultdict[str, list[float]](list)
    for key, (family, task) in found.items():
        for kin in dict.fromkeys(family.keys):
            ratios[kin].append(known[key] / task_instructions(task, target.core))
    for key, own in sorted(ratios.items()):
        print(
            f"{device(target):20} {key:60} {len(own):3} {min(own):6.2f} {middle(own):6.2f} {max(own):6.2f}", flush=True
        )
    return {key: middle(own) for key, own in ratios.items() if " " not in key or len(own) >= SEVERAL}


def middle(ratios: list[float]) -> float:
    """The rate of least largest error, as far from the smallest ratio as from the largest; the median where they are not
    of one kind, more than a factor of two apart."""
    low, high = min(ratios), max(ratios)
    return sqrt(low * high) if high < 2 * low else median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of kernels, counted in the emulator.")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--cores", nargs="*", default=[core for core, *_ in COUNTED])
    parser.add_argument("--backends", nargs="*", default=["c", "obj"])
    parser.add_argument("--networks", nargs="*", default=[], help="only of these layers; other rates stay")
    parser.add_argument("--counts", type=Path, help="file of counts, which are not counted again")
    options = parser.parse_args()
    if options.rates:
        known, counts = dict(rates.shipped().rates), options.counts
        kept = json.loads(counts.read_text()) if counts is not None and counts.exists() else {}
        for core, backend, board in COUNTED:
            if core in options.cores and backend in options.backends:
                target = kernel_target(core, backend)
                old = known.get(device(target), {}) if options.networks else {}
                known[device(target)] = {**old, **counted_rates(target, board, kept, options.networks)}
                Rates(known).save(rates.SHIPPED)
                if counts is not None:
                    counts.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
