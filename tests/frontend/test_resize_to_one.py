"""Aligned corners of axes of one element: resizes to such axes, and grids sampled over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax as _relax

from tvm_cascade import frontend, pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.testing.host_check import run_plan

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
relax: Any = _relax  # its nodes get their fields at run time


def _ran(mod: Any, x: np.ndarray) -> np.ndarray:
    prepared = pipeline.prepare(mod, KernelTarget())
    plan = plan_graph(prepared.graph, PlanOptions())
    shape = prepared.graph.tensors[prepared.graph.outputs[0]].shape
    return run_plan(prepared, plan, [x]).outputs[0].reshape(shape)


def _check(
    tmp_path: Any, node: Any, shape: tuple[int, ...], out: tuple[int, ...], given: dict[str, np.ndarray]
) -> None:
    """Compare a node of ONNX with ONNX Runtime, which computes it as the file has it."""
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", out))]
    graph = helper.make_graph(
        [node], "g", infos[:1], infos[1:], [numpy_helper.from_array(a, n) for n, a in given.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    want = onnxruntime.InferenceSession(str(path), options).run(None, {"x": x})[0]
    np.testing.assert_allclose(_ran(frontend.load(path), x), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 1), (1, 6)])
def test_resize_of_onnx(tmp_path: Any, mode: str, size: tuple[int, int]) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    sizes = np.array((1, 2, *size), np.int64)
    _check(
        tmp_path,
        helper.make_node("Resize", ["x", "", "", "s"], ["y"], **how),
        (1, 2, 3, 4),
        (1, 2, *size),
        {"s": sizes},
    )


@pytest.mark.parametrize("extent", [3, 4, 49])
def test_resize_of_onnx_along_one_axis(tmp_path: Any, extent: int) -> None:
    node = helper.make_node(
        "Resize", ["x", "", "", "s"], ["y"], mode="linear", coordinate_transformation_mode="align_corners"
    )
    _check(tmp_path, node, (1, 2, extent), (1, 2, 1), {"s": np.array((1, 2, 1), np.int64)})


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 1), (3, 4)])
def test_constant_grid_of_onnx(tmp_path: Any, mode: str, padding: str, size: tuple[int, int]) -> None:
    """Where reflections are between corners of one element, that element is all that is sampled."""
    grid = np.random.default_rng(1).uniform(-1.3, 1.3, (1, 2, 5, 2)).astype(np.float32)
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=1)
    _check(tmp_path, node, (1, 2, *size), (1, 2, 2, 5), {"grid": grid})


@pytest.mark.parametrize("method", ["linear", "cubic", "nearest_neighbor"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 1)])
def test_resize_of_relax(method: str, layout: str, size: tuple[int, int]) -> None:
    """The first element stands for an axis of one; of an axis that keeps its size all elements stay."""
    x = np.random.default_rng(2).standard_normal((1, 2, 3, 4)).astype(np.float32)
    given = x if layout == "NCHW" else x.transpose(0, 2, 3, 1).copy()
    builder: Any = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(given.shape, "float32"))
    with builder.function("main", [var]):
        with builder.dataflow():
            how = {"method": method, "coordinate_transformation_mode": "align_corners", "rounding_method": "round"}
            resized = relax.op.image.resize2d(var, size, layout=layout, **how)
            out = builder.emit_output(builder.emit(resized))
        builder.emit_func_output(out)
    got = _ran(builder.get(), given)
    got = got if layout == "NCHW" else got.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(got, x[:, :, : size[0], : size[1]], rtol=1e-6, atol=1e-6)
