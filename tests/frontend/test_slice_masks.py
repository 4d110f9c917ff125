"""STRIDED_SLICE with every pair of begin and end masks, with and without shrunk axes, as LiteRT computes it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

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
