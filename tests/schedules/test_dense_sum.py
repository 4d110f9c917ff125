"""Dense layers that sum up a cascade's rows or pixels by the core's own kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.forms.accumulating import AccumulatingKernel
from tvm_cascade.testing.builder import Net

pytestmark = pytest.mark.usefixtures("quick_host")


def flattened(channels: int, units: int, dtype: Any) -> IRModule:
    """A convolution of `channels` channels, whose pixels go into a dense layer of `units` outputs."""
    net = Net(dtype, seed=8)
    x = net.conv(net.input((1, 9, 7, 4), "image"), channels, kernel=(3, 3), padding="same", activation="relu")
    return net.finish(net.dense(net.flatten(x), units))


@pytest.mark.emulator
@pytest.mark.parametrize("granularity", ["row", "pixel"])
@pytest.mark.parametrize(
    "target,backend", [("cortex-m4", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj"), ("cortex-m0plus", "c")]
)
@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("channels,units", [(16, 6), (8, 4), (12, 9), (5, 3)])
def test_sums_of_rows_and_pixels(
    channels: int, units: int, dtype: Any, target: str, backend: str, granularity: str, emulator: None, tmp_path: Path
) -> None:
    module = flattened(channels, units, dtype)
    made = api.compile(
        module, target=target, emit=backend, output=tmp_path / "p", granularity=granularity, sram="min", max_time=9.0
    )
    assert any(s.accumulating for s in made.plan.segments)
    kernels = prepare(module, kernel_target(target, backend)).kernels_of(made.plan)
    rule = "generic" if (dtype, target) == ("float32", "cortex-m0plus") else "dense_sum"  # whose floats are calls
    assert [k.variants[0].rule for k in kernels if isinstance(k, AccumulatingKernel)] == [rule]
    assert api.run(tmp_path / "p", board=made.board).equals_host
