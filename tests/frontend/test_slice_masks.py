"""STRIDED_SLICE with every pair of masks, of begin, end, shrunk and new axes, and an ellipsis, as LiteRT computes it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.testing.litert_check import equal_outputs, equal_planned
from tvm_cascade.testing.tflite import ModelWriter

_SHAPE, _BEGIN, _END, _STEPS = (4, 5), (1, 2), (3, 5), (1, 2)


def _extents(begin_mask: int, end_mask: int, shrunk: int) -> list[int]:
    found = []
    for axis, (extent, first, last, step) in enumerate(zip(_SHAPE, _BEGIN, _END, _STEPS, strict=True)):
        bit = 1 << axis
        if not shrunk & bit:
            whole = slice(None if begin_mask & bit else first, None if end_mask & bit else last, step)
            found.append(len(range(extent)[whole]))
    return found


@pytest.mark.parametrize("shrunk", range(4))
def test_every_pair_of_masks(tmp_path: Path, shrunk: int) -> None:
    w = ModelWriter()
    x = w.activation(_SHAPE, "int8", 0.05, 3)
    steps = [1 if shrunk & (1 << axis) else step for axis, step in enumerate(_STEPS)]
    bounds = [w.constant(np.array(values, "int32")) for values in (_BEGIN, _END, steps)]
    for begin_mask, end_mask in product(range(4), repeat=2):
        out = w.tensor(_extents(begin_mask, end_mask, shrunk), "int8", 0.05, 3)
        masks = {"beginMask": begin_mask, "endMask": end_mask, "shrinkAxisMask": shrunk}
        w.operator("STRIDED_SLICE", [x, *bounds], [out], "StridedSliceOptions", **masks)
    equal_outputs(tmp_path, w)
    equal_planned(tmp_path, w)


@pytest.mark.parametrize("ellipsis", range(3))
@pytest.mark.parametrize("added", range(4))
def test_new_axes_and_an_ellipsis(tmp_path: Path, ellipsis: int, added: int) -> None:
    """Where several masks name an axis, an ellipsis comes before a new axis, and that before a shrunk one."""
    w = ModelWriter()
    x = w.activation(_SHAPE, "int8", 0.05, 3)
    bounds = [w.constant(np.array(values, "int32")) for values in (_BEGIN, _END, (1, 1))]
    for begin_mask, end_mask, shrunk in product(range(4), repeat=3):
        index: list[Any] = []
        for axis, (first, last) in enumerate(zip(_BEGIN, _END, strict=True)):
            bit = 1 << axis
            whole = slice(None if begin_mask & bit else first, None if end_mask & bit else last)
            index.append(... if ellipsis & bit else None if added & bit else first if shrunk & bit else whole)
        out = w.tensor(np.empty(_SHAPE)[tuple(index)].shape, "int8", 0.05, 3)
        masks = {"beginMask": begin_mask, "endMask": end_mask, "shrinkAxisMask": shrunk}
        more = {"ellipsisMask": ellipsis, "newAxisMask": added}
        w.operator("STRIDED_SLICE", [x, *bounds], [out], "StridedSliceOptions", **masks, **more)
    equal_outputs(tmp_path, w)
