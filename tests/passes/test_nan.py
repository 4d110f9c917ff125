"""Maxima and bounds of NaN are NaN, as ONNX Runtime and PyTorch have them, wherever the NaN stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

import tvm_cascade
from tvm_cascade.frontend import load
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.schedules.tir import collect, tirx
from tvm_cascade.schedules.tir.nan import keep_nan
from tvm_cascade.testing.onnx_nodes import check_network, save_network

X = np.array([[np.nan, 2, 3, -1], [1, np.nan, 3, -2], [1, 2, np.nan, 9], [8, 2, 3, np.nan], [1, 2, 3, 4]], "float32")
Y = X[:, ::-1].copy()
Z = np.linspace(-1, 1, 150, dtype="float32").reshape(1, 6, 5, 5)
Z[0, 0, 0, 0] = Z[0, 1, 2, 2] = Z[0, 2, 4, 4] = np.nan
Z[0, 3], Z[0, 4, :3, :3] = -np.inf, -np.inf
CASES = {
    "Relu": (("x",), {}, np.maximum(X, 0)),
    "Clip": (("x", "zero", "two"), {}, np.clip(X, 0, 2)),
    "Sign": (("x",), {}, np.sign(X)),
    "HardSigmoid": (("x",), {"alpha": 0.5}, np.clip(X * np.float32(0.5) + np.float32(0.5), 0, 1)),
    "Max": (("x", "y"), {}, np.maximum(X, Y)),
    "Min": (("x", "y"), {}, np.minimum(X, Y)),
    "ReduceMax": (("x",), {"axes": [1], "keepdims": 0}, X.max(1)),
    "ReduceMin": (("x",), {"axes": [0], "keepdims": 0}, X.min(0)),
}


@pytest.mark.parametrize("kind", CASES)
def test_nan_stays(tmp_path: Path, kind: str) -> None:
    names, attributes, want = CASES[kind]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, X.shape) for n in ("x", "y") if n in names]
    made = helper.make_tensor_value_info("z", TensorProto.FLOAT, want.shape)
    bounds = [numpy_helper.from_array(np.float32(v), n) for n, v in (("zero", 0), ("two", 2)) if n in names]
    graph = helper.make_graph([helper.make_node(kind, names, ["z"], **attributes)], "g", ends, [made], bounds)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    tvm_cascade.compile(path, target="host", output=tmp_path / "project", cache=False)
    given = {n: v for n, v in (("x", X), ("y", Y)) if n in names}
    np.testing.assert_allclose(tvm_cascade.run(tmp_path / "project", inputs=given).outputs["z"], want, rtol=1e-6)


@pytest.mark.parametrize("target", ["host", "cortex-m0plus", "cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_window_s_maximum_is_nan_or_infinite(tmp_path: Path, emulator: None, target: str, padding: int) -> None:
    padded = np.pad(Z, [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2], constant_values=-np.inf)
    taps = [padded[:, :, y : y + 3 + 2 * padding, x : x + 3 + 2 * padding] for y in range(3) for x in range(3)]
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], pads=[padding] * 4),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["v"]),
    ]
    held = {"w": np.eye(6, dtype="float32")[:, :, None, None], "b": np.zeros(6, "float32")}
    want = np.maximum.reduce(taps)
    with np.errstate(invalid="ignore"):
        products = np.einsum("nchw,dc->ndhw", Z, held["w"][:, :, 0, 0])
    wanted = [want, np.maximum(want, 0), np.maximum(products, 0)]
    check_network(tmp_path, nodes, {"x": Z}, ["y", "z", "v"], held, target=target, wanted=wanted)


@pytest.mark.parametrize("objective", ["bytes", "latency"])
def test_pipelines_keep_nan(tmp_path: Path, objective: str) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Clip", ["x", "low", "high"], ["z"]),
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[5, 5]),
    ]
    bounds = {"low": np.float32(-0.5), "high": np.float32(0.5)}
    mod = load(save_network(tmp_path / "network.onnx", nodes, {"x": Z}, ["y", "z", "p"], bounds))
    program = tvm.compile(mod, target="llvm", relax_pipeline=cascade_pipeline(objective=objective))
    made = [a.numpy() for a in relax.VirtualMachine(program, tvm.cpu())["main"](tvm.runtime.tensor(Z))]
    for ours, want in zip(made, (np.maximum(Z, 0), np.clip(Z, -0.5, 0.5), Z.max((2, 3), keepdims=True)), strict=True):
        np.testing.assert_array_equal(ours, want)


def test_thresholds_and_sums_of_infinities(tmp_path: Path) -> None:
    rows = np.array([[-np.inf, -np.inf], [np.inf, 1], [-100, -200], [np.nan, 1]], "float32")
    nodes = [helper.make_node("ThresholdedRelu", ["x"], ["y"], alpha=0.5)]
    nodes += [helper.make_node("ReduceLogSumExp", ["x", "one"], ["z"], keepdims=0)]
    with np.errstate(invalid="ignore"):
        wanted = [np.where(rows > 0.5, rows, 0), np.logaddexp(rows[:, 0], rows[:, 1])]
    check_network(tmp_path, nodes, {"x": rows}, ["y", "z"], {"one": np.array([1])}, wanted=wanted)


def test_constants_stand_in_front() -> None:
    @T.prim_func(private=True)
    def clamped(a: T.handle, b: T.handle) -> None:
        x, y = T.match_buffer(a, (4,)), T.match_buffer(b, (4,))
        for i in range(4):
            y[i] = T.min(T.max(x[i], T.float32(0)), T.float32(6))

    kept = keep_nan(clamped)
    for kind in (tirx.Max, tirx.Min):
        ((one,),) = (collect(kept.body, kind),)
        assert isinstance(one.a, tirx.FloatImm)


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_signs_on_cores(tmp_path: Path, emulator: None, target: str) -> None:
    x = np.array([[np.nan, -np.nan, 1, -1, 0, -0.0, np.inf, -np.inf] * 4], "float32")
    check_network(
        tmp_path, [helper.make_node("Sign", ["x"], ["y"])], {"x": x}, ["y"], {}, target=target, wanted=[np.sign(x)]
    )


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("kind", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons_with_nan_choose_the_second_value(tmp_path: Path, emulator: None, target: str, kind: str) -> None:
    """Vectors of Helium compare as scalars do: LT and LE of its instructions are true for NaN."""
    x = np.linspace(-2, 2, 37, dtype="float32")[None]
    x[0, [0, 5, 9, 17, 30, 36]] = np.nan
    nodes = [
        helper.make_node(kind, ["x", "zero"], ["c"]),
        helper.make_node("Where", ["c", "zero", "x"], ["y"]),
        helper.make_node(kind, ["zero", "x"], ["d"]),
        helper.make_node("Where", ["d", "x", "zero"], ["z"]),
    ]
    compare = {"Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal}
    below, above = compare[kind](x, 0), compare[kind](np.float32(0), x)
    wanted = [np.where(below, np.float32(0), x), np.where(above, x, np.float32(0))]
    check_network(tmp_path, nodes, {"x": x}, ["y", "z"], {"zero": np.float32(0)}, target=target, wanted=wanted)


@pytest.mark.parametrize("target", ["host", "cortex-m4", "cortex-m55"])
def test_quantized_nan_is_the_least(tmp_path: Path, emulator: None, target: str) -> None:
    """Of either sign, of an input, of a table, and of 0 / 0: as ONNX Runtime has it."""
    x = np.linspace(-9, 9, 35, dtype="float32")[None]
    x[0, 3], x[0, 20], x[0, 4] = np.nan, -np.float32(np.nan), np.inf
    constants, nodes, names = {"s": np.float32(0.1)}, [], []
    for zero in (np.int8(3), np.uint8(128), np.int16(0)):
        kind, q = zero.dtype.name, [("s", zero.dtype.name)]
        constants[kind] = zero

        def node(op: str, *inputs: str, how: tuple[str, ...] = ()) -> str:
            nodes.append(helper.make_node(op, [*inputs, *how], [f"n{len(nodes)}"]))
            return nodes[-1].output[0]

        stored = node("QuantizeLinear", "x", how=q[0])
        real = node("DequantizeLinear", stored, how=q[0])
        names.append(stored)
        for result in (node("Sqrt", real), node("Div", real, real)):
            names.append(node("QuantizeLinear", result, how=q[0]))
    check_network(tmp_path, nodes, {"x": x}, names, constants, opset=21, target=target)
