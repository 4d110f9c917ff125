"""`quantize` of `.tflite`: int8 files by ai-edge-quantizer, calibrated on data of the tests' own, that are planned."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tvm_cascade
from tvm_cascade.checking.litert_defects import repaired
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import UsageError
from tvm_cascade.frontend import load
from tvm_cascade.importers.tflite.model import open_model
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

N = 12
CONV: dict[str, Any] = {
    "strideH": 1,
    "strideW": 1,
    "dilationHFactor": 1,
    "dilationWFactor": 1,
    "fusedActivationFunction": 1,
}


def network(path: Path, signature: str = "") -> Path:
    """Write a float convolution, a depthwise and a 1 x 1 convolution and a dense layer, without a signature by default."""
    rng, w = np.random.default_rng(2), ModelWriter()

    def constant(*shape: int) -> int:
        return w.constant(rng.normal(0, 0.3, shape).astype("float32"))

    x = w.activation((1, 8, 8, 3), "float32", name="image")
    a, b, c = (w.tensor((1, 8, 8, n), "float32", name=name) for n, name in ((8, "a;first"), (8, "b"), (16, "c")))
    w.operator("CONV_2D", [x, constant(8, 3, 3, 3), constant(8)], [a], "Conv2DOptions", inner=True, **CONV)
    options: dict[str, Any] = CONV | {"depthMultiplier": 1}
    w.operator(
        "DEPTHWISE_CONV_2D",
        [a, constant(1, 3, 3, 8), constant(8)],
        [b],
        "DepthwiseConv2DOptions",
        inner=True,
        **options,
    )
    w.operator("CONV_2D", [b, constant(16, 1, 1, 8), constant(16)], [c], "Conv2DOptions", inner=True, **CONV)
    flat, out = w.tensor((1, 1024), "float32", name="flat"), w.tensor((1, 5), "float32", name="classes")
    w.operator("RESHAPE", [c, w.constant(np.array([1, 1024], "int32"))], [flat], inner=True)
    w.operator("FULLY_CONNECTED", [flat, constant(5, 1024), constant(5)], [out], "FullyConnectedOptions")
    path.write_bytes(w.finish(signature=signature))
    return path


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    spread = np.linspace(0.2, 2, N)[:, None, None, None]  # so that a mean of ranges is not the range
    return {"image": (rng.normal(0, 1, (N, 8, 8, 3)) * spread).astype("float32"), "labels": np.arange(N) % 5}


def stored_types(path: Path) -> dict[str, int]:
    graph = open_model(path.read_bytes()).Subgraphs(0)
    return {graph.Tensors(i).Name().decode(): graph.Tensors(i).bits for i in range(graph.TensorsLength())}


@pytest.mark.parametrize("signature", ["", "serving"])
def test_a_file_that_runs_and_is_planned(signature: str, data: dict[str, np.ndarray], tmp_path: Path) -> None:
    path, out = network(tmp_path / "net.tflite", signature), tmp_path / "q.tflite"
    np.savez(tmp_path / "d.npz", **data)  # type: ignore[arg-type]
    done = CliRunner().invoke(
        main, ["quantize", str(path), "--data", str(tmp_path / "d.npz"), "-o", str(out), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["layers"] == found["quantized_layers"] == found["per_channel_layers"] == 4
    assert found["left_float"] == {} and found["float_operators"] == [] and found["samples"] == N
    assert found["agreement"] > 0.9 and found["accuracy_before"] is not None
    before, after = (tvm_cascade.validate(p, data=data, layerwise=True) for p in (path, out))
    assert before.cosine > 0.999 and after.cosine > 0.999
    floats, stored = tvm_cascade.plan(path).peak_bytes, tvm_cascade.plan(out, stored_io=True).peak_bytes
    assert stored * 3 < floats


def test_the_next_commands_are_taken(data: dict[str, np.ndarray], tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **data)  # type: ignore[arg-type]
    result = tvm_cascade.quantize(network(tmp_path / "net.tflite"), data=data, output=tmp_path / "q.tflite")
    commands = re.findall(r"^  tvm-cascade (.*?)  ", result.to_text(), re.M)
    assert len(commands) == 3 and commands[1].endswith(f"--by-layer {tmp_path / 'net.tflite'}")
    for command in commands:
        done = CliRunner().invoke(main, shlex.split(command.replace("TEST.npz", str(tmp_path / "d.npz"))))
        assert done.exit_code == 0, (command, done.output)


def test_ranges_cover_all_values(data: dict[str, np.ndarray], tmp_path: Path) -> None:
    """The library's own ranges are moving averages, which the last samples outweigh."""
    path = network(tmp_path / "net.tflite")
    backwards = {"image": data["image"][::-1].copy()}
    tvm_cascade.quantize(path, data=backwards, output=tmp_path / "q.tflite")
    graph = open_model((tmp_path / "q.tflite").read_bytes()).Subgraphs(0)
    (scale,) = {
        float(t.Quantization().ScaleAsNumpy()[0])
        for t in map(graph.Tensors, range(graph.TensorsLength()))
        if t.Name().startswith(b"image") and t.Quantization() is not None and t.Quantization().ScaleLength()
    }
    image = data["image"]
    assert scale == pytest.approx((image.max() - image.min()) / 255, rel=0.01)


