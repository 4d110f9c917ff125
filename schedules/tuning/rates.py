"""Rates: the effect of compilers on kernels, as counted instructions per statically counted instruction
(`instructions`).

A rate belongs to a core with a back end, and to a kernel family: operator kind, element type and performance schedule
without its parameters, and with them if several shapes were counted. `benchmarks/estimates.py` counts kernels from
every family in the emulator and writes the file; the rate minimizes the largest error. Families not counted on a core
get a compatible core's rates, or the nearest counted families'.

Cycles per instruction are kept in the same way (`CYCLES`), by core and family: `benchmarks/cycles.py` times the code
blocks run by the emulator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.tuning.tune import device

SHIPPED = Path(__file__).parents[1] / "data" / "rates.json"
CYCLES = SHIPPED.with_name("cycles.json")


@dataclass(frozen=True)
class Family:
    """A family of kernels."""

    kind: str  # of the operator, with the suffix of its form
    dtype: str  # of its output
    rule: str  # the performance schedule, without its parameters: `cortex_m_dsp.conv`
    variant: str  # the schedule with its parameters: `cortex_m_dsp.conv 2x2 u4 s4`

    @classmethod
    def of(cls, kind: str, dtype: str, variant: str) -> Family:
        return cls(kind, dtype, variant.split(" ")[0], variant)

    @property
    def keys(self) -> tuple[str, str]:
        """Return the keys of the family's rate in a table: the variant itself, else the schedule with all variants."""
        return f"{self.kind}|{self.dtype}|{self.variant}", f"{self.kind}|{self.dtype}|{self.rule}"


@dataclass(frozen=True)
class Rates:
    """Rates by core and back end (`tune.device`), and by `Family.keys`."""

    rates: Mapping[str, Mapping[str, float]]

    def rate(self, target: KernelTarget, family: Family, otherwise: float = 1.0) -> float:
        """Return a family's rate on a core: counted, or similar families'; `otherwise` if there are none."""
        compatible = f"{target.core.compatible.get(target.backend)} {target.backend}"
        known = {**self.rates.get(compatible, {}), **self.rates.get(device(target), {})}
        for key in family.keys:
            if key in known:
                return known[key]
        width = family.dtype.lstrip("u")
        kin: tuple[Callable[[Family], bool], ...] = (
            lambda f: (f.kind, f.rule, f.dtype.lstrip("u")) == (family.kind, family.rule, width),
            lambda f: (f.rule, f.dtype) == (family.rule, family.dtype),
            lambda f: f.rule == family.rule,
            lambda f: f.rule == "generic",
        )
        for alike in kin:
            if found := [rate for key, rate in known.items() if alike(Family.of(*key.split("|")))]:
                return median(found)
        return otherwise

    def save(self, path: Path) -> None:
        """Writes the rates to a file, families sorted, to three digits."""
        rounded = {d: {k: float(f"{r:.3g}") for k, r in sorted(own.items())} for d, own in sorted(self.rates.items())}
        path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


@lru_cache(maxsize=1)
def shipped() -> Rates:
    """Return the rates shipped with the package."""
    return _read(SHIPPED)


@lru_cache(maxsize=1)
def shipped_cycles() -> Rates:
    """Return the cycles per instruction shipped with the package."""
    return _read(CYCLES)


def _read(path: Path) -> Rates:
    return Rates(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})
