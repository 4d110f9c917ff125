"""Weights in RAM: within the budget, counted in the image, equal results."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.emit.elf import read_sections
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

pytest.importorskip("ai_edge_litert")


def _network(path: Path) -> None:
    """Two convolutions: 3x3, of 72 bytes of weights, then 1x1, of 32, on a quarter of the pixels."""
    rng, w = np.random.default_rng(0), ModelWriter()
    x = w.activation((1, 8, 8, 2), "int8", 0.1, 3, name="x")
    x = w.convolution(x, 4, 3, 1, rng)
    x = w.convolution(x, 8, 1, 2, rng)
    w.outputs = [x]
    path.write_bytes(w.finish())


@pytest.mark.parametrize("emit", ["c", "obj"])
def test_they_are_counted_and_change_nothing(tmp_path: Path, emulator: None, emit: str) -> None:
    model = tmp_path / "m.tflite"
    _network(model)
    made = {}
    for budget in (0, 120, 1 << 20):
        folder = tmp_path / f"fw{budget}"
        made[budget] = tvm_cascade.compile(
            model, target="cortex-m4", emit=emit, ram_weights=budget, output=folder, name="net"
        )
        done = tvm_cascade.run(folder, check=model)
        assert done.ok and done.match
        ours = made[budget].ram_weight_bytes
        assert ours <= budget and made[budget].ram_bytes >= made[0].ram_bytes + ours
        assert ("net_load_weights" in (folder / "net.h").read_text()) == (ours > 0)
    assert 0 < made[120].ram_weight_bytes < made[1 << 20].ram_weight_bytes
    assert "weights in RAM" in made[120].to_text() and "weights in RAM" not in made[0].to_text()
    assert made[120].to_dict()["ram_weight_bytes"] == made[120].ram_weight_bytes
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-std=c99")
    section = '-DNET_WEIGHTS_SECTION=".dtcm"'
    command = [
        "arm-none-eabi-gcc",
        *warnings,
        section,
        "-c",
        "-o",
        str(tmp_path / "n.o"),
        str(tmp_path / "fw120/net.c"),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    sections = subprocess.run(["arm-none-eabi-objdump", "-h", str(tmp_path / "n.o")], capture_output=True, text=True)
    assert ".dtcm" in sections.stdout


def test_layers_are_prefetched_into_a_double_buffer(tmp_path: Path, emulator: None) -> None:
    """Each half holds the weights of a layer while the other is filled for the next; what is read once stays in flash."""
    model = tmp_path / "m.tflite"
    rng, w = np.random.default_rng(0), ModelWriter()
    x = w.activation((1, 8, 8, 2), "int8", 0.1, 3, name="x")
    for channels, size, stride in ((4, 3, 1), (8, 1, 2), (4, 3, 1), (6, 1, 1)):
        x = w.convolution(x, channels, size, stride, rng)
    w.outputs = [x]
    model.write_bytes(w.finish())
    for more in (
        {},
        {"ram_weights": 64, "emit": "obj"},
        {"board": "mps2-an500", "memory": ["sram=2KiB", "psram=64KiB"]},
    ):
        folder = tmp_path / f"fw{len(more)}{'board' in more}"
        made = tvm_cascade.compile(
            model, target="cortex-m7", layerwise=True, prefetch=1000, output=folder, name="net", **more
        )
        text = (folder / "net.c").read_text()
        assert text.count("net_begin_segment(") >= 5 and "net_prefetched)[" in text
        done = tvm_cascade.run(folder, check=model)
        assert done.ok and done.match and 0 < made.ram_weight_bytes <= 1000 + 64
        if "board" in more:
            sections = {s.name: s.bytes for s in read_sections(folder / str(made.elf))}
            for row, ran in zip(made.to_dict().get("memories", []), done.to_dict().get("memories", []), strict=True):
                assert sections.get(f".{row['name']}", 0) == row["peak_bytes"] == ran["high_water_bytes"]
                assert row["peak_bytes"] <= row["capacity_bytes"]
            assert sum(made.weights_in.values()) >= made.ram_weight_bytes
    strict = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-std=c99")
    command = ["arm-none-eabi-gcc", *strict, "-c", "-o", str(tmp_path / "n.o"), str(tmp_path / "fw0False/net.c")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
