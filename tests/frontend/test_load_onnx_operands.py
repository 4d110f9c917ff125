"""Operators of several operands, odd axes and float constants in quantized ONNX networks: integers, and close."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tvm_cascade.frontend import load
from tvm_cascade.importers.onnx.folding import fold_shapes
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.onnx_layers import Layers
from tvm_cascade.testing.reference import Compiled

_LOWER: Any = LowerQuantized()
_WEIGHTS = np.linspace(-1, 2, 12, dtype="float32").reshape(4, 3)


def _operands(net: Layers, last: bool) -> tuple[str, str, str]:
    """Three tensors of unequal scales, with the channels last or first."""
    x = net.stored("x")
    if last:
        x = net.stored(net.node("Conv", x, net.weight((4, 4, 1, 1), 0)))
    return x, net.stored(net.node("Relu", x), 0.011, -128), net.stored(net.node("Neg", x), 0.015, 7)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["Max", "Min", "Sum"])
def test_of_three(tmp_path: Path, kind: str, last: bool) -> None:
    net = Layers()
    y = net.stored(net.node(kind, *_operands(net, last)), 0.031)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4, 1.6) == []


@pytest.mark.parametrize("kind", ["Max", "Min"])
@pytest.mark.parametrize("scale", [0.02, 0.007])
def test_extremes_with_a_constant_tensor(tmp_path: Path, kind: str, scale: float) -> None:
    """A float constant of the file is quantized to the output's scale; results saturate."""
    net = Layers()
    bound = net.constant(np.random.default_rng(0).uniform(-1, 1, (1, 4, 1, 6)).astype("float32"))
    y = net.stored(net.node(kind, net.stored("x"), bound), scale)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4, scale / 0.02) == []


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mask", ["computed", "constant"])
def test_choices(tmp_path: Path, mask: str, last: bool) -> None:
    net = Layers()
    a, _, b = _operands(net, last)
    chosen = np.random.default_rng(0).random((1, 1, 5, 6)) < 0.5
    test = net.constant(chosen) if mask == "constant" else net.node("Greater", a, net.constant(np.float32(0.1)))
    other = net.constant(np.float32(-0.3)) if last else b
    y = net.stored(net.node("Where", test, net.node("Relu", a) if mask == "relu" else a, other), 0.031)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4, 1.6) == []


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin", "GlobalMaxPool"])
def test_reductions_to_another_scale(tmp_path: Path, kind: str) -> None:
    net = Layers()
    axes = [] if kind == "GlobalMaxPool" else [net.constant(np.array([1], "int64"))]
    y = net.stored(net.node(kind, net.stored("x"), *axes), 0.013, -20)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4, 0.65) == []


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_any_axis(tmp_path: Path, axis: int) -> None:
    """To the scale of its kernels, and to a larger one behind them."""
    for scale, zero in ((1 / 256, -128), (0.006, -100)):
        net = Layers()
        y = net.stored(net.node("Softmax", net.stored("x"), axis=axis), scale, zero)
        assert net.check(tmp_path / "n.onnx", y, (3, 4, 5), 3, scale / 0.02) == []


@pytest.mark.parametrize("kind", ["Gather", "Tile", "Expand"])
@pytest.mark.parametrize("last", [False, True])
def test_moves(tmp_path: Path, kind: str, last: bool) -> None:
    net = Layers()
    a = _operands(net, last)[0]
    if kind == "Gather":
        b = net.node(
            "Gather",
            net.node("Gather", a, net.constant(np.array([2, -1], "int64")), axis=1),
            net.constant(np.int64(1)),
            axis=2,
        )
    elif kind == "Tile":
        b = net.node("Tile", a, net.constant(np.array([1, 2, 1, 3], "int64")))
    else:
        b = net.node(
            "Expand",
            net.stored(net.node("ReduceMax", a, net.constant(np.array([2, 3], "int64")))),
            net.constant(np.array([2, 4, 3, 2], "int64")),
        )
    assert net.check(tmp_path / "n.onnx", net.stored(b), (1, 4, 5, 6), 3 if kind == "Gather" else 4) == []


def _real(net: Layers, shape: tuple[int, ...], axis: int) -> str:
    """Float weights behind a quantize, as fake quantization exports them."""
    data = net.rng.normal(0, 0.3, shape).astype("float32")
    scale = (np.abs(data).max(tuple(a for a in range(len(shape)) if a != axis)) / 127).astype("float32")
    pair = (net.constant(scale), net.constant(np.zeros(scale.shape, "int8")))
    return net.node(
        "DequantizeLinear", net.node("QuantizeLinear", net.constant(data), *pair, axis=axis), *pair, axis=axis
    )


