"""Single layers as PyTorch users write them, quantized in ONNX: integers where they have a form, and close either way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.onnx_layers import Layers
from tvm_cascade.testing.reference import Compiled

_LOWER: Any = LowerQuantized()


def test_convolutions_of_rank_three(tmp_path: Path) -> None:
    net = Layers()
    a = net.node("Conv", net.stored("x"), net.weight((6, 4, 3), 0), pads=[1, 2], strides=[2])
    a = net.stored(net.node("Relu", a))
    b = net.stored(net.node("MaxPool", a, kernel_shape=[2], strides=[2]))
    b = net.node("Conv", b, net.weight((8, 3, 2), 0), group=2, dilations=[2])
    c = net.stored(net.node("Concat", net.stored(b), net.stored(net.node("Tanh", net.stored(b))), axis=1))
    d = net.stored(net.node("ConvTranspose", c, net.weight((16, 5, 4), 1), strides=[2], pads=[1, 1]))
    e = net.stored(net.node("Add", d, net.stored(net.node("GlobalAveragePool", d))))
    y = net.stored(net.node("MatMul", net.node("Flatten", e), net.weight((60, 3))), 0.1)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 31), 2, 10) == []


@pytest.mark.parametrize(
    ("shape", "axis", "groups", "extra"),
    [
        ((6, 5, 3, 3), 1, 1, {"strides": [2, 2], "output_padding": [1, 0]}),
        ((6, 1, 4, 2), None, 6, {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
        ((6, 5, 3, 2), 1, 1, {"dilations": [2, 3]}),
    ],
)
def test_transposed_convolutions(
    tmp_path: Path, shape: tuple[int, ...], axis: int | None, groups: int, extra: dict[str, Any]
) -> None:
    net = Layers()
    a = net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1, 1), 0)))
    y = net.stored(net.node("ConvTranspose", a, net.weight(shape, axis), group=groups, **extra))
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4) == []


def test_a_transposed_convolution_in_groups_is_the_dense_one_with_zeros(tmp_path: Path) -> None:
    """Bit for bit; ONNX's evaluator knows groups of one channel only."""
    weights = np.random.default_rng(1).integers(-127, 128, (6, 2, 3, 3)).astype("int8")
    dense = np.zeros((3, 2, 3, 2, 3, 3), "int8")
    for group in range(3):
        dense[group, :, group] = weights.reshape(3, 2, 2, 3, 3)[group]
    results = []
    for data, groups in ((weights, 3), (dense.reshape(6, 6, 3, 3), 1)):
        net = Layers()
        pair = (net.constant(np.float32(0.004)), net.constant(np.int8(0)))
        kernel = net.node("DequantizeLinear", net.constant(data), *pair)
        y = net.stored(net.node("ConvTranspose", net.stored("x"), kernel, group=groups, strides=[2, 1]))
        net.save(tmp_path / "n.onnx", y, (1, 6, 5, 4), 4)
        lowered = _LOWER(load(tmp_path / "n.onnx"))
        assert [r.operator for r in float_remains(lowered)] == ["dequantize"]
        results.append(Compiled(lowered)(np.random.default_rng(2).uniform(-2, 2, (1, 6, 5, 4)).astype("float32"))[0])
    np.testing.assert_array_equal(*results)


def test_a_transposed_convolution_with_scales_along_its_inputs_stays_float(tmp_path: Path) -> None:
    """As PT2E's quantizers give them, with as many outputs as inputs: no integer kernel multiplies by them."""
    net = Layers()
    a = net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1, 1), 0)))
    y = net.stored(net.node("ConvTranspose", a, net.weight((6, 6, 3, 3), 0), strides=[2, 2]))
    left = net.check(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4)
    assert left.count("nn.conv2d") == 4 and "nn.conv2d_transpose" not in left  # a convolution for every phase


def test_a_softmax_of_another_scale_than_its_kernels_write(tmp_path: Path) -> None:
    """To steps that are no power of two."""
    net = Layers()
    y = net.stored(net.node("Softmax", net.stored("x"), axis=-1), 0.003)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 8), 4, 0.15) == []


def _resized(net: Layers, x: str, **how: Any) -> str:
    sizes = net.constant(np.array([1, 6, 13, 4], "int64"))
    return net.node("Resize", x, "", "", sizes, mode="nearest", **how)


