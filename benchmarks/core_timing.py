"""Cycles of blocks of code on Cortex-M cores, where memory answers at once.

M0+, M3 and M4 take the cycles that the tables of their technical reference manuals print (`TABLES`); M7, M33 and M55 are
simulated by llvm-mca, every block as the body of a loop, with LLVM's scheduling models (M33 has that of M4). A branch that is
taken refills the pipeline (`REFILL`), which llvm-mca does not know of. Neither flash nor caches take part.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MCA = "llvm-mca-19"  # `apt-get install llvm-19`
_PASSES = 100

# Cycles that a taken branch adds. M0+: DDI 0484, table 3-1. M3 and M4: DDI 0337 and DDI 0439, tables 3-1: one to three, by
# the target's alignment; two here. M33 and M55: not published; that of M4. M7 predicts its branches.
REFILL: Mapping[str, int] = {
    "cortex-m0plus": 1, "cortex-m3": 2, "cortex-m4": 2, "cortex-m7": 1, "cortex-m33": 2, "cortex-m55": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Cycles of instructions, as a manual's table has them."""

    load: int  # of one register
    store: int
    cycles: Sequence[tuple[str, int]]  # by the beginning of the name, a regular expression; all others take one
    pipelined: bool = True  # a load or store right behind another one takes one cycle

    def block(self, code: Sequence[str]) -> float:
        """Cycles of a block of code."""
        total, behind = 0, False
        for line in code:
            name, _, operands = line.partition(" ")
            access = re.match(r"v?(ldr|str)", name)
            if re.match(r"push|pop|v?ldm|v?stm|vpush|vpop", name):
                total += 1 + _registers(operands)
            elif access:
                alone = self.load if access[1] == "ldr" else self.store
                total += (1 if behind and self.pipelined else alone) + name.startswith(("ldrd", "strd"))
            else:
                total += next((n for pattern, n in self.cycles if re.match(pattern, name)), 1)
            behind = access is not None
        return float(total)


def _registers(operands: str) -> int:
    """The number of registers in a list."""
    found = 0
    for part in re.sub(r".*\{|\}.*", "", operands).split(","):
        ends = [int(n) for n in re.findall(r"\b[rsd](\d+)", part)]
        found += ends[1] - ends[0] + 1 if len(ends) == 2 else 1
    return found


_BARRIER = ("dsb|dmb|isb", 3)
_FPU = (("vdiv|vsqrt", 14), ("vf?n?m[al][as]|vfm[as]", 3))
TABLES: Mapping[str, Table] = {
    # DDI 0484: with the fast multiplier, memory behind the bus
    "cortex-m0plus": Table(2, 2, (("bl$", 2), ("mrs|msr", 3), _BARRIER), pipelined=False),
    # DDI 0337: long products and divisions by the middle of what is printed as a range
    "cortex-m3": Table(2, 1, (("ml[as]", 2), ("[us]mull", 4), ("[us]mlal", 5), ("[us]div", 7), _BARRIER)),
    # DDI 0439: every integer product takes one cycle; floats by the table of the FPU
    "cortex-m4": Table(2, 1, (("[us]div", 7), _BARRIER, *_FPU)),
}
SIMULATED = {"cortex-m7": "thumbv7em", "cortex-m33": "thumbv8m.main", "cortex-m55": "thumbv8.1m.main"}
_CONDITIONS = "eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al"


def cycles_of(core: str, blocks: Sequence[Sequence[str]]) -> list[float]:
    """Cycles of each block of code, the refill behind a taken branch left out."""
    return [TABLES[core].block(code) for code in blocks] if core in TABLES else _simulated(core, blocks)


def _simulated(core: str, blocks: Sequence[Sequence[str]]) -> list[float]:
    """Cycles by llvm-mca; a block that it cannot read takes one for each instruction. Raises `RuntimeError` for many."""
    lines = []
    for k, code in enumerate(blocks):
        lines += [f"@ LLVM-MCA-BEGIN b{k}", *map(_assembled, code), f"@ LLVM-MCA-END b{k}"]
    options = [f"-mtriple={SIMULATED[core]}-none-eabihf", f"-mcpu={core}", f"--iterations={_PASSES}"]
    options += ["--call-latency=1"]  # of what is called by a register: the blocks called are timed themselves
    options += ["--skip-unsupported-instructions=any"]  # `it`, and what follows one outside of the block, cost nothing
    options += ["--instruction-info=0", "--resource-pressure=0", "-"]
    done = subprocess.run([MCA, *options], input="\n".join([*lines, ""]), capture_output=True, text=True, check=False)
    regions = re.findall(r"Code Region - b(\d+)\n.*?Total Cycles:\s+(\d+)", done.stdout, flags=re.S)
    found = {int(k): int(n) / _PASSES for k, n in regions}
    if len(found) < 0.99 * len(blocks):
        raise RuntimeError(f"{MCA} on {core}: {len(found)} of {len(blocks)} blocks read; {done.stderr[:1000]}")
    return [found.get(k, float(len(code))) for k, code in enumerate(blocks)]


def _assembled(line: str) -> str:
    """An instruction as text that can be assembled anywhere: branches go to a label."""
    name, _, operands = line.partition(" ")
    if re.fullmatch(rf"b({_CONDITIONS})?(\.[nw])?|cbn?z", name):
        return "b.w target"
    if name in ("bl", "blx") and not operands.startswith(("r", "lr", "ip")):
        return "b.w target"
    return line
