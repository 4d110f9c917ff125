"""Sums, products, pools and means by vectors as firmware of Cortex-M55, where rows and channels are no whole vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade import api
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
def test_equal_to_the_reference(emulator: None, tmp_path: Path) -> None:
    writer = ModelWriter()
    for shape in SHAPES:
        for dtype in SCALES:
            for alike in (True, False):
                elementwise(writer, dtype, shape, alike)
        pools(writer, shape)
    model = tmp_path / "all.tflite"
    model.write_bytes(writer.finish())
    made = api.compile(model, target="cortex-m55", output=tmp_path / "p")
    report: Any = api.run(tmp_path / "p", board=made.board, check=model).to_dict()
    assert report["match"] is True
    elements = sum(int(np.prod(s)) for s in SHAPES) * 16
    assert report["instructions"] < 5 * elements  # 18 times by the kernels of any core
    assert made.estimated_instructions == pytest.approx(report["instructions"], rel=0.25)
