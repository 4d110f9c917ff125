"""Forms of ONNX's operators that Relax's importer leaves out: right, or refused by name with the remedy."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from tvm_cascade.checking.doctor import diagnose
from tvm_cascade.checking.reference import reference_outputs
from tvm_cascade.errors import CascadeError, LoadError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.importers.limits import check_types
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.onnx_layers import Layers
from tvm_cascade.testing.onnx_nodes import check_network
from tvm_cascade.testing.reference import Compiled

_LOWER: Any = LowerQuantized()


def _network(net: Layers, path: Path, result: str, shape: tuple[int, ...], opset: int = 19, dtype: int = 1) -> None:
    x, y = helper.make_tensor_value_info("x", dtype, shape), onnx.ValueInfoProto(name=result)
    graph = helper.make_graph(net.nodes, "g", [x], [y], net.weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


_SHAPE = (2, 4, 3)
_X = np.arange(24, dtype="float32").reshape(_SHAPE) / 10
_PAIRS = np.array([[[1, 2], [0, 0]], [[-1, 0], [2, 1]]])  # of rows and columns, for each of two batches
_GATHERS = [
    ("Gather", np.int64(-1), {"axis": 1}, _X[:, -1]),
    ("Gather", np.array([[0, -1], [2, 1]]), {"axis": 1}, _X[:, [[0, -1], [2, 1]]]),
    ("GatherElements", np.array([[[0, -1, 1]]]), {"axis": 1}, np.take_along_axis(_X[:1], np.array([[[0, 3, 1]]]), 1)),
    ("GatherND", np.array([[0, -1], [1, 2]]), {}, _X[[0, 1], [3, 2]]),
    ("GatherND", np.array([[1], [-1]]), {"batch_dims": 1}, _X[[0, 1], [1, 3]]),
    ("GatherND", _PAIRS, {"batch_dims": 1}, _X[[[0], [1]], [[1, 0], [3, 2]], [[2, 0], [0, 1]]]),
]


@pytest.mark.parametrize(("kind", "indices", "how", "want"), _GATHERS)
@pytest.mark.parametrize("quantized", [False, True])
def test_gathers_by_constant_indices(
    tmp_path: Path, kind: str, indices: Any, how: dict[str, Any], want: np.ndarray, quantized: bool, capfd: Any
) -> None:
    """Of int64, as every exporter writes them: a graph that kernels can be cut from, with ONNX's elements, and without
    a word of TVM's."""
    net = Layers()
    x = net.stored("x", 0.1, 0) if quantized else "x"
    y = net.node(kind, x, net.constant(np.asarray(indices, "int64")), **how)
    _network(net, tmp_path / "n.onnx", net.stored(y, 0.1, 0) if quantized else y, _SHAPE)
    lowered = _LOWER(load(tmp_path / "n.onnx"))
    assert len(extract_graph(lowered).graph.outputs) == 1
    assert capfd.readouterr() == ("", "")
    np.testing.assert_allclose(Compiled(lowered)(_X)[0], want, atol=1e-6)
    if quantized and kind == "Gather":
        assert [r.operator for r in float_remains(lowered)] == ["dequantize"]


@pytest.mark.parametrize("axes", [[2, 3], [-1]])
@pytest.mark.parametrize("name", ["scales", "sizes"])
def test_resizes_of_some_axes(tmp_path: Path, axes: list[int], name: str) -> None:
    net = Layers()
    given = [2.0, 3.0][-len(axes) :] if name == "scales" else [10, 21][-len(axes) :]
    operands = (
        ["", net.constant(np.array(given, "float32"))] if name == "scales" else ["", "", net.constant(np.array(given))]
    )
    _network(net, tmp_path / "n.onnx", net.node("Resize", "x", *operands, mode="nearest", axes=axes), (1, 2, 5, 7))
    x = np.random.default_rng(0).uniform(-1, 1, (1, 2, 5, 7)).astype("float32")
    want = x.repeat(3, 3) if len(axes) == 1 else x.repeat(2, 2).repeat(3, 3)
    np.testing.assert_array_equal(Compiled(load(tmp_path / "n.onnx"))(x)[0], want)