@pytest.mark.parametrize("kind", ["softmax", "reduce", "resize"])
def test_along_and_across_channels(tmp_path: Path, kind: str) -> None:
    net = Layers()
    a = net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1, 1), 0)))
    if kind == "softmax":
        pair = (net.constant(np.float32(1 / 256)), net.constant(np.int8(-128)))
        y = net.node("DequantizeLinear", net.node("QuantizeLinear", net.node("Softmax", a, axis=1), *pair), *pair)
    elif kind == "reduce":
        highest = net.stored(net.node("ReduceMax", a, net.constant(np.array([1], "int64")), keepdims=1))
        y = net.stored(net.node("ReduceMean", highest, net.constant(np.array([1, 3], "int64")), keepdims=0))
    else:
        y = net.stored(_resized(net, a, coordinate_transformation_mode="asymmetric", nearest_mode="floor"))
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 8), 3 if kind == "reduce" else 4) == []


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
def test_an_extreme_that_is_not_stored_is_that_of_integers(tmp_path: Path, kind: str) -> None:
    """As PT2E's quantizers leave a maximum over time, and join it with a mean."""
    net = Layers()
    a = net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1, 1), 0)))
    axes = net.constant(np.array([2, 3], "int64"))
    mean = net.stored(net.node("ReduceMean", a, axes, keepdims=0))
    y = net.stored(net.node("Concat", mean, net.node(kind, a, axes, keepdims=0), axis=1))
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 8), 2) == []


def test_a_pool_of_floats_is_one_of_what_it_is_stored_as(tmp_path: Path) -> None:
    """As PT2E's quantizers leave pools of one dimension: behind an input, and behind what is joined. Exact."""
    net = Layers()
    pooled = net.stored(net.node("MaxPool", "x", kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4), 0.019, -2)
    parts = [net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1, 1), 0)), 0.03) for _ in range(2)]
    joined = net.node("Concat", *parts, axis=1)
    other = net.stored(net.node("MaxPool", joined, kernel_shape=[2, 2], strides=[2, 2]), 0.04, 5)
    flat = net.stored(net.node("Concat", net.node("Flatten", pooled), net.node("Flatten", other), axis=1), 0.04, 5)
    assert net.check(tmp_path / "n.onnx", flat, (1, 4, 6, 8), 2, 2) == []
    alone = Layers()
    y = alone.stored(alone.node("MaxPool", "x", kernel_shape=[3], strides=[2]), 0.019, -2)
    assert alone.check(tmp_path / "n.onnx", y, (1, 4, 16), 3, 0) == []


@pytest.mark.parametrize("kept", [0, 1])
def test_a_mean_of_what_is_joined_is_that_of_each_part(tmp_path: Path, kept: int) -> None:
    net = Layers()
    parts = [net.stored(net.node("Conv", net.stored("x"), net.weight((n, 4, 1), 0)), 0.01 * n) for n in (2, 3)]
    joined = net.node("Concat", *parts, axis=1)
    y = net.stored(net.node("ReduceMean", joined, net.constant(np.array([2], "int64")), keepdims=kept), 0.015)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 16), 2 + kept) == []


def test_a_concat_that_is_stored_stores_its_parts(tmp_path: Path) -> None:
    """A part that is computed in floats is stored by its own operator."""
    net = Layers()
    a = net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1), 0)))
    y = net.stored(net.node("Concat", net.node("Sigmoid", a), net.node("Tanh", a), axis=1), 0.01, 0)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 16), 3) == []


def test_a_resize_that_rounds_otherwise_gathers_its_pixels(tmp_path: Path) -> None:
    net = Layers()
    a = net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1, 1), 0)))
    half = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
    assert net.check(tmp_path / "n.onnx", net.stored(_resized(net, a, **half)), (1, 4, 5, 8), 4) == []


def test_pads_whose_operands_constants_compute(tmp_path: Path) -> None:
    """Widths as TorchScript's exporter spells them, and a value that a quantizer dequantizes."""
    net = Layers()
    a = net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1, 1), 0)))
    spatial, outer = net.constant(np.array([0, 0, 1, 2], "int32")), net.constant(np.array([0, 0, 2, 1], "int32"))
    widths = net.node("Cast", net.node("Concat", spatial, outer, axis=0), to=onnx.TensorProto.INT64)
    pair = (net.constant(np.float32(0.02)), net.constant(np.int8(3)))
    value = net.node("DequantizeLinear", net.constant(np.int8(28)), *pair)
    y = net.stored(net.node("Pad", a, widths, value))
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 8), 4) == []


def test_a_size_computed_at_run_time_is_refused_with_the_remedy(tmp_path: Path) -> None:
    net = Layers()
    y = net.node("Relu", net.node("Tile", "x", net.node("Cast", net.node("Shape", net.node("NonZero", "x")), to=7)))
    net.save(tmp_path / "n.onnx", y, (1, 4), 1)
    with pytest.raises(LoadError, match=r"operator Tile with repeats .* is not supported.*dynamo=True"):
        load(tmp_path / "n.onnx")