def test_float_weights_and_biases(tmp_path: Path) -> None:
    """Of every product: weights are stored when the file is read, biases in the accumulator's scale."""
    net = Layers()

    def bias(*shape: int) -> str:
        return net.constant(net.rng.normal(0, 0.5, shape).astype("float32"))

    a = net.stored(net.node("Conv", net.stored("x"), _real(net, (6, 4, 3, 3), 0), bias(6)))
    b = net.stored(net.node("ConvTranspose", a, _real(net, (6, 5, 2, 2), 1), bias(5)))
    c = net.stored(net.node("Add", net.node("Conv", b, _real(net, (4, 5, 1, 1), 0)), bias(4, 1, 1)))
    d = net.node("PRelu", c, net.stored(bias(4, 1, 1), 0.02, 0))
    e = net.stored(
        net.node("Gemm", net.node("Flatten", net.stored(d)), _real(net, (7, 64), 0), bias(7), transB=1), 0.05
    )
    y = net.stored(net.node("Add", net.node("MatMul", e, _real(net, (7, 3), 1)), bias(1, 3)), 0.05)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 5), 2, 10) == []


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(4, 1, 1), (1,)])
def test_float_slopes(tmp_path: Path, shape: tuple[int, ...], last: bool) -> None:
    """Of both signs, and zero: multipliers of their own."""
    net = Layers()
    slopes = np.array([0.25, -0.7, 0.0, 1.3], "float32")[: np.prod(shape)].reshape(shape)
    y = net.stored(net.node("PRelu", _operands(net, last)[0], net.constant(slopes)), 0.031, -5)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4, 2.1 if last else 1.6) == []


@pytest.mark.parametrize("shape", [(5, 5), (1, 5, 1), (2, 3, 5, 5)])
def test_what_is_added_to_a_product_and_is_no_bias(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A mask of attention, a constant by row: as in the file."""
    net = Layers()
    a = net.stored("x")
    b = net.stored(net.node("Transpose", a, perm=[0, 1, 3, 2]))
    mask = net.constant(np.random.default_rng(0).normal(size=shape).astype("float32"))
    y = net.stored(net.node("Add", net.node("MatMul", a, b), mask), 0.1)
    net.check(tmp_path / "n.onnx", y, (2, 3, 5, 4), 4, 5)


def test_a_bias_beyond_the_accumulator_stays_float(tmp_path: Path) -> None:
    net = Layers()
    w = net.node(
        "DequantizeLinear",
        net.constant(np.ones((4, 3), "int8")),
        net.constant(np.float32(1e-12)),
        net.constant(np.int8(0)),
    )
    y = net.stored(net.node("Gemm", net.stored("x"), w, net.constant(np.array([1, -1, 0.5], "float32"))))
    assert "add" in net.check(tmp_path / "n.onnx", y, (2, 4), 2, 0.01)


def test_a_power_of_another_type(tmp_path: Path) -> None:
    net = Layers()
    y = net.stored(net.node("Pow", net.stored("x"), net.constant(np.int64(2))), 0.05)
    assert net.check(tmp_path / "n.onnx", y, (3, 4), 2, 2.5) == []


def test_clips_by_one_bound(tmp_path: Path) -> None:
    net = Layers()
    a = net.node("Clip", net.stored("x"), net.constant(np.float32(-0.5)))
    b = net.node("Clip", net.stored(a), "", net.stored(net.constant(np.float32(0.7))))
    assert net.check(tmp_path / "n.onnx", net.stored(b), (3, 4), 2, 0.01) == []
    assert len(float_remains(_LOWER(load(tmp_path / "n.onnx")))) == 1
    assert Compiled(load(tmp_path / "n.onnx"))(np.full((3, 4), 9, "float32"))[0].max() == np.float32(0.7)


def test_sizes_that_the_graph_computes(tmp_path: Path) -> None:
    """As PyTorch's exporters write `view(n, -1, h * w)` for sizes that `--input-shape` fixes."""
    import onnx

    net = Layers()
    height, width = (net.node("Squeeze", net.node("Shape", "x", start=k, end=k + 1)) for k in (2, 3))
    one = net.constant(np.array([-1], "int64"))
    area = net.node("Reshape", net.node("Mul", height, width), one)
    sizes = net.node("Concat", net.node("Shape", "x", end=1), one, area, axis=0)
    y = net.stored(net.node("Reshape", net.stored(net.node("Relu", "x")), sizes))
    net.save(tmp_path / "n.onnx", y, (1, 4, 5, 6), 3)
    model = onnx.load(tmp_path / "n.onnx")
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"d{axis}"
    onnx.save(model, tmp_path / "n.onnx")
    run = Compiled(_LOWER(load(tmp_path / "n.onnx", {"x": (1, 4, 3, 7)})))
    assert run(np.zeros((1, 4, 3, 7), "float32"))[0].shape == (1, 4, 21)


def test_sizes_that_are_known_block_after_block(tmp_path: Path) -> None:
    """As TorchScript writes windows of images: each block pads by widths that it turns around, and asks for the size."""
    net, x = Layers(), "x"
    for _ in range(10):
        widths = net.constant(np.array([[0, 0], [0, 1], [0, 0], [0, 0]]))  # before, after
        turned = net.node("Reshape", net.node("Transpose", widths, perm=[1, 0]), net.constant(np.array([8])))
        padded = net.node("Pad", x, turned)
        extent = net.node("Gather", net.node("Shape", padded), net.constant(np.array(1)))
        halves = net.node("Div", net.node("Mul", extent, net.constant(np.array(2))), net.constant(np.array(2)))
        wide = net.node("Unsqueeze", net.node("Cast", halves, to=7), net.constant(np.array([0])))
        size = net.node("Concat", net.constant(np.array([1])), wide, net.constant(np.array([2, 2])), axis=0)
        x = net.node("Reshape", padded, size)
    net.save(tmp_path / "n.onnx", x, (1, 3, 2, 2), 4)
    folded = fold_shapes(onnx.load(tmp_path / "n.onnx"), {"x": (1, 3, 2, 2)})
    assert {n.op_type for n in folded.graph.node} == {"Pad", "Reshape"}
    data = np.arange(12, dtype="float32").reshape(1, 3, 2, 2)
    (made,) = Compiled(load(tmp_path / "n.onnx"))(data)
    np.testing.assert_array_equal(made, np.concatenate([data, np.zeros((1, 10, 2, 2), "float32")], 1))


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "Softmax"])
@pytest.mark.parametrize("scale", [1 / 32767, 1e-3])
def test_functions_of_sixteen_bits(tmp_path: Path, kind: str, scale: float) -> None:
    """To scales that their kernels have not: within two steps of 65536. A softmax of real numbers is computed in floats."""
    net = Layers()

    def pair(step: float) -> tuple[str, str]:
        return net.constant(np.float32(step)), net.constant(np.int16(0))

    a, b = pair(2**-12), pair(scale)
    x = net.node("DequantizeLinear", net.node("QuantizeLinear", "x", *a), *a)
    y = net.node("DequantizeLinear", net.node("QuantizeLinear", net.node(kind, x), *b), *b)
    net.save(tmp_path / "n.onnx", y, (3, 40), 2)
    lowered = _LOWER(load(tmp_path / "n.onnx"))
    floats = {r.operator for r in float_remains(lowered)}
    assert floats == ({"dequantize", "relax.nn.softmax"} if kind == "Softmax" else {"dequantize"})
    given = np.random.default_rng(0).uniform(-6, 6, (3, 40)).astype("float32")
    real = np.rint(given * 4096) / 4096
    grown = np.exp(real)
    want = {"Sigmoid": grown / (1 + grown), "Tanh": np.tanh(real), "Softmax": grown / grown.sum(1, keepdims=True)}[kind]
    assert np.abs(Compiled(lowered)(given)[0] - np.clip(want, -32768 * scale, 32767 * scale)).max() < 2.5 * scale


