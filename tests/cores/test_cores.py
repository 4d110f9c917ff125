"""The records of cores: complete, found by their files, and consistent with rule sets, boards and each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_cascade import cores
from tvm_cascade.boards.board import load_board
from tvm_cascade.cli.options import TARGETS
from tvm_cascade.cores import CORES, get_core, kernel_target
from tvm_cascade.errors import UsageError
from tvm_cascade.schedules.rules.select import RULE_SETS


def test_a_core_is_known_by_its_file() -> None:
    folder = Path(cores.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "\nCORE = " in path.read_text(encoding="utf-8")}
    assert {name.replace("-", "_") for name in CORES} == files and len(CORES) >= 8
    assert ", ".join(CORES) == TARGETS and TARGETS.index("cortex-m7") < TARGETS.index("cortex-m33")


@pytest.mark.parametrize("name", CORES)
def test_a_record_is_consistent(name: str) -> None:
    core = CORES[name]
    assert core.name == name and core.backend in ("c", "obj") and core.align % 4 == 0
    assert name == "host" or load_board(core.default_board).core in core.runs_on
    assert set(core.rules) <= set(RULE_SETS) and bool(core.rules) == (core.steps is not None)
    assert core.dsp == ("cortex_m_dsp" in core.rules) and core.mve == ("cortex_m_mve" in core.rules)
    for backend, other in core.compatible.items():
        assert backend in ("c", "llvm") and not get_core(other).compatible.get(backend)
    assert core.llvm["kind"] == "llvm" and core.llvm.get("mcpu", "") == core.mcpu
    assert core.fpu == (not core.triple or "-mfloat-abi=hard" in core.gcc_flags)


def test_what_kernels_are_made_for() -> None:
    target = kernel_target("cortex-m55", "obj", "speed")
    assert (target.name, target.backend, target.optimise, target.vectors) == ("cortex-m55", "llvm", "speed", True)
    assert not kernel_target("cortex-m55", "c").vectors and not kernel_target("host").tunable
    with pytest.raises(UsageError, match="unknown target 'cortex-m9'; known: cortex-m0plus, cortex-m3, "):
        kernel_target("cortex-m9")
    with pytest.raises(
        UsageError, match="unknown target 'STM32F407VG'; a microcontroller with a cortex-m4: --target cortex-m4"
    ):
        kernel_target("STM32F407VG")
    parts = [part for core in CORES.values() for part in core.parts]
    assert not [(a, b) for a in parts for b in parts if a != b and a.startswith(b)]  # one core each
