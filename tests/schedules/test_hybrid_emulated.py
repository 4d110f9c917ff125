"""Layers of floats by int8 weights as firmware, against LiteRT: products of every number that a vector takes, and random
convolutions.
"""

from __future__ import annotations

import os
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


def convolution(w: ModelWriter, rng: np.random.Generator, depthwise: bool) -> None:
    """Write a convolution with an input and an output of its own."""

    def choice(*values: int) -> int:
        return int(rng.choice(values))

    depth, strides, size = choice(1, 2, 3, 4, 8, 12, 16), choice(1, 1, 2, 3), (choice(1, 2, 3, 4), choice(1, 2, 3, 4))
    dilations = (1, 1) if strides > 1 else (choice(1, 1, 2), choice(1, 1, 2))
    reach = [(n - 1) * d + 1 for n, d in zip(size, dilations, strict=True)]
    same, times = choice(0, 1), choice(1, 1, 2)
    extents = [max(int(rng.integers(1, 11)), r) for r in reach]
    made = [-(-n // strides) if same else (n - r) // strides + 1 for n, r in zip(extents, reach, strict=True)]
    outputs = depth * times if depthwise else choice(1, 2, 4, 7, 8, 12)
    shape = (1, *size, outputs) if depthwise else (outputs, *size, depth)
    data = rng.integers(-127, 128, shape).astype("int8")
    scales = (rng.random(outputs) * 0.05 + 0.01).astype("float32") if depthwise or choice(0, 1) else 0.02
    given = {"axis": 3} if depthwise else {}
    x = w.activation((1, *extents, depth), "float32")
    weights = w.tensor(shape, "int8", scales, data=data, **given)
    bias, out = w.constant(rng.standard_normal(outputs).astype("float32")), w.tensor((1, *made, outputs), "float32")
    window: dict[str, Any] = {"padding": 1 - same, "strideH": strides, "strideW": strides}
    window |= {"dilationHFactor": dilations[0], "dilationWFactor": dilations[1]}
    window |= {"fusedActivationFunction": choice(0, 1, 3), **({"depthMultiplier": times} if depthwise else {})}
    kind, table = ("DEPTHWISE_CONV_2D", "Depthwise") if depthwise else ("CONV_2D", "")
    w.operator(kind, [x, weights, bias], [out], f"{table}Conv2DOptions", **window)
    w.outputs.append(out)


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("TVM_CASCADE_SWEEP", "1"))))
def test_random_convolutions(target: str, seed: int, emulator: None, tmp_path: Path) -> None:
    """Bit for bit."""
    rng, w = np.random.default_rng(seed), ModelWriter()
    for k in range(8):
        convolution(w, rng, depthwise=k % 2 > 0)
    model = tmp_path / "hybrid.tflite"
    model.write_bytes(w.finish())
    made = api.compile(model, target=target, output=tmp_path / "p")
    report: Any = api.run(tmp_path / "p", board=made.board, check=model).to_dict()
    assert report["match"] is True
    assert report["max_abs_diff"] == 0


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
def test_a_convolution_takes_little_more_than_an_int8_one(emulator: None, tmp_path: Path) -> None:
    """Instructions a product, everything counted; the float layer takes three and more."""
    w = ModelWriter()
    rng, x, out = (
        np.random.default_rng(0),
        w.activation((1, 12, 12, 16), "float32"),
        w.tensor((1, 12, 12, 16), "float32"),
    )
    data = rng.integers(-127, 128, (16, 3, 3, 16)).astype("int8")
    weights = w.tensor(data.shape, "int8", (rng.random(16) * 0.05 + 0.01).astype("float32"), data=data)
    window = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    w.operator("CONV_2D", [x, weights, w.constant(np.zeros(16, "float32"))], [out], "Conv2DOptions", **window)
    w.outputs.append(out)
    (tmp_path / "m.tflite").write_bytes(w.finish())
    api.compile(tmp_path / "m.tflite", target="cortex-m4", output=tmp_path / "p")
    report: Any = api.run(tmp_path / "p", check=tmp_path / "m.tflite").to_dict()
    assert (report["match"], report["max_abs_diff"]) == (True, 0)
    assert report["instructions"] < 2 * report["executed_macs"]
