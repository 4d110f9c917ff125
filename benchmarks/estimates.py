"""Rates of kernels (`schedules/data/rates.json`), and how far estimates of instructions are from counts in the emulator.

python benchmarks/estimates.py --rates         counts kernels of every family on every core, writes the rates
python benchmarks/estimates.py --results DIR   every kernel at every shape: estimated against counted, as `estimates.md` in DIR
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm.ir import IRModule

from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.errors import CascadeError
from tvm_cascade.passes.choose_variants import candidates_of, tensors_of
from tvm_cascade.pipeline import prepare
from tvm_cascade.runs.count import counter_of
from tvm_cascade.schedules.tuning import rates
from tvm_cascade.schedules.tuning.counting import Task
from tvm_cascade.schedules.tuning.rates import Family, Rates
from tvm_cascade.schedules.tuning.tune import device
from tvm_cascade.testing.estimate_cases import CHECKED, SHAPES, layers, operators
from tvm_cascade.testing.estimated_kernels import (
    A_CALL,
    WITHIN,
    best_rate,
    estimated_kernels,
    is_far,
    task_instructions,
    tolerance,
)

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
COMPATIBLE = (("cortex-m33", "c", "mps2-an505"),)  # by the rates of another
SEVERAL = 3  # shapes of which a rate of a variant alone is taken
MOST = 4  # variants of a shape that are counted, besides the generic kernel


@dataclass(frozen=True)
class Sample:
    """A kernel of which a rate is taken."""

    family: Family
    task: Task
    default: bool  # the one that a network takes where nothing was tuned


def tasks_of(mod: IRModule, target: KernelTarget, most: int = MOST) -> Iterator[Sample]:
    """The kernels of a network's operators: the first variants, and the generic one."""
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
            yield Sample(Family.of(op.kind, dtype, candidate.variant), candidate.task, candidate is listed[0])


def counted_rates(
    target: KernelTarget, board: str, known: dict[str, int], only: Sequence[str] = ()
) -> dict[str, float]:
    """The rates of every family on a core, or of the families of some networks; `known` are counts by kernel, which get
    those that they lack."""
    found: dict[str, Sample] = {}
    for turn in range(CHECKED):
        networks = (*layers(turn), *operators(turn)) if not only else tuple(n for n in layers(turn) if n[0] in only)
        for name, mod in networks:
            try:
                for k, sample in enumerate(tasks_of(mod, target)):
                    found[f"{device(target)} | {turn} {name} {k} | {sample.family.keys[0]}"] = sample
            except CascadeError as why:
                print(f"{name}: {why}")
    missing = [key for key in found if key not in known]
    count = counter_of(target.core, find_board(Path(), board), target.backend)
    counts = count([found[key].task for key in missing]) if missing else []
    known |= {key: count.instructions for key, count in zip(missing, counts, strict=True)}
    ratios = _preferred({key: (sample, known[key]) for key, sample in found.items()}, target)
    for key, own in sorted(ratios.items()):
        each = [count / read for read, count in own]
        figures = f"{len(own):3} {min(each):6.2f} {best_rate(own):6.2f} {max(each):6.2f}"
        print(f"{device(target):20} {key:60} {figures}", flush=True)
    return {key: best_rate(own) for key, own in ratios.items() if " " not in key or len(own) >= SEVERAL}


def _preferred(counted: dict[str, tuple[Sample, int]], target: KernelTarget) -> dict[str, list[tuple[float, int]]]:
    """By key of a family, what is read from the code of its kernels, and their counts.

    Shapes that take its kernels by default are preferred, for those that another kernel serves may be unlike them: where one of
    them is more than entry and exit, and tells of others.
    """
    found = defaultdict[tuple[str, bool], list[tuple[float, int]]](list)
    for sample, count in counted.values():
        for key in dict.fromkeys(sample.family.keys):
            found[key, sample.default].append((task_instructions(sample.task, target), count))
    taken: dict[str, list[tuple[float, int]]] = {}
    for key, _ in sorted(found):
        own = found[key, True]
        taken[key] = own if any(tolerance(count) > A_CALL for _, count in own) else own + found[key, False]
    return taken


def compared(target: KernelTarget, board: str, known: dict[str, int]) -> list[tuple[str, float, int]]:
    """The default kernels of all networks at all shapes: name with shape and network, estimate, count. `known` as above."""
    found = [
        (f"{'x'.join(map(str, SHAPES[turn][1:]))} {kernel.name}", kernel)
        for turn in range(len(SHAPES))
        for kernel in estimated_kernels(target, (*layers(turn), *operators(turn)), refused=True)
    ]
    keys = [f"{device(target)} compared | {name}" for name, _ in found]
    missing = [k for k, key in enumerate(keys) if key not in known]
    count = counter_of(target.core, find_board(Path(), board), target.backend)
    counts = count([found[k][1].task for k in missing]) if missing else []
    known |= {keys[k]: c.instructions for k, c in zip(missing, counts, strict=True)}
    return [(name, kernel.instructions, known[key]) for key, (name, kernel) in zip(keys, found, strict=True)]


_HEAD = f"""# Estimates of instructions
Every kernel that a network of `testing/estimate_cases.py` takes by default, at {len(SHAPES)} shapes, and of drawn operators.
An estimate is to be within {WITHIN:.0%} of what the emulator counts, or within {A_CALL} instructions.
Made by `python benchmarks/estimates.py --results DIR`; cores that are not listed were not compared (`--cores`).

| core, back end | kernels | beyond |
| --- | ---: | ---: |
"""
_BEYOND = """
| core, back end | beyond: shape, network, kernel | estimated | counted | ratio |
| --- | --- | ---: | ---: | ---: |
"""


def write_results(folder: Path, tables: dict[str, list[tuple[str, float, int]]]) -> None:
    """Writes `estimates.md`: by core the number of kernels, and those whose estimates are far from what is counted."""
    beyond = {name: [row for row in own if is_far(*row[1:])] for name, own in tables.items()}
    sums = "".join(f"| {name} | {len(own)} | {len(beyond[name])} |\n" for name, own in tables.items())
    rows = "".join(
        f"| {name} | {kernel.replace('|', ' ')} | {e:,.0f} | {c:,} | {e / c:.2f} |\n"
        for name, own in beyond.items()
        for kernel, e, c in own
    )
    (folder / "estimates.md").write_text(_HEAD + sums + (_BEYOND + rows if rows else ""), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of kernels, counted in the emulator.")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--cores", nargs="*", default=[core for core, *_ in (*COUNTED, *COMPATIBLE)])
    parser.add_argument("--backends", nargs="*", default=["c", "obj"])
    parser.add_argument("--networks", nargs="*", default=[], help="only of these layers; other rates stay")
    parser.add_argument("--counts", type=Path, help="file of counts, which are not counted again")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    counts = options.counts
    kept = json.loads(counts.read_text()) if counts is not None and counts.exists() else {}
    if options.results is not None:
        tables: dict[str, list[tuple[str, float, int]]] = {}
        for core, backend, board in (*COUNTED, *COMPATIBLE):
            if core in options.cores and backend in options.backends:
                tables[f"{core} {backend}"] = compared(kernel_target(core, backend), board, kept)
                write_results(options.results, tables)
                if counts is not None:
                    counts.write_text(json.dumps(kept))
    if options.rates:
        known = dict(rates.shipped().rates)
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
