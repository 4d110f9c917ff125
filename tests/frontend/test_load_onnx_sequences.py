"""Splits into a sequence of a single part, concatenations of parts of which some are empty, and pads that cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

from tvm_cascade.testing.onnx_nodes import check_network

node = helper.make_node
X = np.arange(6, dtype="float32").reshape(1, 2, 3) - 2


@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        (4, {"axis": 2}),
        ([3], {"axis": -1}),
        (1, {"axis": 0}),
        (2, {"axis": 2}),
        (None, {"axis": 0}),
        (None, {"axis": 0, "keepdims": 0}),
    ],
)
def test_first_parts(tmp_path: Path, sizes: Any, how: dict[str, int]) -> None:
    split = node("SplitToSequence", ["x"] if sizes is None else ["x", "sizes"], ["parts"], **how)
    nodes = [split, node("SequenceAt", ["parts", "first"], ["part"]), node("Relu", ["part"], ["y"])]
    constants = {"first": np.array(0)} | ({} if sizes is None else {"sizes": np.array(sizes)})
    check_network(tmp_path, nodes, {"x": X}, ["y"], constants)


@pytest.mark.parametrize("turn", [-3, 3, 0, 1])
def test_turned_by_whole_axes(tmp_path: Path, turn: int) -> None:
    """As torch exports roll."""
    nodes = [
        node("Slice", ["x", "turn", "end", "axis"], ["behind"]),
        node("Slice", ["x", "begin", "turn", "axis"], ["before"]),
        node("Concat", ["behind", "before"], ["turned"], axis=2),
        node("Relu", ["turned"], ["y"]),
    ]
    constants = {"turn": np.array([turn]), "end": np.array([9]), "begin": np.array([0]), "axis": np.array([2])}
    check_network(tmp_path, nodes, {"x": X}, ["y"], constants)


@pytest.mark.parametrize("widths", [[-1, 1], [2, -1], [-1, 2], [1, -2], [-1, -1]])
def test_what_negative_pads_leave_wraps(tmp_path: Path, widths: list[int]) -> None:
    x = np.arange(5, dtype="float32")
    check_network(
        tmp_path, [node("Pad", ["x", "widths"], ["y"], mode="wrap")], {"x": x}, ["y"], {"widths": np.array(widths)}
    )
