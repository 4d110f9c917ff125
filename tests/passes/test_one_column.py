"""Signals in one column: the same integers, rows that arrive one by one, plans that come from either direction of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_cascade
from tvm_cascade import frontend, pipeline
from tvm_cascade.cascading import plan_graph, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.passes.layout.one_column import to_one_column
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing import time_series
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.quick_build import virtual_machine
from tvm_cascade.testing.tflite import ModelWriter


@pytest.mark.parametrize("network", time_series.NETWORKS)
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_column_computes_what_a_row_does(network: Any, dtype: str) -> None:
    mod = network(dtype)
    column = to_one_column(mod)
    made = pipeline.prepare(column, KernelTarget())
    assert any(t.rows > 1 and t.columns == 1 for t in made.graph.tensors)
    plan = plan_graph(made.graph, rows_alone(stripes=False))
    validate(plan)
    shape = made.graph.tensors[made.graph.inputs[0]].shape
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, shape).astype(dtype) if dtype == "int8" else rng.standard_normal(shape).astype(dtype)
    want = virtual_machine(LowerQuantized()(mod))["main"](tvm.runtime.tensor(x)).numpy()
    got = run_plan(made, plan, [x]).outputs[0]
    if dtype == "int8":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def test_raw_sound_is_planned_along_time() -> None:
    """Of more samples than a second of telephony has: maps lie in rings, and the input takes nearly all of the arena."""
    net, samples = Net("int8", seed=1), 20_000
    x = net.max_pool(net.conv(net.input((1, 1, samples, 1), "x"), 4, (1, 3), activation="relu"), (1, 2), (1, 2))
    mod = net.finish(net.dense(net.flatten(net.global_pool(net.conv(x, 8, (1, 3)))), 2))
    assert samples < tvm_cascade.plan(mod, target="cortex-m4").peak_bytes < samples + 1_000


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("stream_input", [False, True])
def test_a_single_channel_lies_first_or_last(dtype: str, stream_input: bool) -> None:
    """The bytes are the same, so are the plans: PyTorch's `[1, 1, T]`, Keras' `[1, T, 1]`, and a map of one row."""
    peaks = set[int]()
    for shape in ((1, 1, 512), (1, 512, 1), (1, 1, 1, 512)):
        net = Net(dtype, seed=3)
        x = net.reshape(net.input(shape, "x"), (1, 1, 512, 1))
        for channels in (16, 32, 32):
            x = net.conv(x, channels, (1, 7), (1, 2), activation="relu")
        mod = net.finish(net.dense(net.flatten(net.global_pool(x)), 5))
        peaks.add(tvm_cascade.plan(mod, target="cortex-m4", stream_input=stream_input).peak_bytes)
    assert len(peaks) == 1
    if stream_input:  # sample by sample
        assert peaks.pop() < tvm_cascade.plan(mod, target="cortex-m4").peak_bytes / 2


def test_a_module_that_was_not_loaded_streams_in_the_layout_of_kernels(tmp_path: Path) -> None:
    net = Net("float32", seed=3)
    x = net.reshape(net.input((1, 1, 512), "x"), (1, 1, 512, 1))
    for channels in (16, 32):
        x = net.conv(x, channels, (1, 7), (1, 2), activation="relu")
    mod = net.finish(net.flatten(net.global_pool(x)))
    given = {"x": np.random.default_rng(1).normal(size=(1, 1, 512)).astype("float32")}
    results = list[np.ndarray]()
    for stream in (False, True):
        folder = tvm_cascade.compile(mod, target="host", output=tmp_path / f"p{stream}", stream_input=stream).folder
        tvm_cascade.run(folder, inputs=given, outputs=tmp_path / "y.npz")
        with np.load(tmp_path / "y.npz") as kept:
            results += [kept[name] for name in kept.files]
    assert len(results) == 2
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


def test_images_stay_as_they_are() -> None:
    net = Net("int8", seed=1)
    mod = net.finish(net.conv(net.conv(net.input((1, 8, 6, 3), "x"), 8, 3), 8, 1))
    assert to_one_column(mod) is mod


def test_a_window_of_several_rows_over_one_row_stays() -> None:
    net = Net("int8", seed=1)
    mod = net.finish(net.conv(net.input((1, 1, 20, 3), "x"), 8, 3))
    assert to_one_column(mod) is mod


def signal(path: Path, channels_last: bool) -> Path:
    """Write a float `.onnx` of four one-dimensional convolutions, with a residual, over 96 samples of 6 channels."""
    onnx = pytest.importorskip("onnx")
    make, rng = onnx.helper, np.random.default_rng(5)
    weights, nodes, x = [], [], "x"
    if channels_last:
        nodes.append(make.make_node("Transpose", ["x"], ["first"], perm=[0, 2, 1]))
        x = "first"
    for k, (read, made) in enumerate(((6, 8), (8, 8), (8, 8), (8, 4))):
        data = (rng.standard_normal((made, read, 3)) / 3).astype("float32")
        weights.append(onnx.numpy_helper.from_array(data, f"w{k}"))
        nodes.append(make.make_node("Conv", [x, f"w{k}"], [f"c{k}"], pads=[2 << k, 0], dilations=[1 << k]))
        nodes.append(make.make_node("Relu", [f"c{k}"], [f"r{k}"]))
        x = f"r{k}"
        if k == 1:
            nodes.append(make.make_node("Add", ["r0", "r1"], ["a"]))
            x = "a"
    nodes.append(make.make_node("ReduceMean", [x], ["y"], axes=[2], keepdims=0))
    shape = (1, 96, 6) if channels_last else (1, 6, 96)
    info, kind = make.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = make.make_graph(nodes, "g", [info("x", kind, shape)], [info("y", kind, (1, 4))], weights)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path


def depthwise_signal(path: Path, dtype: str) -> Path:
    """Write a `.tflite` of depthwise and pointwise convolutions in turn over 60 samples of 8 channels, as Keras' Conv1D."""
    writer, rng = ModelWriter(), np.random.default_rng(4)
    x = writer.activation((1, 1, 60, 8), dtype, 0.02, 3)
    for k in range(4):
        filters = (1, 1, 5, 8) if k % 2 == 0 else (8, 1, 1, 8)
        scales, name = np.full(8, 0.01, "float32"), "DepthwiseConv2D" if k % 2 == 0 else "Conv2D"
        data = rng.integers(-127, 128, filters)
        stored = data.astype("int8") if dtype == "int8" else (data / 300).astype("float32")
        weights = writer.tensor(filters, dtype, scales, axis=3 if k % 2 == 0 else 0, data=stored)
        bias = rng.integers(-500, 500, 8).astype("int32" if dtype == "int8" else "float32")
        bias = writer.tensor((8,), str(bias.dtype), scales * np.float32(0.02), data=bias)
        out = writer.tensor((1, 1, 60, 8), dtype, 0.02, 3)
        steps: dict[str, Any] = dict(strideH=1, strideW=1, dilationHFactor=1, dilationWFactor=1)
        steps |= dict(depthMultiplier=1) if k % 2 == 0 else {}
        kind = "DEPTHWISE_CONV_2D" if k % 2 == 0 else "CONV_2D"
        writer.operator(kind, [x, weights, bias], [out], f"{name}Options", padding=0, version=3, **steps)
        x = out
    writer.outputs = [x]
    path.write_bytes(writer.finish())
    return path


