"""Outputs that no input has a part in: constants of the file, copied whole in one step."""

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


@pytest.mark.parametrize("shape", [(7,), (2, 5), (1, 3, 2), (1, 4, 4, 3)])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_every_element_is_written(shape: tuple[int, ...], dtype: str) -> None:
    data = np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)
    builder: Any = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.abs(x))
            made = builder.emit_output(relax.Tuple([y, relax.const(data, dtype)]))
        builder.emit_func_output(made)
    prepared = pipeline.prepare(builder.finalize(), KernelTarget())
    feed = np.array([[1, -2, 3, -4]], "float32")
    for options in (rows_alone(), rows_alone(layerwise=True)):
        run = run_plan(prepared, plan_graph(prepared.graph, options), [feed])
        np.testing.assert_array_equal(run.outputs[1], data)
        np.testing.assert_array_equal(run.outputs[0], np.abs(feed))
