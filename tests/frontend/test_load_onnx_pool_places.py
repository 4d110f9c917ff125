"""Operators on windows that TVM's importer lacks, compiled, against ONNX Runtime: places of maxima, Col2Im, TensorScatter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

from tvm_cascade.errors import LoadError
from tvm_cascade.testing.onnx_nodes import check_network

node = helper.make_node
RNG = np.random.default_rng(6)
X = np.round(RNG.standard_normal((2, 3, 4, 5)) * 3).astype("float32")  # many are equal

_POOLS: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "plain": (X, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "padded": (X, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "dilated": (X, {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    "rounded up": (X, {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    "as large as the input": (X, {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "column by column": (X, {"kernel_shape": [2, 2], "storage_order": 1}),
    "one axis": (X[0], {"kernel_shape": [2]}),
    "three axes": (X[None], {"kernel_shape": [2, 2, 2]}),
}


@pytest.mark.parametrize("name", _POOLS)
def test_places_of_maxima(tmp_path: Path, name: str) -> None:
    x, how = _POOLS[name]
    check_network(tmp_path, [node("MaxPool", ["x"], ["y", "i"], **how)], {"x": x}, ["y", "i"])


def test_a_nan_is_the_maximum(tmp_path: Path) -> None:
    x = np.array([[[1, np.nan, 3, np.nan, 2, 4]]], "float32")
    made = node("MaxPool", ["x"], ["y", "i"], kernel_shape=[3], strides=[3])
    check_network(
        tmp_path, [node("Identity", ["i"], ["z"]), made][::-1], {"x": x}, ["z"], wanted=[np.array([[[1, 3]]])]
    )


@pytest.mark.usefixtures("emulator")
def test_unpooled_on_a_core(tmp_path: Path) -> None:
    how: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [node("MaxPool", ["x"], ["p", "i"], **how), node("MaxUnpool", ["p", "i"], ["y"], **how)]
    check_network(tmp_path, nodes, {"x": X[:1, :, :, :4]}, ["i", "y"], target="cortex-m4")


@pytest.mark.parametrize(
    ("shape", "size", "block", "how"),
    [
        ((2, 8, 12), (4, 5), (2, 2), {}),
        ((2, 12, 9), (6, 3), (3, 2), {"pads": [1, 0, 1, 2], "strides": [2, 1], "dilations": [1, 2]}),
        ((1, 6, 4), (8,), (3,), {"strides": [2], "pads": [0, 1]}),
        ((1, 5, 5), (5, 5), (1, 5), {}),
    ],
)
def test_columns_are_summed(
    tmp_path: Path, shape: tuple[int, ...], size: tuple[int, ...], block: tuple[int, ...], how: dict[str, Any]
) -> None:
    x = RNG.standard_normal(shape).astype("float32")
    made = node("Col2Im", ["x", "size", "block"], ["y"], **how)
    check_network(tmp_path, [made], {"x": x}, ["y"], {"size": np.array(size), "block": np.array(block)})


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_lines_are_written_into_a_cache(tmp_path: Path, mode: str) -> None:
    cache, new, begin = (
        np.zeros((2, 1, 4, 3), "float32"),
        np.ones((2, 1, 2, 3), "float32"),
        np.array([1, 3 if mode == "circular" else 2]),
    )
    wanted = cache.copy()
    for batch, start in enumerate(begin):
        wanted[batch, :, [(start + k) % 4 for k in range(2)]] = 1
    made = node("TensorScatter", ["x", "u", "at"], ["y"], mode=mode, axis=-2)
    check_network(tmp_path, [made], {"x": cache, "u": new, "at": begin}, ["y"], opset=24, wanted=[wanted])


@pytest.mark.parametrize(
    ("shape", "how", "refused"),
    [
        ((1, 1, 1, 1), {"kernel_shape": [2, 2], "dilations": [2, 2], "pads": [1, 1, 1, 1]}, True),
        ((1, 1, 2, 4), {"kernel_shape": [2, 1], "dilations": [3, 1], "pads": [1, 0, 1, 0]}, True),
        ((1, 1, 2, 4), {"kernel_shape": [2, 1], "dilations": [2, 1], "pads": [1, 0, 1, 0]}, False),
        ((1, 1, 5, 3), {"kernel_shape": [2, 1], "strides": [3, 1], "pads": [1, 0, 1, 0], "ceil_mode": 1}, False),
    ],
)
def test_windows_wholly_in_padding_are_refused(
    tmp_path: Path, shape: tuple[int, ...], how: dict[str, Any], refused: bool
) -> None:
    """ONNX Runtime gives the least float there, ONNX's evaluator 0, PyTorch negative infinity."""
    nodes, x = [node("MaxPool", ["x"], ["y"], **how)], RNG.standard_normal(shape).astype("float32")
    if refused:
        with pytest.raises(LoadError, match=r"operator MaxPool .*: a window wholly in the padding"):
            check_network(tmp_path, nodes, {"x": x}, ["y"])
    else:
        check_network(tmp_path, nodes, {"x": x}, ["y"])
