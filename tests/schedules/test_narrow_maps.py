"""Steps by pixels where rows are no multiple of a step and rings wrap within one: fast kernels all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.cascading import planner
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.forms.pixels import PixelTileKernel
from tvm_cascade.testing.builder import Net


def narrow() -> IRModule:
    """Rows of five pixels, as keyword spotting has; 12 channels cannot be copied sixteen bytes at a time."""
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 9, 10, 4), "sound"), 12, kernel=(3, 4), stride=(1, 2), padding="same", activation="relu")
    x = net.depthwise(x, (3, 3), 1, "same", activation="relu")
    x = net.conv(x, 16, kernel=(1, 1), activation="relu")
    return net.finish(net.dense(net.flatten(x), 6))


@pytest.mark.emulator
@pytest.mark.parametrize("pixels", [2, 4])
@pytest.mark.parametrize("target,backend", [("cortex-m3", "c"), ("cortex-m4", "c"), ("cortex-m55", "obj")])
def test_steps_that_wrap_are_exact(
    target: str, backend: str, pixels: int, emulator: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_cascade.cascading.options.CHUNKS", (pixels,))
    planner._kept_searches.cache_clear()  # of other steps
    prepared = prepare(narrow(), kernel_target(target, backend))
    options = {"granularity": "pixel", "overlap": False}
    made = api.compile(narrow(), target=target, emit=backend, output=tmp_path / "p", **options)
    assert {s.tile.columns for s in made.plan.segments} >= {pixels}
    kernels = prepared.kernels_of(made.plan)
    tiles = [k for k in kernels if isinstance(k, PixelTileKernel)]
    assert len(tiles) >= 2
    assert sum(len(k.wrapping) for k in tiles) > 0
    assert api.run(tmp_path / "p", board=made.board).equals_host
