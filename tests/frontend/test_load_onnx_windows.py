"""Pools, pads and resizes of quantized ONNX networks: integers, whatever the windows, the scales and the modes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.onnx_layers import Layers
from tvm_cascade.testing.reference import Compiled

_LOWER: Any = LowerQuantized()


def _stored(x: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    return np.clip(np.rint(x / np.float32(scale)) + zero_point, -128, 127).astype(int)


def _averages(x: np.ndarray, how: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """By ONNX's definition, pixel for pixel; `x` [n, c, h, w]."""
    (kh, kw), (sy, sx), (top, left, bottom, right) = how["kernel_shape"], how["strides"], how["pads"]
    _, _, height, width = x.shape
    made = np.zeros(shape)
    for y, column in product(range(shape[2]), range(shape[3])):
        r0, c0 = y * sy - top, column * sx - left
        inside = x[:, :, max(r0, 0) : max(r0 + kh, 0), max(c0, 0) : max(c0 + kw, 0)]
        count = inside.shape[2] * inside.shape[3]
        if how["count_include_pad"]:
            count = (min(r0 + kh, height + bottom) - r0) * (min(c0 + kw, width + right) - c0)
        made[:, :, y, column] = inside.sum((2, 3)) / count
    return made


@pytest.mark.parametrize("seed", range(10))
def test_average_pools(tmp_path: Path, seed: int) -> None:
    """Padded on any side, counted or not, rounded up or down: the nearest stored value, or at a tie its neighbour."""
    rng = np.random.default_rng(seed)
    kernel = [int(k) for k in rng.integers(1, 5, 2)]
    how: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [int(s) for s in rng.integers(1, 4, 2)],
        "pads": [int(rng.integers(0, k)) for k in kernel * 2],
        "ceil_mode": seed % 2,
        "count_include_pad": seed // 2 % 2,
    }
    shape = (1, 3, *(int(d) for d in rng.integers(4, 9, 2)))
    scales = [float(s) for s in 0.02 * 2 ** rng.uniform(-3, 3, 2)]
    zeros = [int(z) for z in rng.integers(-128, 128, 2)]
    net = Layers()
    y = net.stored(net.node("AveragePool", net.stored("x", scales[0], zeros[0]), **how), scales[1], zeros[1])
    net.save(tmp_path / "n.onnx", y, shape, 4)
    lowered = _LOWER(load(tmp_path / "n.onnx"))
    assert [r.operator for r in float_remains(lowered)] == ["dequantize"]
    x = (rng.uniform(-150, 150, shape) * scales[0]).astype("float32")
    ours = Compiled(lowered)(x)[0]
    given = (_stored(x, scales[0], zeros[0]) - zeros[0]) * np.float64(np.float32(scales[0]))
    exact = _averages(given, how, ours.shape) / scales[1]
    off = np.abs(ours / np.float32(scales[1]) - np.clip(exact, -128 - zeros[1], 127 - zeros[1]))
    assert off.max() < 0.5 + 0.01


@pytest.mark.parametrize("scale", [0.02, 0.05])
def test_an_average_of_nothing_is_no_integer(tmp_path: Path, scale: float) -> None:
    """Padding as wide as the window leaves one without a pixel: ONNX forbids it, and no integer is divided by zero."""
    net = Layers()
    pooled = net.node("AveragePool", net.stored("x", 0.02, 3), kernel_shape=[2, 2], pads=[2, 0, 0, 0])
    net.save(tmp_path / "n.onnx", net.stored(pooled, scale, 3), (1, 2, 5, 5), 4)
    lowered = _LOWER(load(tmp_path / "n.onnx"))
    assert any("avg_pool2d" in r.operator for r in float_remains(lowered))


@pytest.mark.parametrize("scale", [0.02, 0.05])
def test_average_pools_of_one_quantization_are_the_references(tmp_path: Path, scale: float) -> None:
    """Where no padding is counted, and where the scales differ."""
    net = Layers()
    a = net.stored(net.node("Conv", net.stored("x"), net.weight((6, 4, 1, 1), 0)))
    y = net.stored(net.node("AveragePool", a, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), scale)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 7, 6), 4, scale / 0.02) == []
    kinds = [
        str(f.attrs["op_kind"]) for f in _LOWER(load(tmp_path / "n.onnx")).functions.values() if "op_kind" in f.attrs
    ]
    assert [k for k in kinds if "avg" in k] == ["scaled_avg_pool2d"]  # ties go to even numbers, which TFLite's do not


def _run(path: Path, shape: tuple[int, ...], kind: str, **how: Any) -> np.ndarray:
    """One integer operator; ONNX's evaluator does not know all of its attributes."""
    net = Layers()
    weights = {"Conv": [((4, 4, 3, 2), 0)], "ConvTranspose": [((4, 3, 3, 3), 1)]}.get(kind, [])
    y = net.stored(net.node(kind, net.stored("x"), *(net.weight(*w) for w in weights), **how))
    net.save(path, y, shape, len(shape))
    lowered = _LOWER(load(path))
    assert [r.operator for r in float_remains(lowered)] == ["dequantize"]
    return Compiled(lowered)(np.random.default_rng(1).uniform(-2, 2, shape).astype("float32"))[0]


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "Conv"])
def test_same_lower(tmp_path: Path, kind: str) -> None:
    """As many outputs as SAME_UPPER has, the odd pixel of padding before."""
    how: dict[str, Any] = {"strides": [2, 2]} | ({} if kind == "Conv" else {"kernel_shape": [3, 2]})
    spelled = _run(tmp_path / "n.onnx", (1, 4, 5, 7), kind, pads=[1, 1, 1, 0], **how)
    lower = _run(tmp_path / "n.onnx", (1, 4, 5, 7), kind, auto_pad="SAME_LOWER", **how)
    assert lower.shape == (1, 4, 3, 4)
    np.testing.assert_array_equal(lower, spelled)


