"""Resize of every opset, mode, rounding and coordinates equals ONNX Runtime, all forms of an opset in one network.

Left out are linear and cubic ones with aligned corners, whose corner ONNX Runtime takes from the rounded size and ONNX does not.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

from tvm_cascade.frontend import load
from tvm_cascade.testing.onnx_nodes import runtime_outputs, save_network
from tvm_cascade.testing.reference import Compiled

_X = np.random.default_rng(3).standard_normal((1, 2, 5, 7)).astype("float32")
_SCALES = {"smaller": (1, 1, 0.6, 0.5), "larger": (1, 1, 1.6, 3)}
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _forms(opset: int) -> list[dict[str, Any]]:
    if opset == 10:
        return [{"mode": mode} for mode in ("nearest", "linear")]
    old = ("tf_half_pixel_for_nn",) if opset == 11 else ()
    coordinates = (*_COORDINATES, *old, *(("half_pixel_symmetric",) if opset >= 19 else ()))
    forms = [{"mode": "nearest", "coordinate_transformation_mode": c, "nearest_mode": r}
             for c, r in product(coordinates, _ROUNDINGS)]  # fmt: skip
    return forms + [{"mode": mode, "coordinate_transformation_mode": c}
                    for mode, c in product(("linear", "cubic"), coordinates) if c != "align_corners"]  # fmt: skip


@pytest.mark.parametrize("opset", [10, 11, 13, 18, 19])
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_resizes_equal_onnx_runtime(tmp_path: Path, opset: int, by: str) -> None:
    if (opset, by) == (10, "sizes"):
        pytest.skip("opset 10 has no sizes")
    nodes, constants, names = [], {"none": np.zeros(0, "float32")}, []
    for k, (form, (name, scales)) in enumerate(product(_forms(opset), _SCALES.items())):
        constants[f"{name}_scales"] = np.array(scales, "float32")
        constants[f"{name}_sizes"] = np.array([int(d * s) for d, s in zip(_X.shape, scales, strict=True)])
        given = [f"{name}_scales"] if by == "scales" else ["none" if opset < 13 else "", f"{name}_sizes"]
        given = given if opset == 10 else ["none" if opset < 13 else "", *given]
        nodes.append(helper.make_node("Resize", ["x", *given], [f"y{k}"], **form))
        names.append(f"y{k}")
    path = save_network(tmp_path / "network.onnx", nodes, {"x": _X}, names, constants, opset)
    wanted = runtime_outputs(path, {"x": _X})
    for ours, theirs, node in zip(Compiled(load(path))(_X), wanted, nodes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=str(node))


@pytest.mark.parametrize(
    "extent, size, ceil, floor",
    [(7, 2, [0, 4], [0, 3]), (28, 8, [0, 4, 7, 11, 14, 18, 21, 24], [0, 3, 7, 10, 14, 17, 21, 24])],
)
def test_places_near_a_half_are_ties(tmp_path: Path, extent: int, size: int, ceil: list[int], floor: list[int]) -> None:
    """ONNX Runtime takes 3.4999998, which float32 makes of 7 / 2, for a tie, and 24.499998, farther from a half, for none."""
    names = ("round_prefer_ceil", "round_prefer_floor")
    nodes = [
        helper.make_node(
            "Resize",
            ["x", "", "", "sizes"],
            [n],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode=n,
        )
        for n in names
    ]
    x = np.arange(extent, dtype="float32").reshape(1, 1, 1, extent)
    constants = {"sizes": np.array([1, 1, 1, size])}
    path = save_network(tmp_path / "network.onnx", nodes, {"x": x}, list(names), constants, 19)
    wanted = runtime_outputs(path, {"x": x})
    for ours, theirs, known in zip(Compiled(load(path))(x), wanted, (ceil, floor), strict=True):
        assert theirs.ravel().tolist() == known
        assert ours.ravel().tolist() == known


@pytest.mark.parametrize("mode, opset, factor", [("cubic", 13, None), ("linear", 13, 0.3), ("linear", 18, 0.3)])
def test_half_pixels_of_torch_end_at_the_first_element(
    tmp_path: Path, mode: str, opset: int, factor: float | None
) -> None:
    """ONNX places an axis resized to one element at 0, also where the scale gives 1.2 elements; its evaluator does not."""
    given, constants = ["x", "", "", "sizes"], {"sizes": np.array([1, 1, 1, 1])}
    if factor:
        given, constants = ["x", "", "scales"], {"scales": np.array([1, 1, 1, factor], "float32")}
    node = helper.make_node("Resize", given, ["y"], mode=mode, coordinate_transformation_mode="pytorch_half_pixel")
    x = np.array([1, 4, 9, 16], "float32").reshape(1, 1, 1, 4)
    path = save_network(tmp_path / "network.onnx", [node], {"x": x}, ["y"], constants, opset)
    (theirs,), (ours,) = runtime_outputs(path, {"x": x}), Compiled(load(path))(x)
    assert theirs.ravel().tolist() == ours.ravel().tolist() == [1]
