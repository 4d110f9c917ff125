"""A DEQUANTIZE and a QUANTIZE of a file, one behind the other, round as the reference's two operators do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.frontend import load
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled, Reference
from tvm_cascade.testing.tflite import ModelWriter

SCALES = ((0.031, 0.057), (0.057, 0.031), (0.211, 0.018), (0.0173, 0.2509))


@pytest.mark.parametrize(("dtype", "zeros"), [("int8", (-7, 20)), ("uint8", (7, 99)), ("int16", (0, 0))])
def test_every_value_of_a_float_round_trip(tmp_path: Path, dtype: str, zeros: tuple[int, int]) -> None:
    info = np.iinfo(dtype)
    values = np.arange(info.min, info.max + 1, 1 if dtype != "int16" else 97).astype(dtype)
    for k, (one, other) in enumerate(SCALES):
        writer = ModelWriter()
        x = writer.activation(values.shape, dtype, one, zeros[0])
        real, out = writer.tensor(values.shape, "float32"), writer.tensor(values.shape, dtype, other, zeros[1])
        writer.operator("DEQUANTIZE", [x], [real], "DequantizeOptions", inner=True, version=2)
        writer.operator("QUANTIZE", [real], [out], "QuantizeOptions", version=2)
        path = tmp_path / f"{k}.tflite"
        path.write_bytes(writer.finish())
        made = Compiled(LowerQuantized()(load(path)))(values)[0]
        np.testing.assert_array_equal(made, Reference(path.read_bytes()).run([values])[0])
