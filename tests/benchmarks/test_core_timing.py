"""What blocks of code take by the tables of the cores' manuals, worked out by hand from these."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CODE = [
    "push {r4, r5, lr}",  # 1 + 3
    "ldr r0, [r1]",  # 2
    "ldr r2, [r1, #4]",  # 1: right behind a load
    "str r2, [r3]",  # 1: right behind a load
    "mla r0, r2, r2, r0",
    "smull r4, r5, r0, r2",
    "adds r0, #1",
    "udiv r0, r0, r2",
    "ldrd r4, r5, [r1]",
    "bne 0x10",
    "pop {r4-r6, pc}",  # 1 + 4
]


@pytest.fixture(scope="module")
def timing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("core_timing", BENCHMARKS / "core_timing.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["core_timing"] = made
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("core", "cycles"),
    [
        ("cortex-m4", 4 + 2 + 1 + 1 + 1 + 1 + 1 + 7 + 3 + 1 + 5),
        ("cortex-m3", 4 + 2 + 1 + 1 + 2 + 4 + 1 + 7 + 3 + 1 + 5),
        ("cortex-m0plus", 4 + 2 + 2 + 2 + 1 + 1 + 1 + 1 + 3 + 1 + 5),
    ],
)
def test_blocks_take_what_the_manual_says(timing: ModuleType, core: str, cycles: int) -> None:
    assert timing.cycles_of(core, [CODE, CODE[:1]]) == [cycles, 4]


def test_floats_of_cortex_m4(timing: ModuleType) -> None:
    code = ["vldr s0, [r0]", "vmla.f32 s1, s0, s2", "vfma.f32 s1, s0, s2", "vadd.f32 s0, s0, s1", "vdiv.f32 s0, s0, s1"]
    assert timing.cycles_of("cortex-m4", [code]) == [2 + 3 + 3 + 1 + 14]


def test_every_core_has_a_refill_and_one_way_to_be_timed(timing: ModuleType) -> None:
    assert set(timing.REFILL) == {*timing.TABLES, *timing.SIMULATED}
    assert not set(timing.TABLES) & set(timing.SIMULATED)
