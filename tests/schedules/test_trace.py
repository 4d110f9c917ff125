from __future__ import annotations

import numpy as np
import pytest

from tvm_cascade.schedules.driver.trace import Program, compress


def expanded(program: Program) -> list[int]:
    """The trace that a program replays."""
    trace: list[int] = []
    for block in program.blocks:
        for _ in range(block.count):
            for run in program.runs[block.start : block.start + block.length]:
                trace += program.steps[run.start : run.start + run.length] * run.count
    return trace


@pytest.mark.parametrize("seed", range(40))
def test_a_program_expands_to_its_trace(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trace = rng.integers(0, 1 + seed % 5, rng.integers(1, 200)).tolist()
    assert expanded(compress(trace)) == trace


def test_nested_repetition_is_stored_once() -> None:
    row = [0, 1] + [0, 1, 2] * 50 + [2]
    trace = [3] + row * 40 + [4, 4]
    program = compress(trace)
    assert expanded(program) == trace
    assert len(program.steps) + 6 * (len(program.runs) + len(program.blocks)) < 100 < len(trace) // 50


def test_a_trace_without_repetition_stays_a_table() -> None:
    trace = list(range(60))
    program = compress(trace)
    assert expanded(program) == trace
    assert len(program.steps) == 60
