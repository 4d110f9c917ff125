"""What lies in slow memory and is read again and again is copied once, row by row, where that saves cycles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tvm.ir import IRModule

from tvm_cascade import api, pipeline
from tvm_cascade.cores import kernel_target
from tvm_cascade.machine import Ram
from tvm_cascade.passes import place_network
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.builder import Net

SIZE = 40 * 40 * 3
FAST, SLOW = Ram("sram", 3000, 0.5), Ram("psram", 1 << 20, 6.0)


def image() -> IRModule:
    """A network whose input is larger than the fast memory, and read by windows that overlap."""
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 40, 40, 3), "image"), 8, (3, 3), stride=(2, 2), padding="same", activation="relu")
    x = net.conv(net.depthwise(x, (3, 3), 2, "same", activation="relu"), 12, kernel=(1, 1), activation="relu")
    return net.finish(net.dense(net.global_pool(x), 6))


def residual() -> IRModule:
    """A network of two residual blocks, whose tensors a copy of rows may serve or not."""
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 32, 32, 3), "image"), 8, (3, 3), stride=(2, 2), padding="same", activation="relu")
    for _ in range(2):
        y = net.conv(x, 32, kernel=(1, 1), activation="relu")
        y = net.conv(net.depthwise(y, (3, 3), 1, "same", activation="relu"), 8, kernel=(1, 1))
        x = net.add(x, y)
    return net.finish(net.dense(net.global_pool(x), 6))


def _planned(network: Callable[[], IRModule] = image, fast: Ram = FAST, **options: object) -> pipeline.Planned:
    request = PlanRequest(memory=(fast, SLOW), **options)  # type: ignore[arg-type]
    planned = pipeline.plan(pipeline.load(network()), request, KernelSource(kernel_target("cortex-m7", "c")))
    pipeline.check(planned)
    return planned


def test_a_slow_input_is_read_once() -> None:
    planned = _planned()
    chosen = planned.candidate
    assert [op.name for op in chosen.graph.ops if op.kind == "copy"] == ["image_copy"]
    (fast_read, fast_written), slow = chosen.traffic
    assert slow == (SIZE, 0)
    assert fast_read > SIZE and fast_written > SIZE


def test_copies_that_save_nothing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is read more than once is copied in one round; the next keeps the image's copy alone."""
    chosen, fast = [], Ram("sram", 2000, 0.5)
    for rounds in (0, 3):
        monkeypatch.setattr(place_network, "_CHANGES", rounds)
        chosen.append(_planned(residual, fast).candidate)
    before, after = chosen
    assert [op.name for op in before.graph.ops if op.kind == "copy"] == ["image_copy", "conv2d_copy", "add_copy"]
    assert [op.name for op in after.graph.ops if op.kind == "copy"] == ["image_copy"]
    assert after.placements[0].cycles < before.placements[0].cycles
    assert sum(after.traffic[1]) <= sum(before.traffic[1])


def test_it_is_read_where_it_lies_where_that_is_asked_or_costs_nothing() -> None:
    for options in ({"objective": "bytes"}, {"layerwise": True}, {"stream_input": True}):
        assert not any(op.kind == "copy" for op in _planned(**options).candidate.graph.ops), options


def test_traffic_is_told_by_memory() -> None:
    told = api.plan(image(), target="cortex-m7", memory=("sram=3000:0.5", "psram=1MiB:6"))
    fast, slow = told.to_dict()["memories"]  # type: ignore[typeddict-item]
    assert (slow["read_bytes"], slow["written_bytes"]) == (SIZE, 0) and fast["read_bytes"] > SIZE
    assert any(
        line.split()[2:4] == [str(SIZE), "0"]
        for line in told.to_text(details=True).splitlines()
        if "psram" in line and line.split()[0].isdigit()
    )


@pytest.mark.emulator
def test_the_image_computes_the_same(emulator: None, quick_host: None, tmp_path: Path) -> None:
    api.compile(
        image(),
        target="cortex-m7",
        board="mps2-an500",
        memory=("sram=3000:0.5", "psram=64KiB:6"),
        output=tmp_path / "p",
    )
    ran = api.run(tmp_path / "p")
    assert ran.equals_host and dict(ran.memories)["psram"] == SIZE
