"""Tables of channels: a multiplier, and bias and shift in one word; the multiplier once where all channels share it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_cascade import pipeline
from tvm_cascade.cores import kernel_target
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.tflite import ModelWriter

_WINDOW = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}


def _layer(path: Path, kind: str, channels: int, scales: np.ndarray, most: int = 999) -> None:
    """Write a layer of 24 inputs, padded where it is a convolution, by weights of these scales."""
    random, writer = np.random.default_rng(0), ModelWriter()
    image = (1, 5, 5) if kind == "CONV_2D" else (1,)
    x = writer.activation((*image, 24), "int8", 0.05, -3)
    shape = (channels, 3, 3, 24) if kind == "CONV_2D" else (channels, 24)
    weights = writer.tensor(shape, "int8", scales, data=random.integers(-127, 128, shape).astype("int8"))
    bias = writer.tensor(
        (channels,), "int32", 0.05 * scales, data=random.integers(-most, most, channels).astype("int32")
    )
    y = writer.tensor((*image, channels), "int8", 1.0, 4)
    options, how = ("Conv2DOptions", _WINDOW) if kind == "CONV_2D" else ("FullyConnectedOptions", {})
    writer.operator(kind, [x, weights, bias], [y], options, **how)  # pyright: ignore[reportArgumentType]
    path.write_bytes(writer.finish())


def _table(path: Path, target: str) -> int:
    """Words of the table of the layer's kernel, after its program is found to equal the network."""
    core = kernel_target(target, "c")
    planned = pipeline.plan(pipeline.load(path), PlanRequest(), KernelSource(core))
    pipeline.check(planned)
    (kernel,) = [k for k in planned.prepared.kernels_of(planned.plan) if k is not None]
    return max(c.size for variant in kernel.variants for c in variant.constants if c.dtype == np.int32)


@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m0plus", "riscv32"))
@pytest.mark.parametrize("kind", ("CONV_2D", "FULLY_CONNECTED"))
def test_a_table_has_one_entry_of_requantization(tmp_path: Path, target: str, kind: str) -> None:
    for channels in (17, 32, 15):
        _layer(tmp_path / "one.tflite", kind, channels, np.full(channels, 0.01, "float32"))
        _layer(tmp_path / "many.tflite", kind, channels, np.linspace(0.009, 0.01, channels).astype("float32"))
        one, many = (_table(tmp_path / f"{name}.tflite", target) for name in ("one", "many"))
        biases = 9 if kind == "CONV_2D" else 1  # by the edges that cut a window
        assert many == 1 + channels * (1 + biases)
        assert one == (3 + channels * biases if channels >= 16 else many)


@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m0plus", "riscv32"))
def test_biases_of_more_than_24_bits_stand_alone(tmp_path: Path, target: str) -> None:
    scales = np.linspace(0.009, 0.01, 17).astype("float32")
    _layer(tmp_path / "large.tflite", "FULLY_CONNECTED", 17, scales, 1 << 25)
    assert _table(tmp_path / "large.tflite", target) == 17 * 4


@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m0plus", "riscv32"))
@pytest.mark.parametrize(("depth", "taps", "strides"), [(1, (10, 4), (2, 2)), (2, (5, 3), (1, 2)), (4, (3, 3), (1, 1))])
def test_padding_of_shallow_layers_is_counted_and_has_no_biases_by_row(
    tmp_path: Path, target: str, depth: int, taps: tuple[int, int], strides: tuple[int, int]
) -> None:
    random, writer, channels = np.random.default_rng(depth), ModelWriter(), 96
    x = writer.activation((1, 17, 11, depth), "int8", 0.05, 77)
    scales = np.linspace(0.009, 0.01, channels).astype("float32")
    shape = (channels, *taps, depth)
    weights = writer.tensor(shape, "int8", scales, data=random.integers(-127, 128, shape).astype("int8"))
    bias = writer.tensor((channels,), "int32", 0.05 * scales, data=random.integers(-999, 999, channels).astype("int32"))
    rows, columns = (-(-extent // step) for extent, step in zip((17, 11), strides, strict=True))
    y = writer.tensor((1, rows, columns, channels), "int8", 1.0, 4)
    window = _WINDOW | {"strideH": strides[0], "strideW": strides[1]}
    writer.operator("CONV_2D", [x, weights, bias], [y], "Conv2DOptions", **window)
    (tmp_path / "shallow.tflite").write_bytes(writer.finish())
    assert _table(tmp_path / "shallow.tflite", target) == 1 + channels * (1 + 3)
