"""Cycles of kernels (`schedules/data/cycles.json`), and how far estimates of whole networks are from published ones.

python benchmarks/cycles.py --rates              cycles per instruction of every family of kernels, on every core
python benchmarks/cycles.py --models DIR         networks of MLPerf Tiny on every core: what `plan` estimates, and what the blocks
                                                 of the linked image take; kept in results/cycles_own.json

Published cycles of the same code are compared with by `mlperf_tiny.py`; `cycles_table.py` writes results/cycles.md of both.
Both need QEMU, GCC for Arm and LLVM 19 (`apt-get install llvm-19`). A kernel's instructions are those that the emulator ran,
block by block (`block_profile`); what a block takes is said by the manual of the core or by llvm-mca (`core_timing`).
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from block_profile import Block, Profile, disassembled, profiled
from core_timing import REFILL, cycles_of
from estimates import tasks_of

import tvm_cascade
from tvm_cascade.boards.board import Board
from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.image import read_image
from tvm_cascade.errors import CascadeError
from tvm_cascade.runs.count import batches, counting_image
from tvm_cascade.schedules.tuning import rates
from tvm_cascade.schedules.tuning.counting import Task
from tvm_cascade.schedules.tuning.rates import Family, Rates
from tvm_cascade.schedules.tuning.tune import device
from tvm_cascade.testing.estimate_cases import layers, operators

# cores, back ends and boards on which kernels run; M0+ on a board of M3, whose memory is larger
MEASURED = (
    ("cortex-m0plus", "c", "mps2-an385"),
    ("cortex-m3", "c", "mps2-an385"),
    ("cortex-m4", "c", "mps2-an386"),
    ("cortex-m7", "c", "mps2-an500"),
    ("cortex-m33", "c", "mps2-an505"),
    ("cortex-m55", "obj", "mps3-an547"),
)
OWN = {"kws": "kws_dscnn_int8.tflite", "ic": "resnet8_int8.tflite", "vww": "vww_96_int8.tflite"}
RESULTS = Path(__file__).parent / "results"
TURNS = 2  # of shapes (`estimate_cases`)
VARIANTS = 2  # of a shape, besides the generic kernel


def symbols(elf: Path) -> dict[str, tuple[int, int]]:
    """Functions of an image: address and size by name."""
    listed = subprocess.run(["arm-none-eabi-nm", "-S", str(elf)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(\w+) (\w+) [tT] (\S+)$", listed, flags=re.M)
    return {name: (int(at, 16) & ~1, int(size, 16)) for at, size, name in found}


class Timed:
    """The blocks of an image that ran, timed for a core."""

    def __init__(self, elf: Path, core: str, blocks: list[Block]) -> None:
        code = disassembled(elf, core)
        at = sorted(code)
        inside = {b: [code[a] for a in at if b.start <= a < b.end] for b in blocks}
        self.instructions = {b: len(lines) for b, lines in inside.items()}
        self.cycles = dict(zip(blocks, cycles_of(core, list(inside.values())), strict=True))
        self.refill = REFILL[core]

    def work(self, profile: Profile, without: tuple[int, int] = (0, 0)) -> tuple[int, float]:
        """Instructions and cycles of what a profile counted, outside of the addresses `without`."""
        ran = {b: n for b, n in profile.ran.items() if not without[0] <= b.start < without[1]}
        instructions = sum(n * self.instructions[b] for b, n in ran.items())
        return instructions, sum(n * self.cycles[b] + profile.taken[b] * self.refill for b, n in ran.items())


def kernel_work(tasks: list[Task], target: KernelTarget, board: Board) -> list[tuple[int, float]]:
    """Instructions and cycles of all calls of each task."""
    found: list[tuple[int, float]] = []
    for batch in batches(tasks):
        with tempfile.TemporaryDirectory(prefix="tvm-cascade-cycles-") as name:
            folder = Path(name)
            elf = counting_image(folder, batch, target.core, board, target.backend)
            (folder / "inputs.bin").write_bytes(b"")
            where = symbols(elf)
            marks = [where[f"run_{k}"][0] for k in range(len(batch))]
            ends = [where[n][0] for n in ("port_write", "fill_bytes", "fill_floats") if n in where]
            profiles = profiled(elf, board, [*marks, *ends], folder)
            timed = Timed(elf, target.core.name, list(dict.fromkeys(b for m in marks for b in profiles[m].ran)))
            found += [timed.work(profiles[mark]) for mark in marks]
    return found


def cycle_rates(target: KernelTarget, board: Board) -> dict[str, float]:
    """Cycles per instruction of every family of kernels on a core."""
    found: list[tuple[Family, Task]] = []
    for turn in range(TURNS):
        for name, mod in (*layers(turn), *operators(turn)):
            try:
                found += [(sample.family, sample.task) for sample in tasks_of(mod, target, VARIANTS)]
            except CascadeError as why:
                print(f"{name}: {why}")
    works = kernel_work([task for _, task in found], target, board)
    ratios = defaultdict[str, list[float]](list)
    for (family, _), (instructions, cycles) in zip(found, works, strict=True):
        for key in dict.fromkeys(family.keys):
            ratios[key].append(cycles / instructions)
    print(
        f"{device(target)}: median {median(r for own in ratios.values() for r in own):.3f} of {len(found)} kernels",
        flush=True,
    )
    return {key: median(own) for key, own in ratios.items() if " " not in key}


def image_cycles(model: Path, target: str, board: Board) -> tuple[int, int, float]:
    """Of a network: the cycles that `plan` estimates, and instructions and cycles of the blocks of its image."""
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-cycles-") as name:
        folder = Path(name)
        made = tvm_cascade.compile(model, target=target, output=folder / "p", board=board.name)
        assert made.elf is not None
        elf = made.folder / made.elf
        inputs = sum(s.bytes for s in read_image(made.folder).networks[0].inputs)
        (folder / "inputs.bin").write_bytes(struct.pack("<II", 0xA5, 1) + bytes(inputs))
        listed = symbols(elf)
        run = next(at for n, (at, _) in listed.items() if n.endswith("_run"))
        profile = profiled(elf, board, [run, listed["port_write"][0]], folder)[run]
        at, size = listed["main"]
        return made.cycles, *Timed(elf, target, list(profile.ran)).work(profile, (at, at + size))


def own_networks(models: Path) -> None:
    """Write what every network takes on every core by our kernels."""
    found: list[dict[str, object]] = []
    commit = subprocess.run(
        ("git", "rev-parse", "--short=8", "HEAD"), capture_output=True, text=True, check=True
    ).stdout
    for network, file in OWN.items():
        for core, _, board in MEASURED:
            estimated, instructions, cycles = image_cycles(models / file, core, find_board(Path(), board))
            found.append(
                {
                    "core": core,
                    "network": network,
                    "estimated": estimated,
                    "instructions": instructions,
                    "cycles": round(cycles),
                    "commit": commit.strip(),
                }
            )
            print(found[-1], flush=True)
            (RESULTS / "cycles_own.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cycles of kernels and networks.")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--models", type=Path, help="folder of the networks' files")
    parser.add_argument("--cores", nargs="*", default=[core for core, *_ in MEASURED])
    options = parser.parse_args()
    known = dict(rates.shipped_cycles().rates)
    for core, backend, board in MEASURED if options.rates else ():
        if core in options.cores:
            target = kernel_target(core, backend)
            known[device(target)] = cycle_rates(target, find_board(Path(), board))
            Rates(known).save(rates.CYCLES)
    if options.models is not None:
        own_networks(options.models)


if __name__ == "__main__":
    main()
