"""Kernels that read the parts of a concat where they lie: rules, exact in the emulator, hardly dearer than the ordinary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.rewrite_for_memory import foldable, without_concats
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.forms.pixels import pixel_tile_kernel
from tvm_cascade.schedules.rules import cortex_m_mve
from tvm_cascade.schedules.rules.quantized import read_conv
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import virtual_machine

pytestmark = pytest.mark.usefixtures("quick_host")

CORES = [("cortex-m4", "c"), ("cortex-m55", "obj"), ("riscv32", "c")]
READERS = {
    "concat_conv2d": ("pointwise", "strided", "square"),
    "concat_depthwise_conv2d": ("depthwise",),
}


def cell(*readers: str) -> tuple[tvm.IRModule, tvm.IRModule]:
    """A module, integers lowered, of concats of three maps and what reads them; and the same without the concats."""
    net = Net("int8", seed=3)
    x = net.input((1, 6, 6, 16), "x")
    y = net.concat([net.conv(x, c, 1) for c in (16, 32, 16)])
    made = {
        "pointwise": lambda: net.conv(y, 16, 1),
        "strided": lambda: net.conv(y, 8, 1, 2, "valid"),
        "square": lambda: net.conv(y, 8, 3, activation="relu"),
        "depthwise": lambda: net.depthwise(y, 3),
    }
    low = LowerQuantized()(net.finish([made[r]() for r in readers]))
    return low, without_concats(low, foldable(extract_graph(low).graph))


ALL = tuple(r for kinds in READERS.values() for r in kinds)


@pytest.mark.parametrize(("target", "backend"), CORES, ids=[f"{t}-{b}" for t, b in CORES])
def test_every_reader_has_a_rule(target: str, backend: str) -> None:
    """In steps of rows and of pixels."""
    prepared = prepare(cell(*ALL)[1], kernel_target(target, backend))
    readers = [op for op in prepared.graph.ops if op.kind in READERS]
    assert len(readers) == len(ALL)
    for op in readers:
        kernel, site = prepared.kernels[op.index], prepared.site(op.index)
        assert kernel is not None and kernel.rule != "generic" and kernel.scratch_bytes <= 512
        assert site is not None
        tiles = pixel_tile_kernel(site, 2)
        assert not isinstance(tiles, str) and all(v.rule != "generic" for v in tiles.variants)


def test_vectors_do_not_read_parts_through_tables() -> None:
    """Tables are looked up one value at a time: depthwise kernels on vectors leave such parts to others."""
    prepared = prepare(cell("depthwise")[1], kernel_target("cortex-m55", "obj"))
    reader = next(op for op in prepared.graph.ops if op.kind == "concat_depthwise_conv2d")
    computed = prepared.extracted.operators[reader.index]
    assert computed is not None
    conv = read_conv(computed.spec)
    assert conv is not None and cortex_m_mve.conv_variants(conv)
    table = np.arange(256).astype("uint8").view("int8")
    requantized = replace(conv, parts=(replace(conv.parts[0], table=table), *conv.parts[1:]))
    assert cortex_m_mve.conv_variants(requantized) == []


def in_emulator(mod: tvm.IRModule, folder: Path, x: np.ndarray, **options: object) -> tuple[list[bytes], int | None]:
    """Outputs in some order, and instructions."""
    api.compile(mod, output=folder, **options)
    ran = api.run(folder, inputs={"x": x}, outputs=folder / "out.npz")
    with np.load(folder / "out.npz") as made:
        return sorted(made[k].tobytes() for k in made.files), ran.instructions


@pytest.mark.emulator
def test_firmware_that_reads_parts(emulator: None, tmp_path: Path) -> None:
    """The same bits, and at most 1.15 times the instructions."""
    low, parts = cell(*ALL)
    x = np.random.default_rng(0).integers(-128, 128, (1, 6, 6, 16)).astype("int8")
    machine = virtual_machine(low)
    want = sorted(a.numpy().tobytes() for a in machine["main"](tvm.runtime.tensor(x)))
    board = {"target": "cortex-m55", "emit": "obj"}
    whole, ordinary = in_emulator(low, tmp_path / "whole", x, **board, layerwise=True)
    made, apart = in_emulator(parts, tmp_path / "parts", x, **board, layerwise=True)
    assert whole == made == want and ordinary and apart and apart <= 1.15 * ordinary


@pytest.mark.emulator
def test_firmware_that_reads_parts_by_pixels(emulator: None, tmp_path: Path) -> None:
    low, parts = cell("depthwise", "pointwise")
    x = np.random.default_rng(0).integers(-128, 128, (1, 6, 6, 16)).astype("int8")
    machine = virtual_machine(low)
    want = sorted(a.numpy().tobytes() for a in machine["main"](tvm.runtime.tensor(x)))
    made, _ = in_emulator(parts, tmp_path, x, target="cortex-m4", emit="c", granularity="pixel")
    assert made == want
