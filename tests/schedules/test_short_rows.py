"""Element-wise kernels of rows, or steps by pixels, shorter than the four elements of a pass."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx

from tvm_cascade.schedules.rules.elementwise import table_kernel
from tvm_cascade.schedules.tir import collect


@pytest.mark.parametrize("channels", range(1, 8))
def test_every_element_is_written(channels: int) -> None:
    x = te.placeholder((1, 1, 1, channels), "int8", name="x")
    func = te.create_prim_func([x, te.compute(x.shape, lambda *i: x(*i), name="y")], index_dtype_override="int32")
    kernel = table_kernel(func, np.arange(256).astype(np.int8))
    stores = collect(kernel.func.body, tirx.BufferStore)
    assert sorted(int(s.indices[0]) for s in stores) == list(range(channels))
