"""Float networks in the layout of kernels: transposes at the ends alone, normalizations folded, results as ONNX Runtime's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade import frontend, pipeline
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.importers.batch_norms import fold_batch_norms
from tvm_cascade.importers.kernel_layout import in_kernel_layout, planned_in_kernel_layout
from tvm_cascade.passes.candidates.candidate import KernelSource, PlannedCandidate
from tvm_cascade.passes.main_rewriting import bindings_of, name_of, relax
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_check import run_plan

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime as ort

from tvm_cascade.testing.onnx_nodes import compiled_outputs, runtime_outputs


class Graph:
    """A float ONNX network, operator by operator, with random weights."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.rng, self.nodes, self.weights = shape, np.random.default_rng(3), [], []  # type: ignore[var-annotated]

    def const(self, value: object, dtype: str = "float32") -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def random(self, *shape: int) -> str:
        return self.const(self.rng.standard_normal(shape) / 3)

    def op(self, kind: str, *operands: str, **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, operands, [name], **attrs))
        return name

    def conv(self, x: str, w: tuple[int, ...], kind: str = "Conv", **attrs: object) -> str:
        outputs = w[0] if kind == "Conv" else w[1]
        return self.op(kind, x, self.random(*w), self.random(outputs), **attrs)

    def norm(self, x: str, n: int) -> str:
        variance = self.const(self.rng.uniform(0.5, 1.5, n))
        return self.op("BatchNormalization", x, self.random(n), self.random(n), self.random(n), variance)

    def save(self, path: Path, y: str) -> Path:
        info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
        graph = onnx.helper.make_graph(
            self.nodes, "g", [info("x", kind, self.shape)], [info(y, kind, None)], self.weights
        )
        made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(made), path)
        return path


def residual(g: Graph) -> str:
    x = g.op("Relu", g.norm(g.conv("x", (8, 4, 3, 3), pads=[1] * 4), 8))
    y = g.norm(g.conv(x, (8, 1, 3, 3), pads=[1] * 4, group=8), 8)
    return g.op("Relu", g.op("Add", x, y))


def pooled(g: Graph) -> str:
    x = g.op("Clip", g.conv("x", (8, 4, 3, 3), strides=[2, 2]), g.const(0.0), g.const(6.0))
    x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[1, 1])
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    return g.op("Softmax", g.op("Gemm", x, g.random(8, 5), g.random(5)), axis=-1)