@pytest.mark.parametrize(
    ("wanted", "spelled"),
    [([10, 12], {"pads": [1, 1, 0, 0]}), ([12, 13], {"output_padding": [1, 0]})],
)
def test_transposed_convolutions_of_a_given_size(tmp_path: Path, wanted: list[int], spelled: dict[str, Any]) -> None:
    given = _run(tmp_path / "n.onnx", (1, 4, 5, 6), "ConvTranspose", strides=[2, 2], output_shape=wanted)
    assert given.shape == (1, 3, *wanted)
    np.testing.assert_array_equal(
        given, _run(tmp_path / "n.onnx", (1, 4, 5, 6), "ConvTranspose", strides=[2, 2], **spelled)
    )


def test_an_average_of_nothing_stays_float(tmp_path: Path) -> None:
    """A window in the padding alone, which ONNX forbids."""
    net = Layers()
    y = net.stored(net.node("AveragePool", net.stored("x"), kernel_shape=[2, 2], pads=[3, 0, 0, 0]), 0.05)
    net.save(tmp_path / "n.onnx", y, (1, 3, 4, 4), 4)
    assert "relax.nn.avg_pool2d" in {r.operator for r in float_remains(_LOWER(load(tmp_path / "n.onnx")))}


def test_pools_of_rank_three(tmp_path: Path) -> None:
    net = Layers()
    a = net.stored(net.node("AveragePool", net.stored("x"), kernel_shape=[3], strides=[2], pads=[1, 1]), 0.03)
    y = net.stored(net.node("MaxPool", a, kernel_shape=[3], strides=[2], ceil_mode=1), 0.03)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 18), 3, 2) == []


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize(
    ("mode", "widths", "value"),
    [
        ("constant", [0, 1, 1, 0, 0, 2, 0, 3], 0.0),
        ("constant", [0, 0, 1, 2, 0, 0, 2, 0], 0.5),  # a stored value
        ("constant", [0, 0, 1, 2, 0, 0, 2, 1], 0.513),
        ("constant", [0, 0, 1, 2, 0, 0, 2, 1], -1e6),
        ("reflect", [0, 0, 1, 2, 0, 0, 2, 1], None),
        ("edge", [0, 0, 6, 2, 0, 1, 2, 0], None),
        ("wrap", [0, 0, 5, 2, 0, 0, 0, 1], None),
    ],
)
def test_pads(tmp_path: Path, conv: bool, mode: str, widths: list[int], value: float | None) -> None:
    """Between operators with the channels first or last, to another scale."""
    net = Layers()
    a = net.stored("x")
    if conv:
        a = net.stored(net.node("Conv", a, net.weight((4, 4, 1, 1), 0)))
    operands = [net.constant(np.array(widths, "int64"))] + ([] if value is None else [net.constant(np.float32(value))])
    y = net.stored(net.node("Pad", a, *operands, mode=mode), 0.031 if conv else 0.02)
    assert net.check(tmp_path / "n.onnx", y, (1, 4, 5, 6), 4, 1.6 if conv else 0.01) == []


def test_negative_pads_crop(tmp_path: Path) -> None:
    net = Layers()
    y = net.node("Pad", "x", net.constant(np.array([-1, 2, 2, -3], "int64")), net.constant(np.float32(0.5)))
    net.save(tmp_path / "n.onnx", y, (4, 5), 2)
    x = np.random.default_rng(0).uniform(-2, 2, (4, 5)).astype("float32")
    want = np.pad(x[1:, :2], ((0, 2), (2, 0)), constant_values=0.5)
    np.testing.assert_array_equal(Compiled(load(tmp_path / "n.onnx"))(x)[0], want)


def test_a_reflection_wider_than_its_input_is_refused(tmp_path: Path) -> None:
    net = Layers()
    y = net.stored(net.node("Pad", net.stored("x"), net.constant(np.array([0, 4, 0, 0], "int64")), mode="reflect"))
    net.save(tmp_path / "n.onnx", y, (2, 4), 2)
    with pytest.raises(
        LoadError, match=r"operator Pad has a form that is not supported: a reflection wider than its input"
    ):
        load(tmp_path / "n.onnx")


_MODES = [
    ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"), ("half_pixel", "ceil"),
    ("asymmetric", "floor"), ("align_corners", "round_prefer_floor"), ("pytorch_half_pixel", "floor"),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "rounding"), _MODES)
def test_nearest_resizes(tmp_path: Path, mode: str, rounding: str) -> None:
    """To whole sizes, and by scales that give none and no ties: the pixels that ONNX names."""
    how: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
    net = Layers()
    a = net.node("Resize", net.stored("x"), "", "", net.constant(np.array([1, 3, 13, 4], "int64")), **how)
    scales = net.constant(np.array([1, 1, 0.72, 1.79], "float32"))
    y = net.stored(net.node("Resize", a, "", scales, **how))
    assert net.check(tmp_path / "n.onnx", y, (1, 3, 5, 7), 4, 0.01) == []


def test_a_resize_to_more_than_memory_is_refused(tmp_path: Path) -> None:
    net = Layers()
    y = net.node("Resize", "x", "", net.constant(np.array([1, 1, 1e9 / 3, 1.5], "float32")), mode="nearest")
    net.save(tmp_path / "n.onnx", y, (1, 3, 5, 7), 4)
    with pytest.raises(LoadError, match=r"Resize .*: a result of shape \[1, 3, 1666666752, 10\]"):
        load(tmp_path / "n.onnx")
