"""Kernels whose operators lose NaN in their reference bear it as an attribute."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tvm_cascade import pipeline
from tvm_cascade.cores import KernelTarget
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.kernels.spec import ignores_nan
from tvm_cascade.testing.tflite import ModelWriter


def test_kernels_of_hybrid_factors_need_no_care(tmp_path: Path) -> None:
    """TFLite loses NaN in rows that hybrid layers store as int8."""
    w = ModelWriter()
    weights = w.tensor((2, 4), "int8", 0.02, data=np.ones((2, 4), "int8"))
    y = w.tensor((3, 2), "float32")
    w.operator("FULLY_CONNECTED", [w.activation((3, 4), "float32"), weights, -1], [y], "FullyConnectedOptions")
    w.outputs.append(y)
    path = tmp_path / "hybrid.tflite"
    path.write_bytes(w.finish())
    planned = pipeline.plan(pipeline.load(path), PlanRequest(), KernelSource(KernelTarget()))
    prepared = planned.candidate.prepared
    built = zip(prepared.graph.ops, prepared.kernels_of(planned.plan), strict=True)
    careless = [op.kind for op, kernel in built if kernel and any(ignores_nan(v.func) for v in kernel.variants)]
    assert careless == ["hybrid_factors"]
