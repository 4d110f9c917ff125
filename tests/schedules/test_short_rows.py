"""Element-wise kernels of rows, or steps by pixels, shorter than the four elements of a pass."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx

from tvm_cascade.operators.record import TensorType
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.elementwise import table_kernel
from tvm_cascade.schedules.tir import collect


@pytest.mark.parametrize("channels", range(1, 8))
def test_every_element_is_written(channels: int) -> None:
    row = TensorType((1, 1, 1, channels), "int8")
    kernel = table_kernel(OperatorSpec("lut", (row,), row), np.arange(256).astype(np.int8))
    stores = collect(kernel.func.body, tirx.BufferStore)
    assert sorted(int(s.indices[0]) for s in stores) == list(range(channels))
