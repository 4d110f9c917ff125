"""What kernels take beside the arena: nothing; and inside of it: less than a hundredth, or 512 bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_cascade import api, pipeline
from tvm_cascade.cascading import PlanOptions
from tvm_cascade.frontend import load
from tvm_cascade.micro.target import get_target

MODEL = Path(api.__file__).parent / "testing" / "data" / "shapes.tflite"
CORES = [("cortex-m0plus", "c"), ("cortex-m3", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj"), ("riscv32", "c")]
PLANS = {"layer by layer": {"layerwise": True}, "row rings": {"granularity": "row"}, "smallest": {}}


def scratch_fits(path: Path, target: str, backend: str, plans: list[str]) -> None:
    prepared = pipeline.prepare(load(str(path)), pipeline.core_of(target, backend))
    for name in plans:
        options = {"alignment": get_target(target).align, "pixels": True, "accumulators": True, "stripes": True}
        plan = pipeline.plan_graph(prepared.graph, PlanOptions(**options, **PLANS[name]))
        assert max(s.scratch_bytes for s in plan.segments) <= max(plan.peak // 100, 512), name


@pytest.mark.parametrize("target,backend", CORES)
def test_scratch_of_every_core(target: str, backend: str) -> None:
    scratch_fits(MODEL, target, backend, list(PLANS))


@pytest.mark.parametrize("model", ["kws_dscnn_int8", "resnet8_int8"])
def test_scratch_of_public_models(model: str, test_data: Path) -> None:
    """By rows; a step by pixels gathers its window into the arena, 576 bytes where 3 x 3 taps have 64 channels."""
    scratch_fits(test_data / "models" / f"{model}.tflite", "cortex-m55", "obj", ["layer by layer", "row rings"])
