"""Graphs from modules: structure, counts, and kernels that compute what the module computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from tvm_cascade import frontend
from tvm_cascade.errors import GraphError
from tvm_cascade.graph import IDENTITY, Window
from tvm_cascade.passes.extract_graph import Extracted, extract_graph, extract_order_graph, extract_work, with_kernels
from tvm_cascade.passes.integer.untyped import te
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.schedules.tir.macs import count_macs
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_call import run_rows
from tvm_cascade.testing.litert_check import equal_planned
from tvm_cascade.testing.quick_build import virtual_machine
from tvm_cascade.testing.symbolic import symbolic_relu
from tvm_cascade.testing.tflite import ModelWriter


def run_kernels(extracted: Extracted, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Execute a graph operator by operator, every operator row by row out of the smallest rings."""
    graph = extracted.graph
    values = dict(zip(graph.inputs, inputs, strict=True))
    for op, computed in zip(graph.ops, extracted.operators, strict=True):
        if computed is None:
            flat = values[op.inputs[0]].reshape(-1)
            for t, offset in zip(op.outputs, op.view_offsets, strict=True):
                target = graph.tensors[t]
                start = offset // flat.itemsize
                count = int(np.prod(target.shape))
                values[t] = flat[start : start + count].reshape(target.shape)
            continue
        made = [np.zeros(graph.tensors[t].shape, graph.tensors[t].dtype) for t in op.outputs]
        run_rows(computed.kernel, computed.access, [values[t] for t in op.inputs], made)
        values |= dict(zip(op.outputs, made, strict=True))
    return [values[t] for t in graph.outputs]


def run_module(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    vm = virtual_machine(mod)
    result = vm["main"](*(tvm.runtime.tensor(i) for i in inputs))
    parts = [result] if hasattr(result, "numpy") else list(result)
    return [p.numpy() for p in parts]


def branchy(dtype: str, layout: str) -> tvm.IRModule:
    net = Net(dtype, layout, seed=2)
    shape = (1, 13, 11, 3) if layout == "NHWC" else (1, 3, 13, 11)
    x = net.conv(net.input(shape), 6, kernel=3, stride=2, activation="relu")
    left = net.separable(x, 8, kernel=3)
    right = net.conv(net.max_pool(x, 3, 1, 1), 8, kernel=1)
    x = net.concat([net.add(left, right), right])
    x = net.dense(net.flatten(net.global_pool(net.avg_pool(x, 2))), 5)
    return net.finish(net.softmax(x))


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "NHWC"), ("float32", "NCHW"), ("int8", "NHWC")])
def test_kernels_compute_the_module(dtype: str, layout: str) -> None:
    mod = branchy(dtype, layout)
    if dtype == "int8":
        mod = LowerQuantized()(mod)
    before = mod.script()
    extracted = extract_graph(mod)
    assert mod.script() == before
    rng = np.random.default_rng(0)
    shape = extracted.graph.tensors[0].shape
    x = rng.integers(-100, 100, shape).astype("int8") if dtype == "int8" else rng.standard_normal(shape).astype(dtype)
    (got,), (expected,) = run_kernels(extracted, [x]), run_module(mod, [x])
    if dtype == "int8":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert {op.opaque for op in extracted.graph.ops} == {None}


def test_row_axis_is_a_property_of_the_tensor() -> None:
    for layout, row in (("NHWC", 1), ("NCHW", 2)):
        graph = extract_graph(branchy("float32", layout)).graph
        for tensor in graph.tensors:
            assert tensor.row_axis == (row if len(tensor.shape) == 4 else None), tensor
            assert tensor.col_axis == (row + 1 if len(tensor.shape) == 4 else None), tensor


def test_windows_do_not_depend_on_the_layout() -> None:
    nhwc, nchw = (extract_graph(branchy("float32", layout)).graph for layout in ("NHWC", "NCHW"))
    spatial = [[(op.windows, op.columns) for op in g.ops if op.macs and op.kind != "matmul"] for g in (nhwc, nchw)]
    assert spatial[0] == spatial[1]
    assert spatial[0][0] == ((Window(3, stride=2, padding=1),), (Window(3, stride=2, padding=1),))


def test_grouped_channels_are_no_rows() -> None:
    """The groups of a 1x1 convolution are windows along channels, and yet no spatial axis."""
    w = relax.const(np.ones((1, 1, 2, 8), "float32"))

    def build(b, x):
        attrs = {"groups": 2, "data_layout": "NHWC", "kernel_layout": "HWIO"}
        return b.emit(relax.op.nn.conv2d(x, w, **attrs))

    graph = extract_graph(small(build)).graph
    assert [t.row_axis for t in graph.tensors] == [1, 1]
    assert graph.ops[0].windows == (IDENTITY,)


