"""Global averages that sum up a cascade's rows or pixels by the core's own kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.forms.accumulating import AccumulatingKernel
from tvm_cascade.testing.builder import Net

pytestmark = pytest.mark.usefixtures("quick_host")


def averaged() -> IRModule:
    net = Net("int8", seed=8)
    x = net.conv(net.input((1, 13, 10, 4), "image"), 16, kernel=(3, 3), padding="same", activation="relu")
    x = net.conv(x, 32, kernel=(3, 3), stride=(2, 2), padding="same", activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 6))


@pytest.mark.emulator
@pytest.mark.parametrize("granularity", ["row", "pixel"])
@pytest.mark.parametrize("target,backend", [("cortex-m4", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj")])
def test_sums_of_rows_and_pixels(target: str, backend: str, granularity: str, emulator: None, tmp_path: Path) -> None:
    made = api.compile(averaged(), target=target, emit=backend, output=tmp_path / "p", granularity=granularity)
    assert any(s.accumulating for s in made.plan.segments)
    kernels = prepare(averaged(), kernel_target(target, backend)).kernels_of(made.plan)
    assert [k.variants[0].rule for k in kernels if isinstance(k, AccumulatingKernel)][:1] == ["pool_sum"]
    assert api.run(tmp_path / "p", board=made.board).equals_host
