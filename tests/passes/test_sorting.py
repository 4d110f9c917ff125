"""`sort`, `argsort` and `topk` of Relax as kernels, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
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
X = np.random.default_rng(2).integers(-9, 9, (3, 12, 2)).astype("float32")


def values(operator: Callable[[Any], Any]) -> tuple[np.ndarray, ...]:
    """What the plan of one operator computes of `X`."""
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit_output(operator(x))
        builder.emit_func_output(made)
    prepared = pipeline.prepare(builder.finalize(), KernelTarget())
    return run_plan(prepared, plan_graph(prepared.graph, rows_alone()), [X]).outputs


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sort_and_argsort(axis: int, descending: bool) -> None:
    order = np.argsort(-X if descending else X, axis, kind="stable")
    (sorted_,) = values(lambda x: relax.op.sort(x, axis, descending))
    (places,) = values(lambda x: relax.op.argsort(x, axis, descending, "int32"))
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(sorted_, np.take_along_axis(X, order, axis))


@pytest.mark.parametrize(("kind", "k"), [("values", 3), ("indices", 3), ("both", 5), ("both", 0)])
def test_top_k(kind: str, k: int) -> None:
    places = np.argsort(X, 1, kind="stable")[:, : k or None]
    found = values(lambda x: relax.op.topk(x, k, 1, kind, False, "int64"))
    wanted = {"values": np.take_along_axis(X, places, 1), "indices": places}
    for ours, theirs in zip(found, [wanted[k] for k in wanted if kind in (k, "both")], strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