@pytest.mark.parametrize("by", [(2, 3), (1.5, 1.3)])
@pytest.mark.parametrize(("kind", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_upsample(tmp_path: Path, kind: str, opset: int, by: tuple[float, float]) -> None:
    """Its scales are an operand since opset 9, and it is called Resize in opset 10; its pixels are those whose corner is
    nearest before."""
    net = Layers()
    y = net.node(kind, "x", net.constant(np.array([1, 1, *by], "float32")), mode="nearest")
    _network(net, tmp_path / "n.onnx", y, (1, 2, 5, 7), opset=opset)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 2, 5, 7)).astype("float32")
    rows, columns = (np.floor(np.arange(int(d * s)) / s).astype(int) for d, s in zip((5, 7), by, strict=True))
    np.testing.assert_array_equal(Compiled(load(tmp_path / "n.onnx"))(x)[0], x[:, :, rows][..., columns])


@pytest.mark.parametrize("axes", [{"axes": [3, -2]}, {}])
def test_slices_whose_bounds_are_attributes(tmp_path: Path, axes: dict[str, Any]) -> None:
    """As files of opset 9 have them; bounds reach beyond the ends, and count from behind."""
    net, most = Layers(), np.iinfo("int64").max
    bounds = ([-3, 1], [most, -1]) if axes else ([0, 1, -9], [1, 5, 4])
    y = net.node("Slice", "x", starts=bounds[0], ends=bounds[1], **axes)
    _network(net, tmp_path / "n.onnx", y, (1, 2, 5, 7), opset=9)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 2, 5, 7)).astype("float32")
    want = x[:, :, 1:-1, -3:] if axes else x[:, 1:, :4]
    np.testing.assert_array_equal(Compiled(load(tmp_path / "n.onnx"))(x)[0], want)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("sizes", {"mode": "linear", "antialias": 1}),
        ("scales", {"mode": "cubic", "antialias": 1, "exclude_outside": 1}),
        ("sizes", {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"}),
        ("scales", {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}),
        ("scales", {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}),
        ("scales", {"mode": "linear"}),
    ],
)
def test_resizes_of_other_forms(tmp_path: Path, name: str, how: dict[str, Any]) -> None:
    """Those that TVM's resize has not, or by scales that give no whole size, as ONNX's own evaluator computes them."""
    net = Layers()
    given = [1, 1, 0.7, 1.6] if name == "scales" else [1, 2, 3, 4]
    operand = net.constant(np.array(given, "float32" if name == "scales" else "int64"))
    y = net.node("Resize", "x", *(["", operand] if name == "scales" else ["", "", operand]), **how)
    _network(net, tmp_path / "n.onnx", y, (1, 2, 5, 7))
    x = np.random.default_rng(0).uniform(-1, 1, (1, 2, 5, 7)).astype("float32")
    want: Any = ReferenceEvaluator(str(tmp_path / "n.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(Compiled(load(tmp_path / "n.onnx"))(x)[0], want[0], atol=1e-5)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize"}, "coordinates of tf_crop"),
        ({"mode": "mean"}, "mode mean"),
    ],
)
def test_resizes_of_other_forms_are_refused(tmp_path: Path, how: dict[str, Any], said: str, capfd: Any) -> None:
    """In one error, and nothing from TVM."""
    net = Layers()
    y = net.node("Resize", "x", "", "", net.constant(np.array([1, 2, 3, 4])), antialias=1, **how)
    _network(net, tmp_path / "n.onnx", y, (1, 2, 5, 7))
    with pytest.raises(LoadError, match=f"operator Resize .*: .*{said}"):
        load(tmp_path / "n.onnx")
    assert capfd.readouterr() == ("", "")


