"""What kernels take beside the arena: nothing; and inside of it: less than a hundredth, or 512 bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_cascade import api, pipeline
from tvm_cascade.cascading import plan_graph
from tvm_cascade.cores import get_core, kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.plan_options import rows_alone

MODEL = Path(api.__file__).parent / "testing" / "data" / "shapes.tflite"
CORES = [("cortex-m0plus", "c"), ("cortex-m3", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj"), ("riscv32", "c")]
PLANS = {
    "layer by layer": {"layerwise": True},
    "row rings": {"granularity": "row"},
    "smallest": {},
    "pixels": {"granularity": "pixel"},
}


def scratch_fits(path: Path, target: str, backend: str, plans: list[str]) -> None:
    prepared = pipeline.prepare(load(str(path)), kernel_target(target, backend))
    for name in plans:
        options = {"alignment": get_core(target).align, "pixels": True, "accumulators": True, "stripes": True}
        plan = plan_graph(prepared.graph, rows_alone(**options, **PLANS[name]))
        assert max(s.scratch_bytes for s in plan.segments) <= max(plan.peak // 100, 512), name


@pytest.mark.parametrize("target,backend", CORES)
def test_scratch_of_every_core(target: str, backend: str) -> None:
    scratch_fits(MODEL, target, backend, list(PLANS))


@pytest.mark.parametrize(
    "model,plans",
    [("kws_dscnn_int8", list(PLANS)), ("resnet8_int8", ["layer by layer", "row rings", "smallest", "pixels"])],
)
def test_scratch_of_public_models(model: str, plans: list[str], test_data: Path) -> None:
    """The map of 64 channels that resnet8 steps over would take 576 bytes if its windows were copied."""
    scratch_fits(test_data / "models" / f"{model}.tflite", "cortex-m55", "obj", plans)


@pytest.mark.parametrize("granularity", ["auto", "pixel"])
def test_steps_that_would_take_too_much_scratch_are_not_planned(granularity: str) -> None:
    """One kernel row of one pixel is 576 bytes here, and the arena far below 57,600: rows are left."""
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 8, 5, 8), "x"), 192, kernel=(1, 1))
    x = net.conv(net.depthwise(x, (3, 3), 1, "same"), 8, kernel=(3, 3), padding="same")
    prepared = pipeline.prepare(net.finish(x), kernel_target("cortex-m4"))
    assert max(op.kernels.tile_workspace_bytes(1) for op in prepared.graph.ops) > 512
    plan = plan_graph(prepared.graph, rows_alone(granularity=granularity, pixels=True, max_time=9.0))
    assert max(s.scratch_bytes for s in plan.segments) <= max(plan.peak // 100, 512)
