"""Operators of int16 by vectors as firmware of Cortex-M55, where rows and channels are no whole vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade import api
from tvm_cascade.testing.reference import Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

SHAPES = ((1, 5, 7, 5), (1, 6, 4, 12), (1, 4, 3, 20))  # rows of 35, 48 and 60 elements
SCALES = {"int8": (0.05, 0.021, 0.07), "int16": (0.003, 0.0011, 0.0042)}  # of both operands and the result


def elementwise(writer: ModelWriter, dtype: str, shape: tuple[int, ...], alike: bool) -> None:
    """Sum, difference and product of two tensors, of equal scales where they are `alike`."""
    a, b, c = SCALES[dtype]
    x, y = writer.activation(shape, dtype, a), writer.activation(shape, dtype, a if alike else b)
    for name, options in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions")):
        out = writer.tensor(shape, dtype, 2 * a if alike else c)
        writer.operator(name, [x, y], [out], options)


def pools(writer: ModelWriter, shape: tuple[int, ...]) -> None:
    """Max pools, overlapping and padded or not; means."""
    x = writer.activation(shape, "int16", 0.003)
    for kernel, stride, same in ((3, 1, True), (2, 2, False), (4, 2, True)):
        rows, columns = (-(-d // stride) if same else (d - kernel) // stride + 1 for d in shape[1:3])
        out = writer.tensor((1, rows, columns, shape[3]), "int16", 0.003)
        how: dict[str, Any] = {"strideH": stride, "strideW": stride, "filterHeight": kernel, "filterWidth": kernel}
        how["fusedActivationFunction"] = 2 if kernel == 4 else 0  # to -1 and 1
        writer.operator("MAX_POOL_2D", [x], [out], "Pool2DOptions", padding=0 if same else 1, **how)
    out = writer.tensor((1, shape[3]), "int16", 0.002)
    axes = writer.constant(np.array([1, 2], "int32"))
    writer.operator("MEAN", [x, axes], [out], "ReducerOptions", keepDims=False)


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_to_the_reference(emulator: None, tmp_path: Path, shape: tuple[int, ...]) -> None:
    writer = ModelWriter()
    for dtype in SCALES:
        for alike in (True, False):
            elementwise(writer, dtype, shape, alike)
    pools(writer, shape)
    model = tmp_path / "all.tflite"
    model.write_bytes(writer.finish())
    made = api.compile(model, target="cortex-m55", output=tmp_path / "p")
    report: Any = api.run(tmp_path / "p", board=made.board, check=model).to_dict()
    assert report["match"] is True
    elements = int(np.prod(shape)) * 16
    assert report["instructions"] < 5 * elements  # 18 times by the kernels of any core
    assert made.estimated_instructions == pytest.approx(report["instructions"], rel=0.25)


def conv(
    writer: ModelWriter, shape: tuple[int, ...], channels: int, kernel: tuple[int, int], least: int = -127, **given: Any
) -> None:
    """A convolution of weights from `least` to 127; of stride 1 and "same", unless `given` says otherwise."""
    how = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, **given}
    reach = [(k - 1) * how["dilationHFactor"] for k in kernel]
    places = [d if how["padding"] == 0 else d - r for d, r in zip(shape[1:], reach, strict=False)]
    rng, scales = np.random.default_rng(channels), np.linspace(0.005, 0.015, channels, dtype="float32")
    values = rng.integers(least, 128, (channels, *kernel, shape[3] // (2 if "grouped" in given else 1))).astype("int8")
    weights = writer.tensor(values.shape, "int8", scales, axis=0, data=values)
    bias = rng.integers(-99999, 99999, channels).astype("int64")
    parts = [weights, writer.tensor((channels,), "int64", scales * np.float32(0.002), data=bias)]
    out = writer.tensor((1, *(-(-p // how["strideH"]) for p in places), channels), "int16", 0.002 if least < 0 else 3.0)
    how.pop("grouped", None)
    x = writer.activation(shape, "int16", 0.002, name=f"x{len(writer.inputs)}")
    writer.operator("CONV_2D", [x, *parts], [out], "Conv2DOptions", **how)


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
def test_convolutions_are_equal_to_the_reference(emulator: None, tmp_path: Path) -> None:
    """Rows of taps that are whole vectors or not, padded, dilated, in groups, clamped; and sums beyond 32 bits: all inputs of
    the last one are the largest."""
    writer = ModelWriter()
    conv(writer, (1, 7, 9, 16), 20, (3, 3))
    conv(writer, (1, 6, 7, 5), 7, (3, 3), strideH=2, strideW=2)
    conv(writer, (1, 5, 5, 12), 8, (1, 1), padding=1)
    conv(writer, (1, 9, 8, 3), 6, (5, 4), padding=1, fusedActivationFunction=1)
    conv(writer, (1, 9, 9, 6), 5, (3, 3), dilationHFactor=2, dilationWFactor=2)
    conv(writer, (1, 6, 5, 16), 8, (3, 3), grouped=True)
    conv(writer, (1, 5, 6, 64), 5, (3, 3), least=120)
    model = tmp_path / "all.tflite"
    model.write_bytes(writer.finish())
    made = api.compile(model, target="cortex-m55", output=tmp_path / "p")
    arrays = random_inputs(Reference(model.read_bytes()).inputs, 3)
    arrays[-1][:] = 32767
    given = {f"x{k}": array for k, array in enumerate(arrays)}
    ran = api.run(tmp_path / "p", board=made.board, inputs=given, check=model, outputs=tmp_path / "o.npz")
    report: Any = ran.to_dict()
    assert report["match"] is True
    assert made.estimated_instructions == pytest.approx(report["instructions"], rel=0.25)
    with np.load(tmp_path / "o.npz") as outputs:
        largest = max(int(np.abs(v).max()) for k, v in outputs.items() if v.shape[-1] == 5 and v.shape[1] == 5)
    assert 2**31 * 0.002 * 0.005 / 3 < largest < 32767  # beyond what a sum of 32 bits makes of it, and not saturated