def _softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "shape", "axis"),
    [("Add", (4,), 1), ("Mul", (2, 4), 0), ("Sub", (3,), None), ("Div", (1,), 1), ("Pow", (4, 3), 1)],
)
def test_second_operands_of_opset_6_stand_at_their_axis(
    tmp_path: Path, kind: str, shape: tuple[int, ...], axis: int | None
) -> None:
    net, other = Layers(), np.arange(1, 1 + np.prod(shape), dtype="float32").reshape(shape)
    how = {} if axis is None else {"axis": axis}
    _network(net, tmp_path / "n.onnx", net.node(kind, "x", net.constant(other), broadcast=1, **how), _SHAPE, opset=6)
    aligned = other if axis is None or other.size == 1 else other.reshape(*shape, *[1] * (3 - axis - len(shape)))
    compute: Any = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract, "Div": np.divide, "Pow": np.power}[kind]
    np.testing.assert_allclose(Compiled(load(tmp_path / "n.onnx"))(_X)[0], compute(_X, aligned), rtol=1e-5)


def test_second_operands_of_other_shapes_at_an_axis_are_refused(tmp_path: Path) -> None:
    net = Layers()
    y = net.node("Add", "x", net.constant(np.ones(3, "float32")), broadcast=1, axis=1)
    _network(net, tmp_path / "n.onnx", y, _SHAPE, opset=6)
    with pytest.raises(
        LoadError, match=r"operator Add is malformed: .*shape \[3\] at axis 1 of one of shape \[2, 4, 3\]"
    ):
        load(tmp_path / "n.onnx")


def test_a_cast_to_an_unknown_type_says_so(tmp_path: Path) -> None:
    net = Layers()
    _network(net, tmp_path / "n.onnx", net.node("Cast", "x", to=40), _SHAPE)
    with pytest.raises(LoadError, match="operator Cast is malformed: there is no element type 40"):
        load(tmp_path / "n.onnx")


def test_average_pools_of_opset_6_leave_padding_out(tmp_path: Path) -> None:
    """ "Divided by the number of elements exclude pad", as `count_include_pad` of opset 7 says by default."""
    net = Layers()
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    _network(net, tmp_path / "n.onnx", net.node("AveragePool", "x", **pool), (1, 1, 3, 3), opset=6)
    x = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    want = [[(0 + 1 + 3 + 4) / 4, (1 + 2 + 4 + 5) / 4], [(3 + 4 + 6 + 7) / 4, (4 + 5 + 7 + 8) / 4]]
    np.testing.assert_allclose(Compiled(load(tmp_path / "n.onnx"))(x)[0], np.array([[want]], "float32"), rtol=1e-6)


@pytest.mark.parametrize(("opset", "axes"), [(11, (1, 2)), (13, (1,))])
def test_softmax_of_its_own_opset(tmp_path: Path, opset: int, axes: tuple[int, ...]) -> None:
    """ONNX Runtime's operator says by itself along which axes it sums."""
    net = Layers()
    pair = net.constant(np.float32(0.1)), net.constant(np.uint8(3))
    out = net.constant(np.float32(1 / 256)), net.constant(np.uint8(0))
    how: dict[str, Any] = {"domain": "com.microsoft", "axis": 1, "opset": opset}
    y = net.node("QLinearSoftmax", net.node("QuantizeLinear", "x", *pair), *pair, *out, **how)
    _network(net, tmp_path / "n.onnx", net.node("DequantizeLinear", y, *out), _SHAPE)
    off = Compiled(_LOWER(load(tmp_path / "n.onnx")))(_X)[0] - _softmax(_X, axes)
    assert np.abs(off).max() <= 1.5 / 256


def _dynamic(net: Layers) -> str:
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]))
    return net.node("DequantizeLinear", "q", "s", "z")


