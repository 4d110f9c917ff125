"""Products of floats by int8 weights as firmware of Cortex-M55: of every number of products that a vector takes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade import api
from tvm_cascade.testing.tflite import ModelWriter


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
def test_products_are_exact_and_fast(emulator: None, tmp_path: Path) -> None:
    """Rows of 3 to 150, one scale and one a unit, inputs stored around zero or around a zero point."""
    rng, w = np.random.default_rng(0), ModelWriter()
    x = w.activation((3, 150), "float32")
    widths = (150, 33, 16, 13, 7, 5, 3, 4)
    for k, (depth, units) in enumerate(pairwise(widths)):
        data = rng.integers(-127, 128, (units, depth)).astype("int8")
        scales = (rng.random(units) * 0.05 + 0.01).astype("float32") if k % 2 else 0.02
        weights = w.tensor(data.shape, "int8", scales, data=data)
        bias = w.constant(rng.standard_normal(units).astype("float32")) if k else -1
        out = w.tensor((3, units), "float32")
        how: dict[str, Any] = {"asymmetricQuantizeInputs": k % 3 == 1}
        w.operator("FULLY_CONNECTED", [x, weights, bias], [out], "FullyConnectedOptions", inner=True, **how)
        x = out
    w.outputs.append(x)
    model = tmp_path / "hybrid.tflite"
    model.write_bytes(w.finish())
    made = api.compile(model, target="cortex-m55", output=tmp_path / "p")
    report: Any = api.run(tmp_path / "p", board=made.board, check=model).to_dict()
    assert report["match"] is True
    assert report["instructions"] < 1.1 * report["executed_macs"]
