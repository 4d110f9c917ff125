"""Convolutions whose taps lie apart, dilated or in groups: whole firmware against LiteRT, in rings and layer by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.pipeline import prepare

pytestmark = pytest.mark.usefixtures("quick_host")


class Chain:
    """int8 convolutions one after the other."""

    def __init__(self, folder: Path, shape: tuple[int, int, int]) -> None:
        pytest.importorskip("ai_edge_litert")
        from tvm_cascade.testing.tflite import ModelWriter

        self.path, self.w, self.shape = folder / "m.tflite", ModelWriter(), shape
        self.rng = np.random.default_rng(6)
        self.x = self.w.activation((1, *shape), "int8", 0.02, 3)

    def conv(self, outputs: int, kernel: int, dilation: int = 1, groups: int = 1, depthwise: bool = False) -> Chain:
        """One more, of stride 1 and SAME."""
        height, width, channels = self.shape
        filters = (1, kernel, kernel, outputs) if depthwise else (outputs, kernel, kernel, channels // groups)
        data = self.rng.integers(-127, 128, filters).astype("int8")
        scales = np.full(outputs, 0.02 / np.sqrt(data[0].size), "float32")
        weights = self.w.tensor(filters, "int8", scales, axis=3 if depthwise else 0, data=data)
        bias = self.rng.integers(-500, 500, outputs).astype("int32")
        bias = self.w.tensor((outputs,), "int32", scales * np.float32(0.02), data=bias)
        out = self.w.tensor((1, height, width, outputs), "int8", 0.02, 3)
        kind = "DepthwiseConv2D" if depthwise else "Conv2D"
        steps = dict(strideH=1, strideW=1, dilationHFactor=dilation, dilationWFactor=dilation)
        if depthwise:
            steps["depthMultiplier"] = 1
        name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        self.w.operator(name, [self.x, weights, bias], [out], f"{kind}Options", padding=0, version=3, **steps)
        self.x, self.shape = out, (height, width, outputs)
        return self

    def max_pool(self, kernel: int) -> Chain:
        out = self.w.tensor((1, *self.shape), "int8", 0.02, 3)
        size = dict(filterHeight=kernel, filterWidth=kernel, strideH=1, strideW=1)
        self.w.operator("MAX_POOL_2D", [self.x], [out], "Pool2DOptions", padding=0, **size)
        self.x = out
        return self

    def finish(self) -> Path:
        self.w.outputs = [self.x]
        self.path.write_bytes(self.w.finish())
        return self.path


def network(folder: Path) -> Path:
    made = Chain(folder, (12, 10, 8)).conv(16, 3, dilation=2).conv(16, 3, groups=2)
    made = made.conv(16, 3, dilation=2, depthwise=True).conv(24, 1, groups=4).conv(16, 3, dilation=2, groups=2)
    return made.finish()


@pytest.mark.emulator
@pytest.mark.parametrize(
    "target, backend, layerwise, limit",
    [
        ("cortex-m3", "c", False, 1_190_000),
        ("cortex-m4", "c", True, 790_000),
        ("cortex-m4", "obj", False, 800_000),
        ("cortex-m55", "obj", False, 282_000),
    ],
)
def test_firmware_equals_litert(
    target: str, backend: str, layerwise: bool, limit: int, emulator: None, tmp_path: Path
) -> None:
    model = network(tmp_path)
    rules = [k.rule for k in prepare(load(str(model)), kernel_target(target, backend)).kernels if k is not None]
    assert len(rules) == 5 and all(r.startswith("cortex_m") for r in rules), rules
    made = api.compile(
        str(model), target=target, emit=backend, output=tmp_path / "p", layerwise=layerwise, granularity="row"
    )
    report = api.run(tmp_path / "p", board=made.board, check=str(model)).to_dict()
    assert report["match"] is True
    assert isinstance(report["instructions"], int) and report["instructions"] <= limit, report["instructions"]


@pytest.mark.emulator
def test_windows_taller_than_twice_their_input(emulator: None, tmp_path: Path) -> None:
    """Padding of more rows than there are: the end of a ring would have to be minded twice."""
    model = Chain(tmp_path, (1, 6, 8)).conv(8, 5).max_pool(5).conv(8, 3, dilation=4).finish()
    made = api.compile(str(model), target="cortex-m4", emit="c", output=tmp_path / "p", layerwise=True)
    assert api.run(tmp_path / "p", board=made.board, check=str(model)).to_dict()["match"] is True