def test_a_dequantize_of_floats_is_no_island(tmp_path: Path) -> None:
    """As no file should have it: the convolution stays float, and nothing asks for the range of its type."""
    net = Layers()
    pair = (net.constant(np.float32(0.02)), net.constant(np.int8(0)))
    weights = net.weight((4, 4, 1, 1), 0)
    y = net.stored(
        net.node("Conv", net.node("DequantizeLinear", "x", *pair), weights, net.constant(np.ones(4, "float32")))
    )
    net.save(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4)
    assert "relax.nn.conv2d" in {r.operator for r in float_remains(_LOWER(load(tmp_path / "n.onnx")))}


@pytest.mark.parametrize("computed", [False, True])
def test_constants_quantized_by_scales_of_their_own(tmp_path: Path, computed: bool) -> None:
    """DynamicQuantizeLinear of weights and its scale times a constant: constants before anything looks at scales."""
    net = Layers()
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [net.constant(_WEIGHTS)], ["q", "s", "z"]))
    scale = net.node("Mul", net.node("Add", "s", net.constant(np.float32(0.5))), "s") if computed else "s"
    y = net.node("MatMul", "x", net.node("DequantizeLinear", "q", scale, "z"))
    net.save(tmp_path / "n.onnx", y, (1, 4), 2)
    x = np.array([[0.5, -1, 2, 0.25]], "float32")
    want: Any = ReferenceEvaluator(str(tmp_path / "n.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(Compiled(load(tmp_path / "n.onnx"))(x)[0], want[0], rtol=1e-5)
    assert [o.kind for o in extract_graph(_LOWER(load(tmp_path / "n.onnx"))).graph.ops] == ["matmul"]