def skips(g: Graph) -> str:
    a = g.op("Relu", g.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    b = g.op("AveragePool", a, kernel_shape=[2, 2], strides=[2, 2])
    b = g.conv(b, (8, 6, 2, 2), "ConvTranspose", strides=[2, 2])
    b = g.op("Concat", a, b, axis=1)
    b = g.op("Resize", b, "", g.const([1, 1, 2, 2]), mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor")  # fmt: skip
    b = g.op("Pad", b, g.const([0, 0, 1, 2, 0, 0, 0, 1], "int64"))
    b = g.op("Sigmoid", g.conv(b, (3, 14, 1, 1)))
    return g.op("Softmax", b, axis=1)


def windows_apart(g: Graph) -> str:
    x = g.op("Relu", g.conv("x", (8, 4, 3, 3)))
    x = g.op("Relu", g.conv(x, (8, 6, 2, 3), "ConvTranspose", strides=[2, 3]))
    return g.conv(x, (6, 2, 3, 3), "ConvTranspose", strides=[2, 2], output_padding=[1, 1])


def upsampled(g: Graph) -> str:
    """Transposed convolutions of a signal, whose windows overlap, each with a bias and an activation behind."""
    x = g.op("Relu", g.conv("x", (4, 8, 4), "ConvTranspose", strides=[2], pads=[1, 1]))
    x = g.op("Tanh", g.conv(x, (8, 5, 5), "ConvTranspose", strides=[3], pads=[0, 0], output_padding=[1]))
    return g.conv(x, (3, 5, 3))


def grouped(g: Graph) -> str:
    x = g.conv("x", (8, 2, 3, 3), group=2, dilations=[2, 2], pads=[2] * 4)
    return g.op("Mul", g.op("Sigmoid", x), g.op("ReduceMean", x, axes=[2, 3], keepdims=1))


def row(g: Graph) -> str:
    x = g.op("Relu", g.norm(g.conv("x", (8, 4, 3), strides=[2], pads=[1, 1]), 8))
    x = g.op("MaxPool", g.norm(g.conv(x, (8, 8, 1)), 8), kernel_shape=[2], strides=[2])
    return g.op("Flatten", g.op("GlobalAveragePool", g.conv(x, (6, 8, 3))))


def gated(g: Graph) -> str:
    """Halves of a signal, and every second step from the end but one."""
    x = g.conv("x", (12, 4, 3), pads=[1, 1])
    a, b = (g.op("Slice", x, *(g.const([n], "int64") for n in bounds)) for bounds in ((0, 6, 1), (-6, 12, 1)))
    x = g.conv(g.op("Mul", a, g.op("Sigmoid", b)), (8, 6, 3))
    return g.conv(g.op("Slice", x, *(g.const([n], "int64") for n in (-2, -100, 2, -2))), (3, 8, 3))


def norm_first(g: Graph) -> str:
    return g.conv(g.op("Relu", g.norm("x", 4)), (8, 4, 3, 3))


def shared(g: Graph) -> str:
    x = g.conv("x", (8, 4, 1, 1))
    return g.op("Add", g.norm(x, 8), x)


def filled(g: Graph) -> str:
    """Weights that the file fills with one number, as the light models of ONNX do."""
    quarter = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [0.25])
    x = g.op("Conv", "x", g.op("ConstantOfShape", g.const([8, 4, 3, 3], "int64"), value=quarter), g.random(8))
    return g.conv(g.op("MaxPool", g.op("Relu", x), kernel_shape=[2, 2]), (6, 8, 1, 1))


def shuffled(g: Graph) -> str:
    x = g.op("Relu", g.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    x = g.op("Reshape", x, g.const([1, 2, 4, 8, 6], "int64"))
    x = g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 1, 3, 4]), g.const([1, 8, 8, 6], "int64"))
    return g.conv(x, (6, 8, 3, 3), pads=[1] * 4)


def depth_to_space_and_back(g: Graph) -> str:
    x = g.op("Relu", g.conv(g.op("DepthToSpace", g.conv("x", (8, 4, 3, 3)), blocksize=2), (5, 2, 1, 1)))
    return g.conv(g.op("SpaceToDepth", x, blocksize=2), (3, 20, 1, 1))


def instances_normalized(g: Graph) -> str:
    x = g.op("InstanceNormalization", g.conv("x", (8, 4, 3, 3)), g.random(8), g.random(8))
    return g.conv(g.op("Atan", x), (3, 8, 1, 1))


def groups_normalized(g: Graph) -> str:
    """A GroupNorm as PyTorch exports it."""
    x = g.conv("x", (8, 4, 3, 3), pads=[1] * 4)
    x = g.op("Reshape", x, g.const([0, 2, -1], "int64"))
    x = g.op("InstanceNormalization", x, g.const([1.0, 1.0]), g.const([0.0, 0.0]))
    x = g.op("Reshape", x, g.const([1, 8, 8, 6], "int64"))
    x = g.op("Add", g.op("Mul", x, g.random(8, 1, 1)), g.random(8, 1, 1))
    return g.conv(g.op("Relu", x), (3, 8, 1, 1))


