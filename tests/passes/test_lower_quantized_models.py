"""Every quantized public model against LiteRT's reference kernels, every intermediate included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

pytest.importorskip("ai_edge_litert")

from tvm_cascade.frontend import io_spec, load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.integer.expressions import dtype_of
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.origin import plain
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs, with_every_tensor, without_bias_axes

MODELS = (
    "ad01_int8",
    "kws_dscnn_int8",
    "micro_speech_quantized",
    "mobilenetv2_035_160_int8",
    "mobilenetv2_100_224_int8",
    "person_detect",
    "resnet8_int8",
    "swiftnet_vww_uint8",
    "vww_96_int8",
)
RANDOM_INPUTS = 11  # every kind of `random_inputs`


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_equals_the_reference(models: Path, name: str) -> None:
    path = models / f"{name}.tflite"
    mod = load(path)
    exposed, names = with_every_tensor(mod)
    run, reference = (
        Compiled(LowerQuantized()(exposed), optimisation=2),
        Reference(without_bias_axes(path.read_bytes())),
    )
    names = [plain(n) for n in names]
    indices = [reference.tensors[n] for n in names]
    assert {o.name for o in io_spec(mod).outputs} <= {*names}
    for inputs in (*(random_inputs(reference.inputs, s) for s in range(RANDOM_INPUTS)), *_real_inputs(models, name)):
        reference.run(inputs)
        for tensor, index, ours in zip(names, indices, run(*inputs), strict=True):
            np.testing.assert_array_equal(ours, reference.tensor(index), err_msg=tensor)


@pytest.mark.parametrize("name", MODELS)
def test_no_float_remains_and_the_input_module_is_unchanged(models: Path, name: str) -> None:
    mod = load(models / f"{name}.tflite")
    lowered = LowerQuantized()(mod)
    tvm.ir.assert_structural_equal(mod, load(models / f"{name}.tflite"))
    assert float_remains(lowered) == ()
    bindings = [b for block in lowered["main"].body.blocks for b in block.bindings]
    assert {dtype_of(b.var) for b in bindings} <= {"int8", "uint8"}
    assert io_spec(lowered) == io_spec(mod)
    kinds = {str(f.attrs["op_kind"]) for gv, f in lowered.functions.items() if gv.name_hint != "main"}
    assert "pad" not in kinds  # explicit pads are the convolutions' own


def _real_inputs(models: Path, name: str) -> list[list[np.ndarray]]:
    if name == "mobilenetv2_035_160_int8":
        pixels = np.fromfile(models / "mobilenetv2_035_160_input.dat", "uint8").reshape(1, 160, 160, 3)
        return [[(pixels.astype("int16") - 128).astype("int8")]]
    if name == "ad01_int8":
        frames = np.fromfile(models / "ad01_input.bin", "float32").reshape(-1, 640)
        scale, zero_point = 0.3910152316093445, 89
        return [[np.clip(np.round(f / scale) + zero_point, -128, 127).astype("int8")[None]] for f in frames]
    return []
