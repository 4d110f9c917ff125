"""Constants in emitted C are the very floats of the program."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_cascade.emit.codegen import print_c
from tvm_cascade.graph import IDENTITY
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.row_kernel import row_kernel

VALUES = {
    "float32": [1 / 70, -1 / 70, 0.5, 1e-30 / 3, 1e20 / 3, 16777215.0, -1.0],
    "float64": [1 / 70, -1e-200 / 3, 0.25],
}


@pytest.mark.parametrize("dtype", VALUES)
def test_constants_keep_their_digits(dtype: str) -> None:
    values = np.array(VALUES[dtype], dtype)
    x = te.placeholder((1, 4, 4, 1), dtype, name="x")

    def value(*i: tirx.Var) -> Any:
        total: Any = x(*i)
        for v in values:
            total = tirx.min(total * total, tirx.const(v, dtype))
        return total

    y: Any = te.compute(x.shape, value, name="y")
    func = te.create_prim_func([x, y], index_dtype_override="int32")
    kernel = row_kernel(func, (), RowAccess((IDENTITY,), (1,), (1,)), "kernel")
    text = print_c(tvm.IRModule({"kernel": kernel.func.with_attr("global_symbol", "kernel")}))
    found = np.array(re.findall(r"-?[0-9.]+e[+-][0-9]+", text), "float64").astype(dtype)
    assert set(values.tolist()) <= set(found.tolist())
