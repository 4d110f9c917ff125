"""Stripes by the fast kernels of rows: kept and recomputed columns, residual adds, strides, pools, on every core."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.forms.stripes import NONE, NarrowStripeKernel, narrow_stripe_kernel
from tvm_cascade.testing.builder import Net

pytestmark = pytest.mark.usefixtures("quick_host")


def wide() -> IRModule:
    """Stripes save more here than rows do: rows of 48 pixels of which few are left at the end."""
    net = Net("int8", seed=7)
    x = net.conv(net.input((1, 8, 48, 4)), 8, kernel=3, stride=2, padding="same", activation="relu")
    y = net.conv(x, 24, kernel=1, activation="relu")
    y = net.conv(net.depthwise(y, kernel=3, padding="same"), 8, kernel=1)
    x = net.max_pool(net.add(x, y), kernel=(2, 2), stride=(2, 2))
    return net.finish(net.conv(x, 6, kernel=3, padding="same"))


@pytest.mark.emulator
@pytest.mark.parametrize("max_macs", [1.0, 1.6])
@pytest.mark.parametrize("target,backend", [("cortex-m3", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj")])
def test_stripes_are_exact(target: str, backend: str, max_macs: float, emulator: None, tmp_path: Path) -> None:
    options = {"granularity": "row", "overlap": False, "max_macs": max_macs, "max_time": 100.0}
    made = api.compile(wide(), target=target, emit=backend, output=tmp_path / "p", **options)
    assert any(s.stripes for s in made.plan.segments)
    kernels = prepare(wide(), kernel_target(target, backend)).kernels_of(made.plan)
    fast = [k for k in kernels if isinstance(k, NarrowStripeKernel)]
    assert len(fast) >= 4 and any(k.taps[0] == 3 for k in fast) and any(len(k.taps) == 2 for k in fast)
    assert any(len({v for _, v in k.stripes}) > 1 for k in fast)  # edges have kernels of their own
    assert api.run(tmp_path / "p", board=made.board).equals_host


def test_a_stripe_without_columns_calls_nothing() -> None:
    prepared = prepare(wide(), kernel_target("cortex-m4", "c"))
    site = prepared.site(0)
    assert site is not None
    made = narrow_stripe_kernel(site, [(0, 5), (5, 5), (5, 13)])
    assert not isinstance(made, str) and [v for _, v in made.stripes] == [0, NONE, 1]
