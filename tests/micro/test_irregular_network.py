"""A small irregular network, in the manner of SwiftNet's cells, as firmware: by order, joined concats and cascading."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvm_cascade import api
from tvm_cascade.ordering import OrderOptions, order
from tvm_cascade.ordering.report import without_scratch
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.order_ops import OrderOps
from tvm_cascade.passes.rewrite_for_memory import RewriteForMemory
from tvm_cascade.results import CompileResult
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import virtual_machine

pytestmark = pytest.mark.usefixtures("quick_host")

TARGET = "cortex-m4"
WHOLE = OrderOptions(in_place=False)


def network() -> tvm.IRModule:
    """A cell whose branches stand side by side, as a file may list them, so that order matters."""
    net = Net("int8", seed=11)
    x = net.conv(net.input((1, 16, 16, 3), "image"), 8, 3, 2, activation="relu")
    wide = [net.conv(x, 24, 1, activation="relu") for _ in range(2)]
    deep = [net.conv(net.depthwise(w, 3), 8, 1) for w in wide]
    joined = net.concat(deep)  # nobody else reads these parts: they can be written into place
    a, b = net.conv(joined, 8, 1), net.conv(x, 8, 3)
    both = net.conv(net.concat([a, b]), 8, 3)  # these are read again
    x = net.add(net.add(both, a), b)
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 4))


@pytest.fixture(scope="module")
def lowered() -> tvm.IRModule:
    return LowerQuantized()(network())


@pytest.fixture(scope="module")
def expected(lowered: tvm.IRModule) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(2).integers(-128, 128, (1, 16, 16, 3)).astype("int8")
    machine = virtual_machine(lowered)
    return x, machine["main"](tvm.runtime.tensor(x)).numpy()


@pytest.fixture(scope="module")
def made(lowered: tvm.IRModule, tmp_path_factory: pytest.TempPathFactory, emulator_tools: None) -> CompileResult:
    """The cascade as a project, whose plan is that of `api.plan`."""
    return api.compile(lowered, target=TARGET, output=tmp_path_factory.mktemp("irregular") / "p")


def test_each_step_needs_less(lowered: tvm.IRModule, made: CompileResult) -> None:
    ordered = OrderOps(WHOLE)(lowered)
    folded = OrderOps(WHOLE)(RewriteForMemory(WHOLE)(lowered))
    arenas = [api.plan(mod, target=TARGET, layerwise=True).plan.peak for mod in (lowered, ordered, folded)]
    optima = [order(without_scratch(extract_graph(mod).graph), WHOLE).peak for mod in (ordered, folded)]
    assert arenas[0] > arenas[1] >= arenas[2] > made.plan.peak
    assert all(arena <= 1.02 * optimum for arena, optimum in zip(arenas[1:], optima, strict=True))


def test_the_cascade_as_firmware(made: CompileResult, expected: tuple[np.ndarray, np.ndarray]) -> None:
    assert made.concats and made.folder is not None
    ran = api.run(made.folder, inputs={"image": expected[0]})
    np.testing.assert_array_equal(next(iter(ran.outputs.values())), expected[1])
    assert ran.ok and ran.arena_bytes == ran.arena_high_water_bytes == made.plan.peak
