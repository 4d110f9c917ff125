"""Maps of one row, such as signals over time: plans go along it in steps of pixels, with the kernels that whole rows have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.graph import IDENTITY
from tvm_cascade.pipeline import prepare
from tvm_cascade.report.steps import step_rows
from tvm_cascade.schedules.forms.transpose_in_place import planes_of
from tvm_cascade.testing.builder import Net, Value

CHANNELS, SAMPLES = 8, 96


def signal() -> IRModule:
    """Channels first without rows, as from PyTorch; a dilated and a wide window, a pool, and a mean over time at the end."""
    net = Net("int8", seed=11)
    x = net.reshape(net.input((1, CHANNELS, SAMPLES), "signal"), (1, CHANNELS, 1, SAMPLES))
    x = Value(net._emit(relax.op.permute_dims(x.expr, [0, 2, 3, 1])), (1, 1, SAMPLES, CHANNELS), x.scale, x.zero_point)
    x = net.conv(x, 24, (1, 3), padding="same", dilation=(1, 4), activation="relu")
    x = net.depthwise(x, (1, 9), 1, "same", activation="relu")
    x = net.conv(x, 32, (1, 1), activation="relu")
    x = net.max_pool(x, (1, 2), (1, 2))
    x = net.conv(x, 32, (1, 3), padding="same", activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 5))


def test_every_layer_goes_along_the_row() -> None:
    prepared = prepare(signal(), kernel_target("cortex-m4", "c"))
    by_kind = {op.kind: op for op in prepared.graph.ops}
    assert by_kind["conv2d"].windows == by_kind["depthwise_conv2d"].windows == (IDENTITY,)
    assert all(by_kind[kind].kernels.row_tables for kind in ("conv2d", "depthwise_conv2d", "max_pool2d"))
    assert by_kind["transpose"].kernels.in_place_workspace_bytes <= CHANNELS * SAMPLES // 4


def test_no_layer_is_whole() -> None:
    """The transpose takes the input's place, and what is summed over time is never in memory at once."""
    whole = api.plan(signal(), target="cortex-m4", layerwise=True)
    plan = api.plan(signal(), target="cortex-m4")
    assert plan.peak_bytes < 0.4 * whole.peak_bytes
    assert plan.estimated_instructions <= 1.2 * whole.estimated_instructions
    ops = {op.kind: op.index for op in plan.plan.graph.ops}
    assert any(ops["transpose"] in s.in_place for s in plan.plan.segments)
    assert any(ops["mean"] in s.accumulating and s.tile.by_pixels for s in plan.plan.segments)
    made = {row["operator"]: row["by"] for row in step_rows(plan.plan)}
    assert any(by.endswith("pixels") for by in made.values())


@pytest.mark.emulator
@pytest.mark.parametrize(
    "target,options",
    [
        ("cortex-m4", {}),
        ("cortex-m55", {}),
        ("riscv32", {"max_time": 3.0}),
        ("cortex-m3", {"granularity": "pixel", "max_time": 5.0}),
    ],
)
def test_signals_are_exact(target: str, options: dict, emulator: None, tmp_path: Path) -> None:
    made = api.compile(signal(), target=target, output=tmp_path / "p", **options)
    along_rows = target == "riscv32"  # where time goes along rows instead
    assert any(s.tile.by_pixels for s in made.plan.segments) != along_rows
    assert api.run(tmp_path / "p", board=made.board).equals_host


@pytest.mark.parametrize("samples,rows", [(128, 16), (200, 25), (96, 24), (98, 7), (30, 5), (97, 24), (2, None)])
def test_a_signal_turns_in_parts(samples: int, rows: int | None) -> None:
    """A sixteenth in whole words, else the longest rows that take a fourth of it at most; the last row may be shorter."""
    net = Net("int8", seed=1)
    x = net.input((1, 3, 1, samples), "x")
    y = Value(net._emit(relax.op.permute_dims(x.expr, [0, 2, 3, 1])), (1, 1, samples, 3), x.scale, x.zero_point)
    prepared = prepare(net.finish(net.conv(y, 4, (1, 1))), kernel_target("cortex-m4", "c"))
    site = prepared.site(0)
    assert site is not None and site.op.kind == "transpose"
    planes = planes_of(site, (0, 3, 1, 2))
    assert (None if planes is None else planes.height) == rows
    if planes is not None:
        assert planes.height * planes.width + planes.tail == samples and planes.width <= np.ceil(samples / 4)
