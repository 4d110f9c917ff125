"""Operators that no substitution knows in files of ONNX: the same results by ONNX Runtime; inputs as in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade import api
from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.optimizing.module import optimize_module, require_exportable, save_optimized
from tvm_cascade.runtime import Session
from tvm_cascade.substitution.metaflow import SearchOptions

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
relax: Any = _relax
RNG = np.random.default_rng(2)
SHORT = SearchOptions(max_graphs=10)


def constant(*shape: int) -> Any:
    return relax.const(RNG.standard_normal(shape).astype("float32"), "float32")


def places(data: Any, dtype: str = "int64") -> Any:
    return relax.const(np.array(data, dtype), dtype)


IMAGE, ROWS = (1, 4, 6, 5), (2, 3, 8)
CASES: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "argmax": (ROWS, lambda x: relax.op.astype(relax.op.argmax(x, 1, True), "float32")),
    "broadcast_to": ((1, 8), lambda x: relax.op.broadcast_to(x, (3, 8))),
    "choice": (ROWS, lambda x: relax.op.where(relax.op.greater(x, constant(8)), x, constant(3, 8))),
    "conv1d": (ROWS, lambda x: relax.op.nn.conv1d(x, constant(4, 3, 3), padding=(2, 1), dilation=1)),
    "conv1d_transpose": (ROWS, lambda x: relax.op.nn.conv1d_transpose(x, constant(3, 2, 4), strides=2, output_padding=1)),
    "conv2d_transpose": (IMAGE, lambda x: relax.op.nn.conv2d_transpose(x, constant(4, 3, 2, 2), strides=2, padding=1)),
    "cumsum": (ROWS, lambda x: relax.op.cumsum(x, 1)),
    "erf": (ROWS, relax.op.erf),
    "gather_elements": (ROWS, lambda x: relax.op.gather_elements(x, places(np.ones((2, 3, 4))), 2)),
    "gather_nd": (ROWS, lambda x: relax.op.gather_nd(x, places([[0, 2], [1, 1]]))),
    "gelu": (ROWS, relax.op.nn.gelu),
    "gelu_tanh": (ROWS, relax.op.nn.gelu_tanh),
    "layer_norm": (ROWS, lambda x: relax.op.nn.layer_norm(x, constant(8), constant(8), [-1], 1e-3)),
    "leakyrelu": (ROWS, lambda x: relax.op.nn.leakyrelu(x, 0.1)),
    "log_softmax": (ROWS, lambda x: relax.op.nn.log_softmax(x, -1)),
    "max": (ROWS, lambda x: relax.op.max(x, 1, True)),
    "not_equal": (ROWS, lambda x: relax.op.astype(relax.op.not_equal(relax.op.round(x), constant(8)), "float32")),
    "pad": (IMAGE, lambda x: relax.op.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 0], "reflect")),
    "power": (ROWS, lambda x: relax.op.power(relax.op.abs(x), relax.const(1.5, "float32"))),
    "resize, linear": (IMAGE, lambda x: relax.op.image.resize2d(x, (9, 10), layout="NCHW", method="linear")),
    "resize, nearest": (
        IMAGE,
        lambda x: relax.op.image.resize2d(
            x, (12, 10), layout="NCHW", method="nearest_neighbor", coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
    ),
    "rms_norm": (ROWS, lambda x: relax.op.nn.rms_norm(x, constant(8), [-1], 1e-5)),
    "scatter_elements": (
        ROWS,
        lambda x: relax.op.scatter_elements(x, places(np.ones((2, 1, 8))), constant(2, 1, 8), 1, "add"),
    ),
    "scatter_nd": (ROWS, lambda x: relax.op.scatter_nd(x, places([[1], [0]], "int32"), constant(2, 3, 8))),
    "strided_slice": (ROWS, lambda x: relax.op.strided_slice(x, [2, 1], [6, 0], [0, 2], [-2, 1])),
    "sum": (ROWS, lambda x: relax.op.sum(x, [0, -1])),
    "take": (ROWS, lambda x: relax.op.take(x, relax.const(np.array([[2, 0]], "int32"), "int32"), 1)),
    "topk": (ROWS, lambda x: relax.op.topk(x, 3, -1, "both", True, "int64")),
    "triu": ((2, 6, 6), lambda x: relax.op.triu(x, 1)),
    "variance": (ROWS, lambda x: relax.op.variance(x, [-1], True)),
}  # fmt: skip


def module(shape: tuple[int, ...], operator: Callable[[Any], Any]) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(operator(builder.emit(relax.op.add(x, x))))
            fields = (
                [builder.emit(made[k]) for k in range(len(made.ty.fields))] if hasattr(made.ty, "fields") else [made]
            )
            out = builder.emit_output(relax.Tuple(fields))
        builder.emit_func_output(out)
    return builder.finalize()


@pytest.mark.parametrize("name", CASES)
def test_the_file_computes_the_same(tmp_path: Path, name: str) -> None:
    shape, operator = CASES[name]
    mod = module(shape, operator)
    path = save_optimized(optimize_module(mod, "llvm", options=SHORT), tmp_path / "made.onnx")
    data = RNG.standard_normal(shape).astype("float32")
    wanted = Session(tvm.compile(mod, "llvm")).run(data)
    got = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": data})
    for ours, theirs in zip(wanted, got, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "operator",
    [
        lambda x: relax.op.take(relax.op.reshape(x, [48]), relax.const(np.array([5, 0], "int32"), "int32")),
        lambda x: relax.op.nn.layer_norm(x, constant(2, 8), constant(2, 8), [0, -1]),
        lambda x: relax.op.topk(x, 3, -1, "values"),
        lambda x: relax.op.scatter_elements(x, places(np.ones((2, 1, 8))), constant(2, 1, 8), 1, "max"),
        lambda x: relax.op.flip(x, 1),
    ],
    ids=["flat indices", "axes apart", "values alone", "maximum", "no word"],
)  # fmt: skip
def test_what_onnx_has_no_word_for_is_refused_before_the_search(tmp_path: Path, operator: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedOperatorError, match="it has no ONNX form"):
        require_exportable(module(ROWS, operator), tmp_path / "made.onnx")


def test_inputs_keep_the_names_and_types_of_the_file(tmp_path: Path) -> None:
    """`token.ids` is int32 `token_ids` in the module."""
    helper, table = onnx.helper, RNG.standard_normal((9, 3)).astype("float32")
    given = helper.make_tensor_value_info("token.ids", onnx.TensorProto.INT64, (1, 4))
    made = helper.make_tensor_value_info("row:0", onnx.TensorProto.FLOAT, (1, 4, 3))
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "token.ids"], ["g"]), helper.make_node("Relu", ["g"], ["row:0"])],
        "g", [given], [made], [onnx.numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    api.optimize(tmp_path / "n.onnx", target="llvm", output=tmp_path / "made.onnx")
    ids = np.array([[8, -1, 0, 3]])
    session = onnxruntime.InferenceSession(str(tmp_path / "made.onnx"), providers=["CPUExecutionProvider"])
    (got,) = session.run(["row:0"], {"token.ids": ids})
    np.testing.assert_array_equal(got, np.maximum(table[ids], 0))