@pytest.mark.parametrize(
    ("build", "dtype", "kind", "said"),
    [
        (_dynamic, 1, LoadError, "quantized dynamically, .* quantize it statically"),
    ],
)
def test_doctor_finds_what_plan_refuses(
    tmp_path: Path, build: Any, dtype: int, kind: type[CascadeError], said: str
) -> None:
    net = Layers()
    _network(net, tmp_path / "n.onnx", build(net), _SHAPE, dtype=dtype)
    with pytest.raises(kind, match=said):
        extract_graph(_LOWER(load(tmp_path / "n.onnx")))
    with pytest.raises(kind, match=said):
        diagnose(tmp_path / "n.onnx")


def test_weights_of_half_floats_are_no_obstacle(tmp_path: Path) -> None:
    net = Layers()
    weight = net.node("Cast", net.constant(np.array([1, 2, 3], "float16")), to=1)
    _network(net, tmp_path / "n.onnx", net.node("Mul", "x", weight), _SHAPE)
    np.testing.assert_allclose(
        Compiled(load(tmp_path / "n.onnx"))(_X)[0], _X * np.array([1, 2, 3], "float32"), rtol=1e-6
    )


@pytest.mark.parametrize(("half", "kind"), [(10, "float16"), (16, "bfloat16")])
def test_networks_of_half_floats_are_read_as_float32(tmp_path: Path, half: int, kind: str) -> None:
    net = Layers()
    assert onnx.TensorProto.DataType.Name(half) == kind.upper()
    small = helper.make_tensor("w", half, [3], [0.1, -2.0, 3.0])
    net.weights.append(small)
    fill = net.node("ConstantOfShape", net.constant(np.array([3])), value=helper.make_tensor("v", half, [1], [0.5]))
    net.nodes.append(helper.make_node("Constant", [], ["three"], value=helper.make_tensor("c", half, [], [3.0])))
    wide = net.node("Cast", net.node("Mul", "x", "three"), to=1)
    y = net.node("Add", net.node("Mul", net.node("Cast", wide, to=half), "w"), fill)
    _network(net, tmp_path / "n.onnx", y, _SHAPE, dtype=half)
    mod = load(tmp_path / "n.onnx")
    assert [s.dtype for s in (*io_spec(mod).inputs, *io_spec(mod).outputs)] == ["float32"] * 2
    stored = onnx.numpy_helper.to_array(small).astype("float32")
    np.testing.assert_allclose(Compiled(mod)(_X)[0], _X * 3 * stored + 0.5, rtol=1e-6)
    (made,) = reference_outputs(tmp_path / "n.onnx", {"x": _X}).outputs.values()
    np.testing.assert_allclose(made, _X * 3 * stored + 0.5, rtol=1e-6)


def test_half_floats_of_other_sources_are_refused() -> None:
    kind: Any = relax.TensorType
    x = relax.Var("x", kind([2], "float16"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        bb.emit_func_output(x)
    with pytest.raises(LoadError, match=r"tensor x is float16, .* convert the model to float32"):
        check_types("m.pt2", bb.finalize())


@pytest.mark.parametrize(
    "name", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT6E2M3", "FLOAT6E3M2", "FLOAT4E2M1", "INT4", "UINT2"]
)
def test_short_types_are_refused_by_name(tmp_path: Path, name: str) -> None:
    kind = getattr(onnx.TensorProto, name, None)
    if kind is None:
        pytest.skip(f"this onnx has no {name}")
    nodes = [helper.make_node("Cast", ["x"], ["short"], to=kind), helper.make_node("Cast", ["short"], ["y"], to=1)]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 8]) for n in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 25)]
    )
    onnx.save(model, tmp_path / "n.onnx")
    with pytest.raises(LoadError, match=rf"tensor short is {name.lower()[:5]}\w*, which has no kernels"):
        load(tmp_path / "n.onnx")


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("quantized", [False, True])
def test_swish(tmp_path: Path, alpha: float, quantized: bool) -> None:
    """As ONNX defines it; of stored integers a table, so that only the network's output is a float."""
    net = Layers()
    x = net.stored("x", 0.1, 0) if quantized else "x"
    y = net.node("Swish", x, alpha=alpha)
    _network(net, tmp_path / "n.onnx", net.stored(y, 0.1, 0) if quantized else y, _SHAPE, opset=24)
    lowered = _LOWER(load(tmp_path / "n.onnx"))
    assert not quantized or [r.operator for r in float_remains(lowered)] == ["dequantize"]
    data = np.linspace(-6, 6, 24, dtype="float32").reshape(_SHAPE)
    data = np.rint(data / 0.1).astype("float32") * np.float32(0.1)
    want = data / (1 + np.exp(-alpha * data))
    np.testing.assert_allclose(Compiled(lowered)(data)[0], want, atol=0.05001 if quantized else 1e-5)


