"""Sums and products of a map with an operand for every channel or pixel: the reference's results, in few instructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.cores import kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.pipeline import prepare
from tvm_cascade.testing.tflite import ModelWriter

SHAPE = (1, 5, 6, 8)
WAYS = {"channel": (1, 1, 1, 8), "pixel": (1, 5, 6, 1), "constant": (1, 1, 1, 8), "vector": (8,)}
OPERATORS = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions"}


def network(folder: Path, dtype: str) -> Path:
    """Write a file of every operator with every kind of second operand, on either side."""
    rng, w, off = np.random.default_rng(7), ModelWriter(), 128 if dtype == "uint8" else 0
    for k, (way, size) in enumerate(WAYS.items()):
        for j, (name, options) in enumerate(OPERATORS.items()):
            x = w.activation(SHAPE, dtype, 0.05, 4 + off)
            scale, zero = (0.05, 0.11)[k % 2], -9 + off  # equal scales are plain shifts
            data = (rng.integers(-128, 128, size) + off).astype(dtype)
            y = (
                w.constant(data, scale, zero)
                if way in ("constant", "vector")
                else w.activation(size, dtype, scale, zero)
            )
            out = w.tensor(SHAPE, dtype, 0.1, 7 + off)
            w.operator(name, [x, y] if (j + k) % 2 else [y, x], [out], options, fusedActivationFunction=(0, 1)[j % 2])
    path = folder / "n.tflite"
    path.write_bytes(w.finish())
    return path


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m4", "cortex-m55"])
def test_operands_by_channel_and_by_pixel(core: str, dtype: str, tmp_path: Path, emulator: None) -> None:
    pytest.importorskip("ai_edge_litert")
    path = network(tmp_path, dtype)
    kernels = prepare(load(path), kernel_target(core, "obj" if core == "cortex-m55" else "c")).kernels
    assert sum(k is not None and k.rule.endswith(".broadcast") for k in kernels) == len(WAYS) * len(OPERATORS)
    tvm_cascade.compile(path, target=core, output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=path).match


def test_a_gate_takes_what_a_product_takes(tmp_path: Path) -> None:
    """Squeeze and excitation multiplies a map by a number for each channel."""
    taken = []
    for size in (SHAPE, (1, 1, 1, 8)):
        w = ModelWriter()
        x, y = w.activation(SHAPE, "int8", 0.05, 4), w.activation(size, "int8", 0.1, -9)
        w.operator("MUL", [x, y], [w.tensor(SHAPE, "int8", 0.2, 7)], "MulOptions")
        path = tmp_path / f"{len(taken)}.tflite"
        path.write_bytes(w.finish())
        taken.append(tvm_cascade.plan(path, target="cortex-m4", granularity="row").to_dict()["cycles"])
    assert taken[1] < 1.35 * taken[0]
