"""Dense layers that no multiplier of 31 bits serves: their products are summed as ever, only what comes after is wide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade import api
from tvm_cascade.passes.integer.dense import proved_multipliers
from tvm_cascade.passes.integer.task import Output
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

DEPTH, UNITS = 784, 24
STEP = float(np.float32(1 / 256))  # of the input


def layer(path: Path, dtype: str, zero_point: int) -> Path:
    """A layer whose output scale is the first of a random sequence that asks for a wide multiplier."""
    rng, w = np.random.default_rng(zero_point), ModelWriter()
    low = 0 if dtype == "uint8" else -128
    data = rng.integers(low + 1, low + 256, (UNITS, DEPTH)).astype(dtype)
    bias, scale = rng.integers(-2000, 2000, UNITS).astype("int32"), float(np.float32(0.001))
    bound = np.abs(data.astype("int64") - zero_point).sum(1) * 255 + np.abs(bias)
    out = next(s for s in (float(np.float32(v)) for v in rng.uniform(0.1, 0.3, 300)) if is_wide(s, scale, bound))
    x = w.activation((1, DEPTH), dtype, STEP, low)
    weights = w.constant(data, scale, zero_point)
    added = w.tensor((UNITS,), "int32", STEP * scale, data=bias)
    w.operator(
        "FULLY_CONNECTED",
        [x, weights, added],
        [w.tensor((1, UNITS), dtype, out, low + 118)],
        "FullyConnectedOptions",
        version=4,
    )
    path.write_bytes(w.finish())
    return path


def is_wide(out: float, scale: float, bound: np.ndarray) -> bool:
    real = np.float64(STEP) * np.full(UNITS, scale) / np.float64(out)
    multipliers, _ = proved_multipliers(real, bound, Output.unbounded((1, UNITS), "int8", out, -10))
    return multipliers.dtype == np.int64


@pytest.mark.emulator
@pytest.mark.parametrize(
    "target,board,backend,dtype,zero_point,most",
    [
        ("cortex-m3", "mps2-an385", "c", "int8", 0, 3.3),
        ("cortex-m4", "mps2-an386", "c", "int8", 0, 1.8),
        ("cortex-m55", "mps3-an547", "obj", "int8", 0, 0.35),
        ("cortex-m55", "mps3-an547", "obj", "uint8", 151, 0.35),
    ],
)
def test_wide_multipliers_are_exact_and_fast(
    target: str, board: str, backend: str, dtype: str, zero_point: int, most: float, emulator: None, tmp_path: Path
) -> None:
    model = str(layer(tmp_path / "wide.tflite", dtype, zero_point))
    api.compile(model, target=target, board=board, emit=backend, output=tmp_path / "p")
    report: dict[str, Any] = api.run(tmp_path / "p", board=board, check=model).to_dict()
    assert report["match"] is True
    assert report["instructions"] <= most * DEPTH * UNITS, report["instructions"] / DEPTH / UNITS