def test_frames_that_keep_rows_compute_the_same_in_a_column() -> None:
    mod = frontend.load_frame(time_series.gated(), 8, None, 2).mod
    rng = np.random.default_rng(2)
    shapes = [[int(d) for d in p.ty.shape.values] for p in mod["main"].params]
    given = [tvm.runtime.tensor(rng.integers(-128, 128, shape).astype("int8")) for shape in shapes]
    row, column = (virtual_machine(LowerQuantized()(m))["main"](*given) for m in (mod, to_one_column(mod)))
    assert len(row) > 2  # states
    for want, got in zip(row, column, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize(
    ("network", "options"),
    [
        (time_series.gesture, {"target": "host"}),
        (time_series.gated, {"target": "cortex-m4", "hop": 8, "axis": 2}),
    ],
)
def test_hosts_and_networks_with_states_plan_time_along_rows(network: Any, options: dict[str, Any]) -> None:
    assert "time along rows" in tvm_cascade.plan(network(), **options).candidates


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_depthwise_windows_of_tflite_go_along_rows(dtype: str, tmp_path: Path) -> None:
    path = depthwise_signal(tmp_path / "n.tflite", dtype)
    column = pipeline.prepare(to_one_column(frontend.load(str(path))), KernelTarget())
    wide = [t for t in column.graph.tensors if t.columns > 1]
    assert len(column.graph.tensors) > 4 and len(wide) <= 2, wide  # the network's input and output
    tvm_cascade.compile(path, target="host", stream_input=True, output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=path).match


def _normalized(path: Path) -> Path:
    """Write a `.tflite` as Keras' Conv1D and batch normalization: constants [1, 1, c] added to signals without their row."""
    writer, rng = ModelWriter(), np.random.default_rng(6)
    x, read = writer.activation((1, 96, 3), "int8", 0.02, 3), 3
    for k in range(3):
        shape, row = (1, 96, 16), (1, 1, 96, 16)
        wide, made = writer.tensor((1, 1, 96, read), "int8", 0.02, 3), writer.tensor(row, "int8", 0.03, -5)
        writer.operator("RESHAPE", [x, writer.constant(np.array((1, 1, 96, read), "int32"))], [wide])
        data, bias = (
            rng.integers(-127, 128, (16, 1, 5, read)).astype("int8"),
            rng.integers(-500, 500, 16).astype("int32"),
        )
        weights = writer.tensor(data.shape, "int8", np.full(16, 0.01, "float32"), axis=0, data=data)
        bias = writer.tensor((16,), "int32", np.full(16, 2e-4, "float32"), data=bias)
        writer.operator("CONV_2D", [wide, weights, bias], [made], "Conv2DOptions", padding=0, version=3, strideH=1, strideW=1,
                        dilationHFactor=1, dilationWFactor=1)  # fmt: skip
        signal = writer.tensor(shape, "int8", 0.03, -5)
        writer.operator("RESHAPE", [made, writer.constant(np.array(shape, "int32"))], [signal])
        shift = rng.integers(-127, 128, (1, 1, 16)).astype("int8")
        shift = writer.tensor((1, 1, 16), "int8", 0.01, k, data=shift)
        x, read = writer.tensor(shape, "int8", 0.02, 3), 16
        writer.operator("ADD", [signal, shift], [x], "AddOptions", fusedActivationFunction=1)
    writer.outputs = [x]
    path.write_bytes(writer.finish())
    return path


def test_constants_that_are_added_to_a_column_stay_integers(tmp_path: Path) -> None:
    mod = frontend.load(str(_normalized(tmp_path / "n.tflite")))
    row, column = (pipeline.prepare(m, KernelTarget()).graph for m in (mod, to_one_column(mod)))
    assert sum(t.columns > 1 for t in column.tensors) < sum(t.columns > 1 for t in row.tensors)
    assert all(t.bytes == np.prod(t.shape) for t in column.tensors)
    tvm_cascade.compile(tmp_path / "n.tflite", target="host", stream_input=True, output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "n.tflite").match


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("padding", [0, 1])
def test_averages_along_a_column_round_as_along_a_row(dtype: str, padding: int, tmp_path: Path) -> None:
    """The view of the signal lies in front of the cast that integer averages begin with."""
    writer, steps, zero = ModelWriter(), 31 - 2 * padding, 0 if dtype == "int16" else 3
    x = writer.activation((1, 31, 7), dtype, 0.02, zero)
    for operator, shape in (
        ("RESHAPE", (1, 1, 31, 7)),
        ("AVERAGE_POOL_2D", (1, 1, steps, 7)),
        ("RESHAPE", (1, steps, 7)),
    ):
        read, x = x, writer.tensor(shape, dtype, 0.02, zero)
        if operator == "RESHAPE":
            writer.operator(operator, [read, writer.constant(np.array(shape, "int32"))], [x])
        else:
            window = dict(filterHeight=1, filterWidth=3, strideH=1, strideW=1, padding=padding)
            writer.operator(operator, [read], [x], "Pool2DOptions", **window)
    writer.outputs = [x]
    path = tmp_path / "n.tflite"
    path.write_bytes(writer.finish())
    tvm_cascade.compile(path, target="host", stream_input=True, output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=path).match


@pytest.mark.parametrize("network", [time_series.heartbeat, time_series.gesture])
@pytest.mark.parametrize("options", [{}, {"max_time": 1.01}, {"sram": "6k"}])
def test_bounds_cover_plans_along_either_direction(network: Any, options: dict[str, Any]) -> None:
    """The plan along the row is faster; the smallest on its frontier goes along the column."""
    found = tvm_cascade.plan(network("int8"), target="cortex-m4", **options)
    assert found.plan.bound <= min(peak for peak, factor in found.frontier if factor == 1.0)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_signal_arrives_sample_by_sample(channels_last: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = signal(tmp_path / "n.onnx", channels_last)
    result = tvm_cascade.plan(path, target="cortex-m4", stream_input=True)
    (source,) = (t for s in result.plan.segments for t in s.streamed)
    tensor = result.plan.graph.tensors[source]
    assert tensor.rows == 96 and result.plan.storages[source].is_ring(96)
    assert result.peak_bytes < 96 * 6 * 4
    tvm_cascade.compile(path, target="host", stream_input=True, output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=path).match


def test_a_network_of_views_alone_is_planned(tmp_path: Path) -> None:
    """It takes no instructions, and is as fast as itself."""
    writer = ModelWriter()
    x, turned = writer.activation((6, 5), "int8", 0.1), writer.tensor((1, 6, 1, 5), "int8", 0.1)
    seen, shape, axes = (
        writer.tensor((1, 1, 6, 5), "int8", 0.1),
        writer.constant(np.array([1, 1, 6, 5], "int32")),
        writer.constant(np.array([0, 2, 1, 3], "int32")),
    )
    writer.operator("RESHAPE", [x, shape], [seen], "ReshapeOptions", newShape=[1, 1, 6, 5])
    writer.operator("TRANSPOSE", [seen, axes], [turned], "TransposeOptions")
    writer.outputs.append(turned)
    path = tmp_path / "views.tflite"
    path.write_bytes(writer.finish())
    assert tvm_cascade.plan(path, target="cortex-m7").peak_bytes == 30
