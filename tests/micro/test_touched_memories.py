"""What an emulated run touches of every memory is what the plan says of it, byte for byte, whatever steps are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.testing.builder import Net


def narrow() -> IRModule:
    """Depthwise convolutions over rows of five pixels, which steps of whole rows read through row tables."""
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 25, 10, 1), "sound"), 64, (4, 4), stride=(2, 2), padding="same", activation="relu")
    for _ in range(2):
        x = net.depthwise(x, (3, 3), 1, "same", activation="relu")
        x = net.conv(x, 64, kernel=(1, 1), activation="relu")
    return net.finish(net.dense(net.global_pool(x), 6))


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("fast", "options"),
    [(1024, {}), (1536, {"objective": "bytes"}), (1024, {"granularity": "pixel"}), (1800, {"ram_weights": "200"})],
)
def test_the_plan_is_touched(
    fast: int, options: dict[str, Any], emulator: None, quick_host: None, tmp_path: Path
) -> None:
    memory = (f"sram={fast}:1", "psram=64KiB:6")
    made = api.compile(
        narrow(), target="cortex-m7", board="mps2-an500", memory=memory, output=tmp_path / "p", **options
    )
    ran = api.run(tmp_path / "p")
    assert ran.equals_host
    planned = {m["name"]: m["peak_bytes"] for m in made.to_dict().get("memories", [])}
    assert list(planned) == ["sram", "psram"] and dict(ran.memories) == planned
