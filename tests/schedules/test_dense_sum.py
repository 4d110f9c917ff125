"""Dense layers that sum up a cascade's rows or pixels by the core's own kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.passes.small_weights import with_small_weights
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.forms.accumulating import AccumulatingKernel
from tvm_cascade.testing.builder import Net

pytestmark = pytest.mark.usefixtures("quick_host")


class FourBits(Net):
    """A network whose weights fit four bits."""

    def _integers(self, shape: tuple[int, ...]) -> np.ndarray:
        return (super()._integers(shape) >> 4).astype("int8")


def flattened(channels: int, units: int, dtype: Any, kind: type[Net] = Net) -> IRModule:
    """A convolution of `channels` channels, whose pixels go into a dense layer of `units` outputs."""
    net = kind(dtype, seed=8)
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


@pytest.mark.emulator
@pytest.mark.parametrize("target,backend", [("cortex-m4", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj")])
@pytest.mark.parametrize("channels,units", [(32, 6), (16, 9), (8, 5)])
def test_weights_of_four_bits(
    channels: int, units: int, target: str, backend: str, emulator: None, tmp_path: Path
) -> None:
    module = with_small_weights(flattened(channels, units, "int8", FourBits))
    options: dict[str, Any] = {"target": target, "emit": backend, "sram": "min", "max_time": 9.0}
    made = api.compile(module, output=tmp_path / "p", granularity="pixel", **options)
    assert any(s.accumulating for s in made.plan.segments)
    stored = next(
        sum(int(np.prod(array.shape)) * array.dtype.itemsize for array in kernel.variants[0].constants)
        for kernel in prepare(module, kernel_target(target, backend)).kernels_of(made.plan)
        if isinstance(kernel, AccumulatingKernel)
    )
    halved = (channels % 16 if target == "cortex-m55" else channels % 8) == 0
    weights = 63 * channels * units
    assert (weights // 2 < stored < weights // 2 + 20 * units) if halved else stored > weights
    assert api.run(tmp_path / "p", board=made.board).equals_host
