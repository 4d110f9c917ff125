"""Dilated convolutions that files spell with space_to_batch and batch_to_space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.frontend import load
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.operator_cases import biases, output_scale, weights
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

_LOWER: Any = LowerQuantized()


def _atrous(rng: np.random.Generator, dtype: str, depthwise: bool, crop: int) -> bytes:
    """A convolution of 3x3 with a dilation of its own for each axis, as TensorFlow's converter writes it."""
    w = ModelWriter()
    blocks, (height, width, channels) = [2, 3], (int(rng.integers(7, 14)), int(rng.integers(7, 14)), 4)
    before = [b + crop for b in blocks]
    after = [b + (-(d + 2 * b + crop) % b) for d, b in zip((height, width), blocks, strict=True)]
    crops = [[crop, a - b] for a, b in zip(after, blocks, strict=True)]
    inner = [d + p + a for d, p, a in zip((height, width), before, after, strict=True)]
    x = w.activation((1, height, width, channels), dtype, 0.1, 3 if dtype == "int8" else 0)
    zero = 3 if dtype == "int8" else 0
    spread = w.tensor((6, inner[0] // 2, inner[1] // 3, channels), dtype, 0.1, zero)
    sizes = [w.constant(np.array(v, "int32")) for v in (blocks, list(zip(before, after, strict=True)), crops)]
    w.operator("SPACE_TO_BATCH_ND", [x, sizes[0], sizes[1]], [spread], "SpaceToBatchNDOptions")
    shape = (1, 3, 3, channels) if depthwise else (5, 3, 3, channels)
    kernel, scales = weights(rng, w, shape, dtype, 3 if depthwise else 0)
    outputs = channels if depthwise else 5
    scale = output_scale(rng, 0.1, scales, 36)
    made = w.tensor((6, inner[0] // 2 - 2, inner[1] // 3 - 2, outputs), dtype, scale, 0)
    bias = biases(rng, w, outputs, scales, 0.1, dtype)
    name, options = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if depthwise else ("CONV_2D", "Conv2DOptions")
    how: dict[str, Any] = {"depthMultiplier": 1} if depthwise else {}
    how |= {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    w.operator(name, [spread, kernel, bias], [made], options, fusedActivationFunction=1, **how)
    left = [d - 4 - sum(c) for d, c in zip([inner[0], inner[1] - 2], crops, strict=True)]
    out = w.tensor((1, *left, outputs), dtype, scale, 0)
    w.operator("BATCH_TO_SPACE_ND", [made, sizes[0], sizes[2]], [out], "BatchToSpaceNDOptions")
    w.outputs = [out]
    return w.finish()


@pytest.mark.parametrize("crop", [0, 1])
@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_they_fold_into_one_convolution(tmp_path: Path, dtype: str, depthwise: bool, crop: int) -> None:
    rng = np.random.default_rng(crop)
    for seed in range(3):
        data = _atrous(rng, dtype, depthwise, crop)
        (tmp_path / "m.tflite").write_bytes(data)
        lowered = _LOWER(load(tmp_path / "m.tflite"))
        calls = [b.value for block in lowered["main"].body.blocks for b in block.bindings]
        names = [str(c.op.name) for c in calls if hasattr(c, "op")]  # the last one renames the output
        if dtype == "int8":
            assert names == ["relax.call_tir"]
            kinds = {str(f.attrs["op_kind"]) for gv, f in lowered.functions.items() if gv.name_hint != "main"}
            assert kinds == {"depthwise_conv2d" if depthwise else "conv2d"}
        assert not {"relax.permute_dims", "relax.nn.pad"} & set(names)
        reference = Reference(data)
        arrays = random_inputs(reference.inputs, seed)
        ours, theirs = Compiled(lowered)(*arrays)[0], reference.run(arrays)[0]
        if dtype == "int8":
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-3)


def test_convolutions_of_a_signal_that_share_their_blocks_fold(tmp_path: Path) -> None:
    """Of Keras' Conv1D in a gated layer: rank 3, with reshapes around the convolutions."""
    rng, w = np.random.default_rng(1), ModelWriter()
    x = w.activation((1, 24, 4), "int8", 0.1, 3)
    spread, row = w.tensor((2, 14, 4), "int8", 0.1, 3), w.tensor((2, 1, 14, 4), "int8", 0.1, 3)
    block, pads, crops = (w.constant(np.array(v, "int32")) for v in ([2], [[2, 2]], [[0, 0]]))
    w.operator("SPACE_TO_BATCH_ND", [x, block, pads], [spread], "SpaceToBatchNDOptions")
    w.operator("RESHAPE", [spread, w.constant(np.array([2, 1, 14, 4], "int32"))], [row], "ReshapeOptions")
    how: dict[str, Any] = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    for _ in range(2):
        kernel, scales = weights(rng, w, (5, 1, 3, 4), "int8", 0)
        scale, bias = output_scale(rng, 0.1, scales, 12), biases(rng, w, 5, scales, 0.1, "int8")
        made, flat, out = (w.tensor(s, "int8", scale, 0) for s in ((2, 1, 12, 5), (2, 12, 5), (1, 24, 5)))
        w.operator("CONV_2D", [row, kernel, bias], [made], "Conv2DOptions", **how)
        w.operator("RESHAPE", [made, w.constant(np.array([2, 12, 5], "int32"))], [flat], "ReshapeOptions")
        w.operator("BATCH_TO_SPACE_ND", [flat, block, crops], [out], "BatchToSpaceNDOptions")
        w.outputs.append(out)
    data = w.finish()
    (tmp_path / "m.tflite").write_bytes(data)
    lowered = _LOWER(load(tmp_path / "m.tflite"))
    calls = [b.value for block in lowered["main"].body.blocks for b in block.bindings]
    assert not {"relax.permute_dims", "relax.nn.pad"} & {str(c.op.name) for c in calls if hasattr(c, "op")}
    reference = Reference(data)
    arrays = random_inputs(reference.inputs, 0)
    for ours, theirs in zip(Compiled(lowered)(*arrays), reference.run(arrays), strict=True):
        np.testing.assert_array_equal(ours, theirs)
