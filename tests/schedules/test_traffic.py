"""Traffic of plans: bytes by block, as the windows say, and as counted while the plans run."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_cascade.cascading.memories import apart
from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.pipeline import prepare
from tvm_cascade.report.estimate import estimate_operators
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.tuning.plan_cost import PlanCounter
from tvm_cascade.schedules.tuning.traffic import READ, WRITTEN, TrafficCounter
from tvm_cascade.schedules.tuning.written_plan import WrittenPlan
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.counted_bytes import executed_bytes
from tvm_cascade.testing.random_dags import ways


def network():
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 12, 10, 3), "x"), 8, 3)
    y = net.depthwise(x, 3, 2)
    y = net.add(net.conv(y, 8, 1), y)
    return net.finish([net.global_pool(y), net.max_pool(y)])


@pytest.mark.parametrize("way", ["min", "rows", "layerwise", "3x work"])
def test_equals_what_runs(way: str) -> None:
    mod = network()
    prepared, plan = ways(mod, prepare(mod, KernelTarget()))[way]()
    kernels = prepared.kernels_of(plan, generic=True)
    moved = TrafficCounter(KernelTarget()).count(plan, kernels)
    names = [b.name for b in plan.problem.buffers]
    counters = [k for k, name in enumerate(names) if name.startswith(("state", "kept"))]
    of_kernels = moved.sum() - moved[:, :, counters].sum()
    feed = np.random.default_rng(1).integers(-128, 128, (1, 12, 10, 3)).astype("int8")
    assert of_kernels == pytest.approx(
        executed_bytes(prepared, plan, [feed]), rel=0.005
    )  # padding is taken to be loaded


@pytest.mark.parametrize("way", ["min", "rows", "layerwise", "3x work"])
def test_instructions_are_the_same_wherever_blocks_lie(way: str) -> None:
    """So that a plan that is written for its traffic serves the count of its instructions too."""
    mod, core = network(), kernel_target("cortex-m7", "c")
    prepared, plan = ways(mod, prepare(mod, core))[way]()
    kernels = prepared.kernels_of(plan)
    written = WrittenPlan(apart(plan), kernels)
    assert PlanCounter(core).count_written(written) == PlanCounter(core).count(plan, kernels)
    assert (TrafficCounter(core).count_written(written) == TrafficCounter(core).count(plan, kernels)).all()


def test_follows_from_windows_where_kernels_load_once() -> None:
    """A depthwise kernel loads every value of its window once a row, and stores every output once."""
    core = kernel_target("cortex-m7", "c")
    found = plan_network(network(), PlanRequest(granularity="row"), kernels=KernelSource(core))
    plan = found.plan
    moved = TrafficCounter(core).count(plan, found.prepared.kernels_of(plan))
    op = next(op for op in plan.graph.ops if "depthwise" in op.kind)
    estimate = estimate_operators(plan)[op.index]
    blocks = [b.name for b in plan.problem.buffers]
    read, written = (moved[op.index, how, blocks.index(f"tensor {t[0]}")] for how, t in
                     ((READ, op.inputs), (WRITTEN, op.outputs)))  # fmt: skip
    assert (read, written) == (estimate.read_bytes, estimate.written_bytes)


def test_blocks_of_the_driver_count_too() -> None:
    core = kernel_target("cortex-m7", "c")
    found = plan_network(network(), PlanRequest(), kernels=KernelSource(core))
    plan = found.plan
    moved = TrafficCounter(core).count(plan, found.prepared.kernels_of(plan))
    for s, segment in enumerate(plan.segments):
        if segment.state_bytes:
            at = [b.name for b in plan.problem.buffers].index(f"state {s}")
            width = segment.state_bytes // len(set(segment.trace))
            assert moved[:, READ, at].sum() == moved[:, WRITTEN, at].sum() == width * len(segment.trace)