def groups_written_out(g: Graph) -> str:
    """Statistics over three axes of a split image; the second variance is of all, that of each group times its distance."""
    x = g.op("Relu", g.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    x = g.op("Reshape", x, g.const([1, 4, 2, 8, 6], "int64"))
    far = g.op("Sub", x, g.op("ReduceMean", x, axes=[2, 3, 4], keepdims=1))
    variance = g.op("ReduceMean", g.op("Pow", far, g.const(2.0)), axes=[2, 3, 4], keepdims=1)
    x = g.op("Div", far, g.op("Sqrt", g.op("Add", variance, g.const(1e-5))))
    x = g.op("Mul", x, g.op("ReduceMax", g.op("Abs", x), axes=[1, 2, 3, 4], keepdims=1))
    return g.conv(g.op("Reshape", x, g.const([1, 8, 8, 6], "int64")), (3, 8, 1, 1))


def planes_normalized(g: Graph) -> str:
    """A LayerNorm over channels, rows and columns, and one of each plane."""
    x = g.op(
        "LayerNormalization", g.conv("x", (8, 4, 3, 3), pads=[1] * 4), g.random(8, 8, 6), g.random(8, 8, 6), axis=1
    )
    x = g.op("LayerNormalization", g.op("Relu", x), g.random(8, 6), axis=2)
    return g.conv(g.op("Tanh", x), (3, 8, 1, 1))


def steps_normalized(g: Graph) -> str:
    """A GroupNorm of a signal, whose planes another operator reads too."""
    x = g.op("Reshape", g.conv("x", (8, 4, 3), pads=[1, 1]), g.const([1, 4, 64], "int64"))
    y = g.op("InstanceNormalization", x, g.random(4), g.random(4))
    z = g.op(
        "Reshape", g.op("ReduceSum", g.op("CumSum", y, g.const(2, "int64")), keepdims=0), g.const([1, 1, 1], "int64")
    )
    return g.op("Mul", g.conv(g.op("Reshape", y, g.const([1, 8, 32], "int64")), (3, 8, 3)), z)


def split_and_read(g: Graph) -> str:
    """A map in an order of its own that an operator without a rule reads, and a transpose of images in the file."""
    x = g.op("Relu", g.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    y = g.op("Transpose", g.op("Reshape", x, g.const([1, 2, 4, 8, 6], "int64")), perm=[0, 2, 4, 3, 1])
    y = g.op("Reshape", g.op("CumSum", y, g.const(2, "int64")), g.const([1, 24, 8, 2], "int64"))
    x = g.op("Transpose", g.conv(x, (24, 8, 1, 1)), perm=[0, 1, 3, 2])
    return g.op("Concat", g.op("Flatten", y), g.op("Flatten", g.conv(x, (2, 24, 3, 3))), axis=1)


def turned_in_the_file(g: Graph) -> str:
    x = g.op("Transpose", "x", perm=[0, 3, 1, 2])
    return g.op("Transpose", g.conv(x, (8, 4, 3, 3)), perm=[0, 2, 3, 1])


def linear(g: Graph) -> str:
    x = g.op("Relu", g.op("Add", g.op("MatMul", "x", g.random(6, 9)), g.random(9)))
    return g.op("Add", g.op("MatMul", x, g.random(1, 9, 5)), g.random(5))


def flattened(g: Graph) -> str:
    x = g.op("MaxPool", g.op("Relu", g.conv("x", (8, 4, 3, 3))), kernel_shape=[2, 2], strides=[2, 2])
    return g.op("Gemm", g.op("Tanh", g.op("Flatten", x)), g.random(5, 48), g.random(5), transB=1)


def merged_behind_an_axis(g: Graph) -> str:
    x = g.op("Reshape", g.conv("x", (8, 4, 3, 3)), g.const([1, 1, -1], "int64"))
    return g.op("MatMul", x, g.random(192, 5))


def flattened_for_several(g: Graph) -> str:
    """Two products read a merged image, and operators that need the file's order."""
    x = g.op("Flatten", g.conv("x", (8, 4, 3, 3)))
    products = (g.op("Gemm", x, g.random(192, n), g.random(n)) for n in (3, 7))
    back = g.op("Reshape", g.op("Relu", x), g.const([2, 8, 6, 4], "int64"))
    rows = g.op("ReduceMax", g.op("Reshape", x, g.const([2, 48, 4], "int64")), axes=[2], keepdims=0)
    vector = g.op("Mul", g.op("Sigmoid", x), g.random(192))
    return g.op("Concat", *products, g.op("Flatten", g.conv(back, (2, 8, 3, 3))), rows, vector, axis=1)


IMAGE = (1, 4, 8, 6)
NETWORKS = {
    "residual": (residual, IMAGE, {"transpose": 2, "conv2d": 1, "depthwise_conv2d": 1, "relu": 1}),
    "pooled": (pooled, IMAGE, {"transpose": 1, "conv2d": 1, "max_pool2d": 1, "mean": 1, "dense": 1, "softmax": 1}),
    "flattened": (flattened, IMAGE, {"transpose": 1, "conv2d": 1, "max_pool2d": 1, "tir_tanh": 1, "dense": 1}),
    "merged behind an axis": (merged_behind_an_axis, IMAGE, {"transpose": 1, "conv2d": 1, "dense": 1}),
    "flattened for several": (flattened_for_several, (2, 4, 8, 6), None),
    "skips": (skips, IMAGE, None),
    "windows apart": (windows_apart, IMAGE, None),
    "upsampled": (upsampled, (1, 4, 16), None),
    "grouped": (grouped, IMAGE, None),
    "row": (row, (1, 4, 32), {"transpose": 1, "conv2d": 3, "max_pool2d": 1, "mean": 1}),
    "gated": (gated, (1, 4, 32), {"transpose": 2, "conv2d": 3, "strided_slice": 3, "tir_sigmoid": 1}),
    "norm first": (norm_first, IMAGE, {"transpose": 2, "relu": 1, "conv2d": 1}),
    "shared": (shared, IMAGE, {"transpose": 2, "conv2d": 1, "add": 1}),
    "filled": (filled, IMAGE, {"transpose": 2, "conv2d": 2, "max_pool2d": 1}),
    "shuffled": (shuffled, IMAGE, {"transpose": 3, "conv2d": 2}),
    "depth to space and back": (depth_to_space_and_back, IMAGE, {"transpose": 4, "conv2d": 3}),
    "instances normalized": (instances_normalized, IMAGE, None),
    "groups normalized": (groups_normalized, IMAGE, None),
    "groups written out": (groups_written_out, IMAGE, None),
    "planes normalized": (planes_normalized, IMAGE, None),
    "steps normalized": (steps_normalized, (1, 4, 32), None),
    "split and read": (split_and_read, IMAGE, None),
    "linear of rank three": (linear, (2, 7, 6), {"dense": 2}),
    "linear of rank four": (linear, (1, 2, 3, 6), {"dense": 2}),
    "linear of rank one": (linear, (6,), {"dense": 2}),
    "turned in the file": (turned_in_the_file, (1, 8, 6, 4), {"conv2d": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_results_and_kinds(name: str, tmp_path: Path) -> None:
    build, shape, kinds = NETWORKS[name]
    graph = Graph(*shape)
    path = graph.save(tmp_path / "net.onnx", build(graph))
    planned = pipeline.plan(pipeline.load(path), PlanRequest(), KernelSource(KernelTarget()))
    feed = np.random.default_rng(5).standard_normal(shape).astype("float32")
    (have,) = run_plan(planned.prepared, planned.plan, [feed]).outputs
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (want,) = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": feed})
    np.testing.assert_allclose(have.reshape(want.shape), want, rtol=1e-4, atol=1e-5)
    if kinds is not None:
        assert Counter(op.kind for op in planned.plan.graph.ops if not op.view) == kinds


def test_transposed_convolutions_of_signals_take_activations_in(tmp_path: Path) -> None:
    """A convolution for each place in a stride has the activation behind; nothing runs over what is put together."""
    graph = Graph(1, 4, 16)
    path = graph.save(tmp_path / "net.onnx", upsampled(graph))
    main = in_kernel_layout(frontend.load(path))["main"]
    values = {b.var: b.value for b in bindings_of(main)}
    read = [values[b.value.args[0]] for b in bindings_of(main) if name_of(b.value) in ("nn.relu", "tanh")]
    assert [name_of(value) for value in read] == ["add"] * 5
    assert all(name_of(values[value.args[0]]) == "nn.conv2d" for value in read)


@pytest.mark.parametrize("name", ["groups normalized", "groups written out", "planes normalized"])
def test_statistics_of_planes_transpose_no_activation(name: str, tmp_path: Path) -> None:
    """The image of the largest tensor and little more: statistics are a number for each channel."""
    build, shape, _ = NETWORKS[name]
    graph = Graph(*shape)
    path = graph.save(tmp_path / "net.onnx", build(graph))
    kinds = [name_of(b.value) for b in bindings_of(in_kernel_layout(frontend.load(path))["main"])]
    assert kinds.count("permute_dims") == 2  # of the input, and of the output
    largest = 8 * 8 * 6 * 4
    assert largest < tvm_cascade.plan(path).peak_bytes < 1.25 * largest


def test_broadcast_biases_are_taken_in() -> None:
    """PyTorch's exporter writes the missing bias of a convolution as a zero that is broadcast."""
    rng = np.random.default_rng(3)
    numbers = [relax.const(rng.uniform(0.5, 1.5, 8).astype("float32")) for _ in range(4)]
    weights = relax.const(rng.standard_normal((8, 4, 3, 3)).astype("float32"))
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(IMAGE, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            bias = bb.emit(relax.op.reshape(bb.emit(relax.op.broadcast_to(relax.const(0.0), (8,))), (1, 8, 1, 1)))
            made = bb.emit(relax.op.add(bb.emit(relax.op.nn.conv2d(x, weights)), bias))
            norm = bb.emit(relax.op.nn.batch_norm(made, *numbers, axis=1, training=False))
            out = bb.emit_output(relax.TupleGetItem(norm, 0))
        bb.emit_func_output(out)
    kinds = [name_of(b.value) for b in bindings_of(fold_batch_norms(bb.get())["main"])]
    assert "nn.conv2d" in kinds and "nn.batch_norm" not in kinds and "multiply" not in kinds


def test_the_file_layout_stays_outside(tmp_path: Path) -> None:
    graph = Graph(*IMAGE)
    path = graph.save(tmp_path / "net.onnx", residual(graph))
    mod = in_kernel_layout(frontend.load(path))
    io = frontend.io_spec(mod)
    assert (io.inputs[0].shape, io.outputs[0].shape) == (IMAGE, (1, 8, 8, 6))
    assert in_kernel_layout(mod) is mod


def test_rows_where_pixels_do_not_fit(tmp_path: Path) -> None:
    graph = Graph(*IMAGE)
    mod = frontend.load(graph.save(tmp_path / "net.onnx", windows_apart(graph)))
    kinds: list[bool] = []

    def plan(given: object) -> PlannedCandidate:
        kinds.append("conv2d_transpose" in str(given))
        if len(kinds) == 1:
            raise InfeasibleError(2, 1, (), "")
        return plan_network(given)  # type: ignore[arg-type]

    assert planned_in_kernel_layout(mod, plan)[0] is not mod
    assert len(kinds) == 2


def test_modules_without_planes_are_not_changed() -> None:
    for net, shape in ((Net("float32"), (1, 6, 6, 4)), (Net("int8"), (1, 6, 6, 4))):
        mod = net.finish(net.conv(net.input(shape), 4, 3))
        assert in_kernel_layout(mod) is mod


def test_the_file_layout_where_only_that_fits() -> None:
    net = Net("float32", "NCHW")
    mod = net.finish(net.conv(net.input((1, 4, 6, 6)), 4, 3))

    def plan(given: object) -> PlannedCandidate:
        if given is not mod:
            raise InfeasibleError(2, 1, (), "")
        return plan_network(mod)

    assert planned_in_kernel_layout(mod, plan)[0] is mod


@pytest.mark.parametrize("channels", [1, 3])
def test_inputs_of_float_networks_come_row_by_row(tmp_path: Path, channels: int) -> None:
    """Of one channel, whose turn to channels last is a view, and of several."""
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.random.default_rng(0).normal(size=(8, channels, 3, 3)).astype("f4")
    nodes = [
        make.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        make.make_node("Relu", ["c"], ["r"]),
        make.make_node("GlobalAveragePool", ["r"], ["y"]),
    ]
    shapes = {"x": [1, channels, 32, 32], "y": [1, 8, 1, 1]}
    x, y = (make.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items())
    graph = make.make_graph(nodes, "g", [x], [y], [onnx.numpy_helper.from_array(weights, "w")])
    path = tmp_path / "n.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9), path)
    whole, rows = (tvm_cascade.plan(path, stream_input=streamed) for streamed in (False, True))
    assert rows.peak_bytes < whole.peak_bytes / 5
    assert [layer["name"] for layer in rows.to_dict()["layers"]][-2:] == ["r", "y"]
    tvm_cascade.compile(path, target="host", stream_input=True, output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=path).match


def normalized(g: Graph, size: int = 5) -> str:
    x = g.op("Relu", g.conv("x", (16, 3, 3, 3), pads=[1] * 4))
    return g.op("MaxPool", g.op("LRN", x, size=size, alpha=0.3, beta=0.6), kernel_shape=[2, 2], strides=[2, 2])


def spelled_out(g: Graph) -> str:
    """Local response normalization as `torch.export` and `torch.onnx` write it, of an even window."""
    x = g.op("Relu", g.conv("x", (16, 3, 3, 3), pads=[1] * 4))
    deep = g.op("Reshape", g.op("Mul", x, x), g.const([1, 1, 16, 20, 20], "int64"))
    padded = g.op("Pad", deep, g.const([0, 0, 2, 0, 0, 0, 0, 1, 0, 0], "int64"))
    mean = g.op("AveragePool", padded, kernel_shape=[4, 1, 1], strides=[1, 1, 1])
    flat = g.op("Squeeze", mean, g.const([1], "int64"))
    y = g.op("Div", x, g.op("Pow", g.op("Add", g.op("Mul", flat, g.const(0.3)), g.const(1.0)), g.const(0.75)))
    return g.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("made", [normalized, spelled_out])
def test_averages_over_channels_run_row_by_row(tmp_path: Path, made: Callable[[Graph], str]) -> None:
    """Local response normalization between a convolution and a pool: a few rows of it are held, not the image."""
    g = Graph(1, 3, 20, 20)
    path = g.save(tmp_path / "n.onnx", made(g))
    plan = tvm_cascade.plan(path, target="cortex-m4")
    assert plan.peak_bytes < 20 * 20 * 16 * 4
    x = np.random.default_rng(1).standard_normal((1, 3, 20, 20)).astype("float32")
    (ours,), (theirs,) = compiled_outputs(path, {"x": x}, tmp_path / "project"), runtime_outputs(path, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "size, strides, pads, extra, groups, dilations",
    [
        ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, (1, 1)),
        ((4, 4), (2, 2), (1, 1, 1, 1), (0, 0), 1, (1, 1)),
        ((3, 3), (2, 2), (0, 0, 0, 0), (0, 0), 2, (1, 1)),
        ((5, 3), (3, 1), (2, 0, 1, 2), (2, 0), 4, (1, 1)),
        ((3, 5), (1, 2), (2, 2, 2, 2), (0, 1), 1, (1, 1)),
        ((2, 3), (1, 3), (0, 2, 1, 0), (0, 0), 1, (1, 1)),
        ((1, 2), (2, 3), (0, 0, 0, 0), (1, 2), 2, (1, 1)),
        ((3, 2), (2, 4), (1, 2, 1, 0), (0, 0), 1, (3, 2)),
        ((2, 3), (3, 2), (4, 1, 2, 2), (0, 0), 1, (2, 2)),
    ],
)
def test_transposed_convolutions_take_the_kernels_of_convolutions(
    tmp_path: Path,
    size: tuple[int, int],
    strides: object,
    pads: object,
    extra: object,
    groups: int,
    dilations: object,
) -> None:
    """A convolution for each place in a stride: no product with an inserted zero."""
    g = Graph(1, 4, 5, 6)
    how = {"strides": strides, "pads": pads, "output_padding": extra, "group": groups, "dilations": dilations}
    path = g.save(tmp_path / "n.onnx", g.op("Relu", g.op("ConvTranspose", "x", g.random(4, 8 // groups, *size), **how)))
    assert "conv2d_transpose" not in in_kernel_layout(frontend.load(path))["main"].script()
    x = np.random.default_rng(1).standard_normal((1, 4, 5, 6)).astype("float32")
    (ours,), (theirs,) = compiled_outputs(path, {"x": x}, tmp_path / "project"), runtime_outputs(path, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_transposed_convolution_takes_what_a_convolution_takes(tmp_path: Path) -> None:
    cycles = []
    for kind, how in (("Conv", {}), ("ConvTranspose", {"strides": [2, 2], "output_padding": [1, 1]})):
        g = Graph(1, 8, 12, 12)
        path = g.save(tmp_path / f"{kind}.onnx", g.op(kind, "x", g.random(8, 8, 3, 3), pads=[1] * 4, **how))
        layers = tvm_cascade.plan(path, target="cortex-m4").to_dict()["layers"]
        cycles.append(sum(layer["cycles"] for layer in layers if layer["macs"]))
    assert cycles[1] < 1.5 * cycles[0]


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_groups_take_the_kernels_of_convolutions(tmp_path: Path, target: str, emulator: None) -> None:
    """With dilation, strides, a bias and an activation, behind a concat, and at three outputs a group."""
    g = Graph(1, 8, 9, 10)
    x = g.op("Concat", g.op("Relu", g.conv("x", (4, 8, 1, 1))), "x", axis=1)
    x = g.op("Relu", g.conv(x, (16, 3, 3, 3), pads=[1, 0, 2, 1], group=4, strides=[1, 2]))
    x = g.conv(x, (12, 4, 3, 1), dilations=[2, 1], group=4)
    path = g.save(tmp_path / "n.onnx", x)
    x = np.random.default_rng(1).standard_normal((1, 8, 9, 10)).astype("float32")
    (ours,), (theirs,) = compiled_outputs(path, {"x": x}, tmp_path / "fw", target), runtime_outputs(path, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_a_product_in_groups_takes_what_a_product_takes(tmp_path: Path, target: str) -> None:
    taken = []
    for groups in (1, 4):
        g = Graph(1, 32, 12, 12)
        path = g.save(tmp_path / f"{groups}.onnx", g.conv("x", (32, 32 // groups, 3, 3), pads=[1] * 4, group=groups))
        layers = tvm_cascade.plan(path, target=target).to_dict()["layers"]
        (layer,) = [layer for layer in layers if layer["macs"]]
        taken.append(layer["cycles"] / layer["macs"])
    assert taken[1] < 1.6 * taken[0]


@pytest.mark.parametrize("size, pads", [((1, 1), (0, 0, 1, 0)), ((1, 1), (0, 0, 0, 2)), ((2, 1), (0, 0, 2, 1))])
@pytest.mark.parametrize("options", [{}, {"max_time": 1.0}, {"max_macs": 1.5}])
def test_rows_and_columns_that_read_padding_alone(
    tmp_path: Path, size: tuple[int, int], pads: tuple[int, ...], options: dict[str, float]
) -> None:
    """Padding behind the last pixel: outputs that no product adds to, in steps of any shape."""
    g = Graph(1, 4, 5, 4)
    path = g.save(tmp_path / "n.onnx", g.conv("x", (4, 4, *size), pads=pads))
    for target in ("cortex-m4", "cortex-m55"):  # the plan runs beside the network before it is written
        tvm_cascade.compile(path, target=target, output=tmp_path / target, **options)  # type: ignore[arg-type]
