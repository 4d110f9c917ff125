"""Gathers by indices that the network is given: no index makes the emitted code read beyond the tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax as _relax

from tvm_cascade import pipeline
from tvm_cascade.cascading import plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import rows_alone

relax: Any = _relax


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_indices_are_held_within_the_tensor(axis: int, dtype: str) -> None:
    table = np.arange(1, 41).reshape(10, 4).astype(dtype)
    places = relax.Var("places", relax.TensorType((2, 3), "int32"))
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [places]):
        with builder.dataflow():
            made = builder.emit_output(relax.op.take(relax.const(table, dtype), places, axis=axis, mode="fast"))
        builder.emit_func_output(made)
    prepared = pipeline.prepare(builder.finalize(), KernelTarget())
    last = table.shape[axis] - 1
    given = np.array([[0, last, -1], [last + 1, 2**31 - 1, -(2**31)]], "int32")
    meant = np.array([[0, last, last], [last, last, 0]])
    run = run_plan(prepared, plan_graph(prepared.graph, rows_alone()), [given])
    np.testing.assert_array_equal(run.outputs[0], table.take(meant, axis))