def test_transposes_carry_rows() -> None:
    x = relax.Var("x", R.Tensor((1, 3, 8, 6), "float32"))
    w = relax.const(np.ones((3, 3, 3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.permute_dims(x, (0, 2, 3, 1)))
            z = builder.emit(relax.op.nn.conv2d(y, w, padding=1, data_layout="NHWC", kernel_layout="HWIO"))
            out = builder.emit_output(relax.op.permute_dims(z, (0, 3, 1, 2)))
        builder.emit_func_output(out)
    graph = extract_graph(builder.finalize()).graph
    assert [t.row_axis for t in graph.tensors] == [2, 1, 1, 2]
    assert [op.windows for op in graph.ops] == [(IDENTITY,), (Window(3, padding=1),), (IDENTITY,)]


def small(build) -> tvm.IRModule:
    """A module of one float input 1x8x6x4 and the outputs that `build` returns."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((1, 8, 6, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = build(builder, x)
            out = builder.emit_output(made)
        builder.emit_func_output(out)
    return builder.finalize()


def test_views() -> None:
    def build(b, x):
        halves = b.emit(relax.op.split(b.emit(relax.op.nn.relu(x)), 2, axis=1))
        quarters = b.emit(relax.op.split(halves[0], 2, axis=3))
        flat = b.emit(relax.op.reshape(halves[1], (1, 96)))
        return relax.Tuple([quarters[0], quarters[1], flat])

    graph = extract_graph(small(build)).graph
    split, channels, flatten = (graph.ops[k] for k in (1, 2, 3))
    assert split.view and split.view_offsets == (0, 4 * 6 * 4 * 4)
    assert not channels.view and channels.windows == (IDENTITY,)
    assert flatten.view and flatten.windows == (Window.whole(4),)
    assert [op.name for op in graph.ops] == ["relu", "split", "split1", "reshape"]
    assert graph.outputs == (channels.outputs[0], channels.outputs[1], flatten.outputs[0])


def test_the_graph_for_an_order_is_the_whole_one_without_its_windows() -> None:
    def build(b, x):
        halves = b.emit(relax.op.split(b.emit(relax.op.nn.relu(x)), 2, axis=1))
        flat = b.emit(relax.op.reshape(halves[1], (1, 96)))
        return relax.Tuple([b.emit(relax.op.add(halves[0], halves[0])), flat])

    for mod in (small(build), branchy("float32", "NHWC")):
        whole, found = extract_graph(mod).graph, extract_order_graph(mod)
        assert [(t.name, t.bytes) for t in found.tensors] == [(t.name, t.bytes) for t in whole.tensors]
        assert (found.inputs, found.outputs, found.roots) == (whole.inputs, whole.outputs, whole.roots)
        for ours, theirs in zip(found.ops, whole.ops, strict=True):
            assert (ours.name, ours.kind, ours.inputs, ours.view) == (
                theirs.name,
                theirs.kind,
                theirs.inputs,
                theirs.view,
            )


def test_work_is_known_without_kernels() -> None:
    for mod in (branchy("float32", "NHWC"), branchy("float32", "NCHW")):
        whole, found = extract_graph(mod).graph, extract_work(mod)
        assert found.macs == whole.macs > 0
        assert [op.macs for op in found.ops] == [op.macs for op in whole.ops]
        assert found.tensors == whole.tensors


def test_rows_without_columns_are_made_of_rows_with_them(tmp_path) -> None:
    """The largest of the last axis, which is the columns of the operand, leaves the last axis as rows."""
    pytest.importorskip("ai_edge_litert")
    w = ModelWriter()
    row, total = (w.tensor((1, 1, 9, 4), "int8", 0.1) for _ in range(2))
    picked, axis, out = (*(w.constant(np.array(v, "int32")) for v in ([3], 3)), w.tensor((1, 1, 9), "int32"))
    x = w.activation((1, 10, 9, 4), "int8", 0.1)
    w.operator("GATHER", [x, picked], [row], "GatherOptions", axis=1, inner=True)
    w.operator("ADD", [row, row], [total], "AddOptions", potScaleInt16=False, inner=True)
    w.operator("ARG_MAX", [total, axis], [out], "ArgMaxOptions", outputType=2)
    equal_planned(tmp_path, w)


def test_outputs_that_nobody_reads_are_dropped() -> None:
    """A dropout's mask goes, and with it all that the dropout did; parts of a split that are not used go too."""

    def build(b, x):
        y = b.emit(relax.op.nn.relu(x))
        kept = b.emit(b.emit(relax.op.nn.dropout(y, 0.5))[0])
        return b.emit(b.emit(relax.op.split(kept, 2, axis=3))[1])

    extracted = extract_graph(small(build))
    relu, dropout, split = extracted.graph.ops
    assert dropout.view and dropout.view_offsets == (0,)
    assert not split.view and len(split.outputs) == 1
    assert len(extracted.graph.tensors) == 4
    x = np.random.default_rng(1).standard_normal((1, 8, 6, 4)).astype("float32")
    np.testing.assert_array_equal(run_kernels(extracted, [x])[0], np.maximum(x, 0)[..., 2:])
    assert relu.in_place == (0,)


def test_in_place_candidates() -> None:
    def build(b, x):
        y = b.emit(relax.op.nn.relu(x))
        z = b.emit(relax.op.add(y, x))
        scaled = b.emit(relax.op.multiply(z, relax.const(np.ones((1, 1, 1, 4), "float32"))))
        pooled = b.emit(relax.op.mean(scaled, axis=[1, 2], keepdims=True))
        wide = b.emit(relax.op.add(pooled, scaled))
        return b.emit(relax.op.nn.softmax(b.emit(relax.op.nn.softmax(wide, axis=1)), axis=-1))

    extracted = extract_graph(small(build))
    by_kind = [(op.kind, op.in_place) for op in extracted.graph.ops]
    assert by_kind == [
        ("relu", (0,)),
        ("add", (0, 1)),
        ("multiply", (0,)),
        ("mean", ()),
        ("add", (1,)),
        ("softmax", ()),  # over rows
        ("softmax", (0,)),
    ]
    assert extracted.graph.ops[2].weight_bytes == 16
    assert len({op.name for op in extracted.graph.ops}) == 7


def test_outputs_that_no_operator_writes() -> None:
    """An input returned, the same again, and a constant: copies, so that every output lies by itself."""
    constant = relax.const(np.arange(3, dtype="float32"))
    mod = small(lambda b, x: relax.Tuple([x, b.emit(relax.op.nn.relu(x)), constant]))
    extracted = extract_graph(mod)
    assert [op.kind for op in extracted.graph.ops] == ["relu", "copy", "copy"]
    assert not any(op.view for op in extracted.graph.ops)
    x = np.random.default_rng(1).standard_normal((1, 8, 6, 4)).astype("float32")
    same, relu, three = run_kernels(extracted, [x])
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_array_equal(three, np.arange(3, dtype="float32"))


def test_opaque_operators_say_why() -> None:
    def build(b, x):
        y = b.emit(relax.op.nn.max_pool2d(x, (3, 3), padding=1, layout="NHWC"))
        return b.emit(relax.op.flip(y, 1))

    pool, flip = extract_graph(small(build)).graph.ops
    assert pool.opaque is None
    assert flip.opaque is not None and flip.opaque.endswith("rows are not read in ascending order")
    assert flip.windows == (None,)

    def normalise(b, x):
        y = b.emit(relax.op.nn.softmax(x, axis=1))
        return b.emit(relax.op.nn.avg_pool2d(y, (3, 3), layout="NHWC"))

    extracted = extract_graph(small(build))
    x = np.random.default_rng(1).standard_normal((1, 8, 6, 4)).astype("float32")
    np.testing.assert_array_equal(run_kernels(extracted, [x])[0], run_module(small(build), [x])[0])
    softmax = extract_graph(small(normalise))
    (got,) = run_kernels(softmax, [x])
    np.testing.assert_allclose(got, run_module(small(normalise), [x])[0], rtol=1e-5)


def test_with_kernels_takes_over_scratch_and_flash() -> None:
    extracted = extract_graph(branchy("float32", "NHWC"))
    kernels = [o and replace(o.kernel, scratch_bytes=24, constants=()) for o in extracted.operators]
    graph = with_kernels(extracted.graph, kernels)
    assert {op.scratch_bytes for op in graph.ops if not op.view} == {24}
    assert graph.weight_bytes == 0


def test_constants_of_constants_are_folded() -> None:
    """Moved ones in numpy, computed ones by TVM, scalars included; batch norms take their form for inference."""

    def build(b, x):
        scale = b.emit(relax.op.reshape(relax.const(np.arange(1, 5, dtype="float32")), (1, 1, 1, 4)))
        scale = b.emit(relax.op.multiply(scale, b.emit(relax.op.exp(relax.const(0.5, "float32")))))
        y = b.emit(relax.op.multiply(x, scale))
        norm = [relax.const(np.array(v, "float32")) for v in ([1, 2, 3, 4], [0, 1, 0, 1], [1, 1, 2, 2], [1, 2, 1, 2])]
        return b.emit(b.emit(relax.op.nn.batch_norm(y, *norm, axis=3, training=False))[0])

    extracted = extract_graph(small(build))
    assert {len(op.inputs) for op in extracted.graph.ops} == {1}
    x = np.random.default_rng(1).standard_normal((1, 8, 6, 4)).astype("float32")
    np.testing.assert_allclose(run_kernels(extracted, [x])[0], run_module(small(build), [x])[0], rtol=1e-5, atol=1e-5)


def test_attributes_are_plain_python() -> None:
    graph = extract_graph(LowerQuantized()(branchy("int8", "NHWC"))).graph
    conv = next(op for op in graph.ops if op.kind == "conv2d")
    assert conv.attrs["strides"] == (2, 2)
    assert conv.attrs["padding"] == (1, 1, 1, 1)
    assert isinstance(conv.attrs["input_zero_point"], int)


def test_counted_macs_are_the_planned_ones() -> None:
    """A counter in every kernel against the graph, and both against a count of taps by hand."""
    extracted = extract_graph(LowerQuantized()(branchy("int8", "NHWC")))
    for op, computed in zip(extracted.graph.ops, extracted.operators, strict=True):
        if computed is None or op.kind not in ("conv2d", "depthwise_conv2d", "dense"):
            continue
        kernel, access = computed.kernel, computed.access
        rng = np.random.default_rng(0)
        graph = extracted.graph
        inputs = [rng.integers(-9, 9, graph.tensors[t].shape).astype("int8") for t in op.inputs]
        made = [np.zeros(graph.tensors[t].shape, "int8") for t in op.outputs]
        macs = np.zeros(1, "int64")
        run_rows(kernel, access, inputs, made, macs=macs, func=count_macs(kernel.func))
        assert int(macs[0]) == op.macs > 0
    first = extracted.graph.ops[0]
    out = extracted.graph.tensors[first.outputs[0]]
    taps = [
        sum(len(w.rows(y, extent)) for y in range(count))
        for w, extent, count in ((first.windows[0], 13, out.rows), (first.columns[0], 11, out.columns))
        if w is not None
    ]
    assert first.macs == taps[0] * taps[1] * 3 * 6


def _of_computed_loops(b, x):
    """As many samples of every bin as the box says."""
    return b.emit(relax.op.vision.roi_align(x, relax.const(np.zeros((1, 5), "float32")), (2, 2), 1.0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b, x: b.emit(relax.call_dps_packed("f", x, R.Tensor((1, 8, 6, 4), "float32"))), "no TIR form"),
        (lambda b, x: b.emit(relax.op.unique(x)), "not static|no TIR form"),
        (_of_computed_loops, "roi_align has no TIR form"),
    ],
)
def test_refusals(build, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        extract_graph(small(build))


def test_symbolic_shapes_are_refused() -> None:
    with pytest.raises(GraphError, match="shape of x is not static"):
        extract_graph(symbolic_relu())
    with pytest.raises(GraphError, match="no function other"):
        extract_graph(symbolic_relu(), "other")


QUANTIZED = [
    "person_detect",
    "vww_96_int8",
    "kws_dscnn_int8",
    "resnet8_int8",
    "ad01_int8",
    "micro_speech_quantized",
    "mobilenetv2_035_160_int8",
    "swiftnet_vww_uint8",
]


@pytest.mark.parametrize("name", QUANTIZED)
def test_models_have_windows_everywhere(models: Path, name: str) -> None:
    graph = extract_graph(LowerQuantized()(frontend.load(models / f"{name}.tflite"))).graph
    assert [op.name for op in graph.ops if op.opaque is not None] == []
    assert graph.macs > 0
    for op in graph.ops:
        assert op.scratch_bytes <= 4096, op.name


def test_a_kernel_of_another_type_than_its_tensor_is_refused() -> None:
    """It would write beyond the tensor's end."""

    def build(b, x):
        a = te.placeholder((1, 8, 6, 4), "float32", name="a")
        func = te.create_prim_func([a, te.compute(a.shape, lambda *i: a[i].astype("float64"), "wide")]).without_attr(
            "global_symbol"
        )
        return b.emit(relax.call_tir(b.add_func(func, "wide"), x, R.Tensor((1, 8, 6, 4), "float32")))

    with pytest.raises(GraphError, match="wide of type float32 is computed by TVM as float64"):
        extract_graph(small(build))