def test_the_error_of_every_tensor(data: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Against the float original, which shows the rounding of weights, and against the own weights in floats."""
    path = network(tmp_path / "net.tflite")
    ratios: dict[tuple[int, str], dict[str, float]] = {}
    for bits in (8, 4):
        out = tmp_path / f"{bits}.tflite"
        tvm_cascade.quantize(path, data=data, output=out, weight_bits=bits, max_drop=100)
        for side, floats in (("original", path), ("own", "own")):
            layers = tvm_cascade.validate(out, data=data, by_layer=floats).layers
            ratios[bits, side] = {layer.tensor: layer.snr_db for layer in layers}
            assert set(ratios[bits, side]) == {"a;first", "b", "c", "flat", "classes"}
    for tensor in ("a;first", "b", "c", "classes"):
        eight, four = (ratios[bits, "original"][tensor] for bits in (8, 4))
        assert ratios[8, "own"][tensor] > eight > 30 > four > 10
        assert ratios[4, "own"][tensor] > 30  # the rounding of four bits is in both
    floats = ModelWriter()
    made = floats.tensor((1, 5), "float32", name="other")
    floats.operator("TANH", [floats.activation((1, 5), "float32", name="image")], [made])
    (tmp_path / "other.tflite").write_bytes(floats.finish())
    with pytest.raises(UsageError, match="was it made from this file"):
        tvm_cascade.validate(out, data=data, by_layer=tmp_path / "other.tflite")


def test_layers_that_stay_float(data: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = network(tmp_path / "net.tflite")
    result = tvm_cascade.quantize(path, data=data, output=tmp_path / "q.tflite", float_first=1, float_last=1)
    assert (result.layers, result.quantized_layers) == (4, 2)
    assert result.left_float == {"CONV_2D": 1, "FULLY_CONNECTED": 1}


@pytest.mark.emulator
def test_weights_of_four_bits(data: dict[str, np.ndarray], emulator: None, tmp_path: Path) -> None:
    path = network(tmp_path / "net.tflite")
    plans = {}
    for bits in (8, 4):
        out = tmp_path / f"{bits}.tflite"
        result = tvm_cascade.quantize(path, data=data, output=out, weight_bits=bits, max_drop=100)
        flash = tvm_cascade.plan(out, target="cortex-m4", stored_io=True).flash
        assert flash is not None
        plans[bits] = flash[0]
    assert [(one.layer, one.bits, one.reason) for one in result.weight_bits] == [
        ("a;first", 4, ""),
        ("b", 8, "a grouped layer has few weights"),
        ("c", 4, ""),
        ("classes", 4, ""),
    ]
    assert all(one.snr_db is None or 5 < one.snr_db < 60 for one in result.weight_bits)
    assert plans[8] - plans[4] >= (16 * 8 + 5 * 1024) // 2  # the first layer's three channels stay in bytes
    assert "4 bits  a  " in result.to_text()
    tvm_cascade.compile(out, target="mps2-an386", stored_io=True, output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=out).max_abs_diff == 0
    kept = tvm_cascade.quantize(path, data=data, output=tmp_path / "k.tflite", weight_bits=4, max_drop=1)
    assert kept.agreement >= tvm_cascade.quantize(path, data=data, output=out).agreement - 0.01


def test_what_is_refused(data: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = network(tmp_path / "net.tflite")
    out = tmp_path / "q.tflite"
    with pytest.raises(UsageError, match=r"not of \.tflite files"):
        tvm_cascade.quantize(path, data=data, output=out, calibration="entropy")
    assert not out.exists()
    tvm_cascade.quantize(path, data=data, output=out)
    with pytest.raises(UsageError, match="quantized already"):
        tvm_cascade.quantize(out, data=data, output=tmp_path / "r.tflite")


RECIPES = [  # of ai-edge-quantizer 0.10 that serve any network
    "static_wi8_ai8",
    "static_wi8_ai16",
    "weight_only_wi8_afp32",
    "weight_only_wi4_afp32",
    "dynamic_legacy_wi8_afp32",
    "dynamic_wi8_afp32",
    "dynamic_wi4_afp32",
    *(f"dynamic_wi{bits}{form}_afp32" for bits in (8, 4, 2) for form in ("c", "c_hr", "b32", "b64")),
]


@pytest.mark.parametrize("name", RECIPES)
def test_files_of_all_recipes_compute_what_the_reference_does(
    name: str, data: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Weights of two bits in a convolution, and all in blocks, are given to the reference in eight bits and as floats."""
    from ai_edge_quantizer import quantizer, recipe

    tool = quantizer.Quantizer(str(network(tmp_path / "net.tflite", "serving")), getattr(recipe, name)())
    samples = {"serving": [{"image": one[None]} for one in data["image"]]}
    ranges = tool.calibrate(samples) if tool.need_calibration else None
    path = tmp_path / "q.tflite"
    path.write_bytes(tool.quantize(ranges).quantized_model)
    reference = Reference(repaired(path.read_bytes())[0])
    lower: Any = LowerQuantized()
    run = Compiled(lower(load(path)))
    for seed in range(3):
        given = random_inputs(reference.inputs, seed)
        (made,), (expected,) = run(*given), reference.run(given)
        assert made.dtype == expected.dtype and len(np.unique(expected)) > 1
        loss = 0.0 if expected.dtype.kind == "i" else 1e-5
        np.testing.assert_allclose(made, expected, rtol=loss, atol=loss * np.abs(expected).max())
