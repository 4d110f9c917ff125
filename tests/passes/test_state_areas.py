"""States at one end of their memory, and the areas that drivers have pointers for."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tvm_cascade import frontend
from tvm_cascade.cascading import Plan, PlanOptions, plan_graph, validate
from tvm_cascade.cascading.state_areas import areas, states_at_one_end
from tvm_cascade.cores import KernelTarget
from tvm_cascade.machine import Ram
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.pipeline import Prepared, prepare
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.streaming import wake_word

OPTIONS = tuple(
    PlanOptions(layerwise=layerwise, row_addresses=addresses, alignment=alignment)
    for layerwise, addresses, alignment in product((False, True), (False, True), (1, 4, 16))
)


@pytest.fixture(scope="module", params=[(12, 8, (3, 5)), (9, 5, (5, 3, 3)), (40, 7, (2, 9, 4))])
def ready(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    features, channels, kernels = request.param
    path = tmp_path_factory.mktemp("wake") / "wake.tflite"
    path.write_bytes(wake_word(features, channels, kernels))
    return prepare(frontend.load(path), KernelTarget())


def kept(plan: Plan) -> list[tuple[int, int]]:
    return [(area.start, area.end) for area in areas(plan) if area.kept]


@pytest.mark.parametrize("options", OPTIONS)
def test_states_move_to_one_end_at_no_bytes(ready: Prepared, options: PlanOptions) -> None:
    plan = plan_graph(ready.graph, options)
    moved = states_at_one_end(plan, options.alignment)
    validate(moved, options.alignment)
    assert moved.peak <= plan.peak and states_at_one_end(moved, options.alignment) == moved
    ((start, end),) = kept(moved)
    assert [a.kept for a in areas(moved)] in ([True, False], [False, True])
    states = sum(ready.graph.tensors[t].bytes for t, _ in ready.graph.states)
    assert states <= end - start <= states + len(ready.graph.states) * (options.alignment - 1)


def test_plans_of_networks_have_states_at_one_end(tmp_path: Path) -> None:
    (tmp_path / "wake.tflite").write_bytes(wake_word(9, 5, (5, 3, 3)))
    mod = frontend.load(tmp_path / "wake.tflite")
    for memory in ((), (Ram("fast", 100, 0.5), Ram("slow", 4096, 4.0))):
        found = plan_network(mod, PlanRequest(memory=memory))
        validate(found.plan)
        for use in found.plan.memories:
            own = [a.kept for a in areas(found.plan) if use.start <= a.start < use.end]
            assert own in ([True, False], [False, True], [False], [True])
        assert memory or len(areas(found.plan)) == 2
