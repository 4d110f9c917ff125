"""Whole firmware with the hand-scheduled kernels in the emulator, per core and back end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.pipeline import prepare

pytestmark = pytest.mark.usefixtures("quick_host")

MODEL = Path(api.__file__).parent / "testing" / "data" / "shapes.tflite"

# target, board, back end, instructions that one inference may take
FIRMWARE = [
    ("cortex-m3", "mps2-an385", "c", 3_100_000),
    ("cortex-m4", "mps2-an386", "c", 2_500_000),
    ("cortex-m4", "mps2-an386", "obj", 2_600_000),
    ("cortex-m55", "mps3-an547", "obj", 800_000),
    ("cortex-m55", "mps3-an547", "c", 2_500_000),
    ("cortex-m85", "mps3-an547", "obj", 800_000),
    ("cortex-m85", "mps3-an547", "c", 2_500_000),
]


@pytest.mark.emulator
@pytest.mark.parametrize("target,board,backend,limit", FIRMWARE, ids=[f"{t}-{e}" for t, _, e, _ in FIRMWARE])
def test_firmware_is_exact_and_fast(
    target: str, board: str, backend: str, limit: int, emulator: None, tmp_path: Path
) -> None:
    api.compile(str(MODEL), target=target, board=board, emit=backend, granularity="row", output=tmp_path / "p")
    report = api.run(tmp_path / "p", board=board, check=str(MODEL)).to_dict()
    assert report["match"] is True
    assert isinstance(report["instructions"], int) and report["instructions"] <= limit


@pytest.mark.parametrize(
    "target,backend,module", [("cortex-m4", "c", "dsp"), ("cortex-m55", "obj", "mve"), ("cortex-m85", "obj", "mve")]
)
def test_every_weighted_operator_has_a_rule(target: str, backend: str, module: str) -> None:
    prepared = prepare(load(str(MODEL)), kernel_target(target, backend))
    rules = {
        op.kind: kernel.rule
        for op, kernel in zip(prepared.graph.ops, prepared.kernels, strict=True)
        if kernel is not None and op.kind in ("conv2d", "depthwise_conv2d")
    }
    assert rules and all(module in rule or "scalar" in rule for rule in rules.values()), json.dumps(rules)