@pytest.mark.parametrize("axis", [0, -1])
def test_the_axis_of_unsqueeze_may_be_a_scalar(tmp_path: Path, axis: int) -> None:
    """As torch exports attention with fewer heads of keys than of queries; ONNX Runtime takes it."""
    net = Layers()
    _network(net, tmp_path / "n.onnx", net.node("Unsqueeze", "x", net.constant(np.array(axis))), (2, 3))
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(Compiled(load(tmp_path / "n.onnx"))(x)[0], np.expand_dims(x, axis))


@pytest.mark.parametrize(("kind", "compute"), [("Mul", np.multiply), ("Sub", np.subtract), ("Max", np.maximum)])
def test_two_parts_of_a_split_are_operands(tmp_path: Path, kind: str, compute: Any) -> None:
    net = Layers()
    net.nodes.append(helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2))
    half = net.node("Mul", "a", net.constant(np.float32(0.5)))
    _network(net, tmp_path / "n.onnx", net.node("Add", half, net.node(kind, "a", "b")), (1, 4, 3))
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(1, 4, 3)
    wanted = x[:, :2] * 0.5 + compute(x[:, :2], x[:, 2:])
    np.testing.assert_allclose(Compiled(load(tmp_path / "n.onnx"))(x)[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("opset", [10, 16])
def test_boxes_are_scaled_before_half_a_pixel_is_taken_off(tmp_path: Path, opset: int) -> None:
    """By every scale, ratio and transformation; TVM's importer takes half a pixel off unscaled boxes."""
    rng, nodes = np.random.default_rng(0), []
    for scale, ratio in product((1.0, 0.25, 0.5, 2.0), (1, 3)):
        how: dict[str, Any] = {"spatial_scale": scale, "sampling_ratio": ratio, "output_height": 2, "output_width": 3}
        for mode in ("half_pixel", "output_half_pixel", None) if opset >= 16 else (None,):
            how |= {} if mode is None else {"coordinate_transformation_mode": mode}
            nodes.append(helper.make_node("RoiAlign", ["x", "boxes", "lines"], [f"y{len(nodes)}"], **how))
            how.pop("coordinate_transformation_mode", None)
    boxes = np.array([[0, 0, 5, 4], [1.3, 2.2, 6.5, 7.1], [3, 1, 3.5, 1.25]], "float32")
    inputs = {"x": rng.standard_normal((2, 3, 7, 8)).astype("float32"), "boxes": boxes}
    lines = {"lines": np.array([0, 1, 1])}
    check_network(tmp_path, nodes, inputs, [f"y{k}" for k in range(len(nodes))], lines, opset)


def test_products_of_computed_vectors_and_matrices(tmp_path: Path) -> None:
    shapes = [
        ((2,), (2, 4)),
        ((3, 5), (5,)),
        ((5,), (5,)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 3)),
        ((2, 1, 3, 4), (3, 4, 2)),
    ]
    rng, inputs = np.random.default_rng(0), {}
    for k, pair in enumerate(shapes):
        inputs |= {f"{side}{k}": rng.standard_normal(s).astype("float32") for side, s in zip("ab", pair, strict=True)}
    nodes = [helper.make_node("MatMul", [f"a{k}", f"b{k}"], [f"y{k}"]) for k in range(len(shapes))]
    check_network(tmp_path, nodes, inputs, [f"y{k}" for k in range(len(shapes))])
