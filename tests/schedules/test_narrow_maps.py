"""Steps by pixels where rows are no multiple of a step and rings wrap within one: fast kernels all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.cascading import planner, search_cache
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.forms.pixels import PixelTileKernel
from tvm_cascade.testing.builder import Net

pytestmark = pytest.mark.usefixtures("quick_host")


def narrow(tall: int) -> IRModule:
    """Rows of five pixels, as keyword spotting has; 12 channels cannot be copied sixteen bytes at a time.

    Windows are `tall` rows high: TVM simplifies the table of a window's rows for long, three times as long by each row.
    """
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 9, 10, 4), "sound"), 12, (tall, 4), stride=(1, 2), padding="same", activation="relu")
    x = net.depthwise(x, (tall, 3), 1, "same", activation="relu")
    x = net.conv(x, 16, kernel=(1, 1), activation="relu")
    return net.finish(net.dense(net.flatten(x), 6))


@pytest.mark.emulator
@pytest.mark.parametrize(
    "target,backend,pixels,tall",
    [
        ("cortex-m3", "c", 2, 2),
        ("cortex-m3", "c", 4, 2),
        ("cortex-m4", "c", 2, 2),
        ("cortex-m4", "c", 4, 3),
        ("cortex-m55", "obj", 2, 3),
        ("cortex-m55", "obj", 4, 2),
    ],
)
def test_steps_that_wrap_are_exact(
    target: str, backend: str, pixels: int, tall: int, emulator: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_cascade.cascading.options.CHUNKS", (pixels,))
    search_cache._kept_searches.cache_clear()  # of other steps
    planner._smallest.cache_clear()  # type: ignore[attr-defined]
    planner._of_fewest_live_bytes.cache_clear()  # type: ignore[attr-defined]
    prepared = prepare(narrow(tall), kernel_target(target, backend))
    options = {"granularity": "pixel", "overlap": False}
    made = api.compile(narrow(tall), target=target, emit=backend, output=tmp_path / "p", **options)
    assert {s.tile.columns for s in made.plan.segments} >= {pixels}
    kernels = prepared.kernels_of(made.plan)
    tiles = [k for k in kernels if isinstance(k, PixelTileKernel)]
    assert len(tiles) >= 2
    assert sum(len(k.wrapping) for k in tiles) > 0
    assert api.run(tmp_path / "p", board=made.board).equals_host


def test_one_row_has_fast_kernels_in_steps() -> None:
    """Nothing tells by how much the row of a map of one row would move on: steps along it have fast kernels all the same."""
    net = Net("int8", seed=3)
    x = net.input((1, 1, 64, 16), "signal")
    for channels in (48, 48, 4):
        x = net.conv(x, channels, (1, 3), padding="valid")
    mod = net.finish(x)
    known = [op.kernels for op in prepare(mod, kernel_target("cortex-m4", "c")).graph.ops]
    assert [bool(k.row_tables) for k in known] == [True, True, True]
    whole = api.plan(mod, target="cortex-m4", layerwise=True)
    small = api.plan(mod, target="cortex-m4", max_time=4.0)
    assert small.peak_bytes < 0.75 * whole.peak_bytes
    assert small.estimated_instructions < 1.5 * whole.estimated_instructions  # 4.6 times by generic kernels


@pytest.mark.emulator
def test_row_tables_of_whole_inputs_are_filled_without_tests_for_wraps(emulator: None, tmp_path: Path) -> None:
    """The network's input is whole, what the first layer makes is a ring: two functions that fill tables."""
    net = Net("int8", seed=4)
    x = net.conv(net.input((1, 12, 12, 4)), 8, kernel=3, padding="same", stride=2, activation="relu")
    mod = net.finish(net.conv(x, 8, kernel=3, padding="same"))
    made = api.compile(mod, target="cortex-m4", output=tmp_path / "p", granularity="pixel")
    kernels = prepare(mod, kernel_target("cortex-m4", "c")).kernels_of(made.plan)
    tables = [table for k in kernels if isinstance(k, PixelTileKernel) for table in k.tables if table is not None]
    assert [t.fill is t.fill_whole for t in tables] == [True, False]
    assert api.run(tmp_path / "p", board=made.board).equals_host


@pytest.mark.emulator
@pytest.mark.parametrize("dtype,rows,channels,wide", [("int8", 2, 24, 9), ("int8", 1, 40, 9), ("int16", 1, 12, 4)])
def test_single_pixels_cut_off_by_padding_are_exact(
    dtype: str, rows: int, channels: int, wide: int, emulator: None, tmp_path: Path
) -> None:
    """A kernel of one pixel whose window is cut off has a single group of columns: its taps begin within a vector."""
    net = Net(dtype, seed=1)
    x = net.conv(net.input((1, rows, 20, channels), "x"), 16, (1, wide), padding="same")
    mod = net.finish(net.conv(x, 8, (1, 1)))
    made = api.compile(mod, target="cortex-m55", output=tmp_path / "p", granularity="pixel", max_time=9.0)
    assert any(s.tile.by_pixels for s in made.plan.segments)
    assert api.run(tmp_path / "p", board=made.board).equals_host
