"""`plan` estimates the code of the image that `compile` links, on every family of cores."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.testing.builder import Net

pytestmark = pytest.mark.usefixtures("quick_host")


def _network() -> IRModule:
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 24, 24, 3), "image"), 8, (3, 3), 2, "same", activation="relu")
    for width in (16, 24):
        x = net.conv(net.depthwise(x, (3, 3), 1, "same", activation="relu"), width, kernel=(1, 1), activation="relu")
    return net.finish(net.dense(net.global_pool(x), 5))


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m55"])
def test_estimated_code_of_a_linked_image(target: str, tmp_path: Path, arm_gcc: None) -> None:
    told = api.plan(_network(), target=target)
    made = api.compile(_network(), target=target, output=tmp_path / "project")
    assert told.flash is not None and made.flash_bytes is not None
    weights, code = told.flash
    assert 0.7 < code / (made.flash_bytes - weights) < 1.3, (code, weights, made.flash_bytes)
