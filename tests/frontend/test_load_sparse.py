"""Constants of `.tflite` files that are stored without their zeros, against LiteRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.testing.litert_check import equal_outputs, host_equals
from tvm_cascade.testing.tflite import ModelWriter

CONV: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}


def mostly_zero(shape: tuple[int, ...], dtype: str, block: int = 1) -> np.ndarray:
    rng = np.random.default_rng(0)
    kept = np.repeat(rng.random((*shape[:-1], shape[-1] // block)) < 0.3, block, axis=-1)
    values = rng.integers(-100, 100, shape) if dtype == "int8" else rng.standard_normal(shape)
    return (values * kept).astype(dtype)


def densified(w: ModelWriter, data: np.ndarray, block: int = 0, scale: float | None = None) -> int:
    whole = w.tensor(data.shape, str(data.dtype), scale)
    w.operator("DENSIFY", [w.sparse(data, block, scale)], [whole], "DensifyOptions", inner=True)
    return whole


@pytest.mark.parametrize("block", [0, 4])
def test_weights_of_a_dense_layer(tmp_path: Path, block: int) -> None:
    w = ModelWriter()
    x = w.activation((3, 16), "float32")
    weights = densified(w, mostly_zero((8, 16), "float32", block or 1), block)
    w.operator("FULLY_CONNECTED", [x, weights, -1], [w.tensor((3, 8), "float32")], "FullyConnectedOptions")
    equal_outputs(tmp_path, w)
    host_equals(tmp_path)


def test_halves_that_a_convolution_reads_as_floats(tmp_path: Path) -> None:
    w = ModelWriter()
    x, bias = w.activation((1, 5, 6, 4), "float32"), w.constant(np.ones(3, "float32"))
    halves = densified(w, mostly_zero((3, 3, 3, 4), "float16"))
    weights = w.tensor((3, 3, 3, 4), "float32")
    w.operator("DEQUANTIZE", [halves], [weights], "DequantizeOptions", inner=True)
    w.operator("CONV_2D", [x, weights, bias], [w.tensor((1, 5, 6, 3), "float32")], "Conv2DOptions", **CONV)
    equal_outputs(tmp_path, w)
    host_equals(tmp_path)


def test_quantized_weights(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((3, 16), "int8", 0.1, 3)
    weights = densified(w, mostly_zero((8, 16), "int8", 4), 4, 0.02)
    w.operator("FULLY_CONNECTED", [x, weights, -1], [w.tensor((3, 8), "int8", 0.5)], "FullyConnectedOptions")
    equal_outputs(tmp_path, w)


def test_an_output(tmp_path: Path) -> None:
    w, data = ModelWriter(), mostly_zero((2, 3, 8), "float32")
    x = w.activation((1, 2), "float32")
    w.operator("ABS", [x], [w.tensor((1, 2), "float32")])
    w.outputs.append(densified(w, data))
    made = equal_outputs(tmp_path, w)
    np.testing.assert_array_equal(made[1], data)


def test_a_sparsity_that_contradicts_the_shape_is_refused(tmp_path: Path) -> None:
    for change in ("order", "indices", "segments", "block"):
        w = ModelWriter()
        x = w.activation((3, 16), "float32")
        weights = densified(w, mostly_zero((8, 16), "float32", 4), 4)
        w.operator("FULLY_CONNECTED", [x, weights, -1], [w.tensor((3, 8), "float32")], "FullyConnectedOptions")
        sparsity = next(t.sparsity for t in w._tensors if t.sparsity is not None)
        if change == "order":
            sparsity.traversalOrder = np.array([0, 0, 2], "int32")
        elif change == "indices":
            sparsity.dimMetadata[1].arrayIndices.values[0] = 99
        elif change == "segments":
            sparsity.dimMetadata[1].arraySegments.values[-1] += 7
        else:
            sparsity.blockMap = np.array([5], "int32")
        (tmp_path / "m.tflite").write_bytes(w.finish())
        with pytest.raises(LoadError, match=r"DENSIFY.*its sparsity contradicts its shape or its values"):
            load(tmp_path / "m.tflite")
