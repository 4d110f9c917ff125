"""uint8 networks as firmware: inside they are int8, and take the kernels of int8, whatever the zero points of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade import api
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

OUT = 0.05  # scale of every activation


def network(path: Path, zero_point: int, depth: int = 3) -> Path:
    """Convolutions with and without depth, a pool that halves odd sums, a dense layer; weights of all 256 values."""
    rng, w = np.random.default_rng(zero_point), ModelWriter()

    def layer(x: int, shape: tuple[int, ...], filters: tuple[int, ...], kind: str, options: str, **values: Any) -> int:
        data = rng.integers(0, 256, filters).astype("uint8")
        data.reshape(-1)[:2] = 0, 255  # less the zero point they need nine bits, unless that is 128
        units = filters[3] if kind == "DEPTHWISE_CONV_2D" else filters[0]
        weights = w.constant(data, 0.015 / (data.size / units) ** 0.5, zero_point)
        bias = w.tensor((units,), "int32", 0.001, data=rng.integers(-2000, 2000, units).astype("int32"))
        out = w.tensor(shape, "uint8", OUT, 120)
        w.operator(kind, [x, weights, bias], [out], options, version=3, inner=True, **values)
        return out

    same: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    conv: dict[str, Any] = {"kind": "CONV_2D", "options": "Conv2DOptions"} | same
    x = w.activation((1, 12, 12, depth), "uint8", OUT, 131)
    x = layer(x, (1, 12, 12, 16), (16, 3, 3, depth), **conv)
    depthwise: dict[str, Any] = {
        "kind": "DEPTHWISE_CONV_2D",
        "options": "DepthwiseConv2DOptions",
        "depthMultiplier": 1,
    } | same
    x = layer(x, (1, 12, 12, 16), (1, 3, 3, 16), **depthwise)
    x = layer(x, (1, 12, 12, 24), (24, 1, 1, 16), **conv)
    x = layer(x, (1, 12, 12, 16), (16, 3, 3, 24), **conv)
    pooled = w.tensor((1, 3, 3, 16), "uint8", OUT, 120)
    window: dict[str, Any] = {"padding": 1, "strideH": 4, "strideW": 4, "filterHeight": 4, "filterWidth": 4}
    w.operator("AVERAGE_POOL_2D", [x], [pooled], "Pool2DOptions", inner=True, **window)
    flat = w.tensor((1, 144), "uint8", OUT, 120)
    w.operator("RESHAPE", [pooled, w.constant(np.array([1, 144], "int32"))], [flat], inner=True)
    out = layer(flat, (1, 8), (8, 144), "FULLY_CONNECTED", "FullyConnectedOptions")
    w.outputs.append(out)
    path.write_bytes(w.finish())
    return path


@pytest.mark.emulator
@pytest.mark.parametrize(
    "target,board,backend,zero_point,depth,most",
    [
        ("cortex-m4", "mps2-an386", "c", 151, 3, 1.7),
        ("cortex-m55", "mps3-an547", "obj", 151, 3, 0.5),
        ("cortex-m55", "mps3-an547", "obj", 128, 16, 0.4),
    ],
)
def test_uint8_is_exact_and_fast(
    target: str, board: str, backend: str, zero_point: int, depth: int, most: float, emulator: None, tmp_path: Path
) -> None:
    model = str(network(tmp_path / "unsigned.tflite", zero_point, depth))
    api.compile(model, target=target, board=board, emit=backend, granularity="row", output=tmp_path / "p")
    report: dict[str, Any] = api.run(tmp_path / "p", board=board, check=model).to_dict()
    assert report["match"] is True
    assert report["instructions"] <= most * report["executed_macs"], report["instructions"] / report["executed_macs"]
