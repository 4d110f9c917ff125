"""STRIDED_SLICE and SPLIT_V of `.tflite` files as LiteRT computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.testing.litert_check import equal_outputs, host_equals
from tvm_cascade.testing.tflite import ModelWriter


def sliced(shape: tuple[int, ...], *limits: list[int], **masks: Any) -> ModelWriter:
    """A file of one STRIDED_SLICE; `limits` are begin, end and strides."""
    w = ModelWriter()
    given = [w.activation(shape, "int8", 0.5), *(w.constant(np.array(v, "int32")) for v in limits)]
    w.operator("STRIDED_SLICE", given, [w.tensor((), "int8", 0.5)], "StridedSliceOptions", **masks)
    return w


def test_a_begin_mask_holds_for_an_axis_that_is_removed(tmp_path: Path) -> None:
    data = np.arange(6, dtype="int8").reshape(2, 3)
    w = sliced((2, 3), [1, 0], [2, 3], [1, 1], beginMask=1, shrinkAxisMask=1)
    (taken,) = equal_outputs(tmp_path, w, [data])
    assert taken.tolist() == [0, 1, 2]  # TensorFlow would take [3, 4, 5]
    host_equals(tmp_path)


@pytest.mark.parametrize(
    "shape, begin, end, strides, masks",
    [
        ((4, 3, 5), [0, 1, 1], [4, 2, 4], [2, 1, 1], {"shrinkAxisMask": 2}),
        ((4, 3, 5), [-1, 0, 3], [0, 3, 0], [1, 2, -1], {"shrinkAxisMask": 1, "endMask": 4}),
        ((4, 3, 5), [2, 0, 1], [0, 3, 4], [1, 1, 2], {"ellipsisMask": 1, "beginMask": 4}),
        ((4, 3, 5), [1, 0, 1], [3, 0, 4], [1, 1, 1], {"ellipsisMask": 2, "endMask": 1}),
        ((4, 5), [0, 1, 1], [0, 3, 4], [1, 1, 2], {"newAxisMask": 1}),
        ((4, 5), [1, 0, 1], [3, 0, 4], [1, 1, 1], {"newAxisMask": 2, "shrinkAxisMask": 1}),
        ((6, 5), [4, 1], [-5, 9], [-2, 1], {}),
        ((6, 5), [1, -4], [3, 2], [1, 1], {"offset": True}),
    ],
)
def test_masks_take_what_the_reference_takes(
    tmp_path: Path,
    shape: tuple[int, ...],
    begin: list[int],
    end: list[int],
    strides: list[int],
    masks: dict[str, Any],
) -> None:
    equal_outputs(tmp_path, sliced(shape, begin, end, strides, **masks))


@pytest.mark.parametrize(
    "limits, masks, text",
    [
        (([0, 2], [1, 4], [-1, 1]), {"shrinkAxisMask": 1}, "an element 0 of an axis of 4, which it removes, by the stride -1"),
        (([0, 2], [1, 2], [1, 1]), {"endMask": 1}, "begin, end and strides are 2, 2 and 1"),
        (([0, 1, 2], [0, 3, 2], [1, 1, 1]), {"newAxisMask": 1}, "that leaves nothing"),
        (([0, 1], [2, 2], [1, 1]), {"offset": True, "endMask": 2}, "ends that count from its begins, with masks"),
        (([0, 3], [2, 9], [1, 1]), {"offset": True}, "a slice from 3 to 12 of an axis of 5"),
    ],
)  # fmt: skip
def test_slices_that_the_reference_does_not_compute_are_refused(
    tmp_path: Path, limits: tuple[list[int], ...], masks: dict[str, Any], text: str
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(sliced((4, 5), *limits, **masks).finish())
    with pytest.raises(LoadError, match=text):
        load(path)


def split(*sizes: int, read: bool = False) -> ModelWriter:
    """A file of one SPLIT_V; parts with elements are read, others if `read`."""
    w = ModelWriter()
    x, axis = w.activation((2, 6), "float32"), w.constant(np.array(1, "int32"))
    parts = [w.tensor((2, s), "float32") for s in sizes]
    given = [x, w.constant(np.array(sizes, "int32")), axis]
    w.operator("SPLIT_V", given, parts, "SplitVOptions", inner=True, numSplits=len(sizes))
    for size, part in zip(sizes, parts, strict=True):
        if size or read:
            w.operator("ABS", [part], [w.tensor((2, size), "float32")])
    return w


@pytest.mark.parametrize("sizes", [(4, 2, 0), (0, 6), (0, 3, 0, 3)])
def test_a_split_may_have_empty_parts_that_nobody_reads(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    equal_outputs(tmp_path, split(*sizes))


def test_an_empty_part_that_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(split(6, 0, read=True).finish())
    with pytest.raises(LoadError, match=r"SPLIT_V.*no element is left"):
        load(tmp_path / "m.tflite")
