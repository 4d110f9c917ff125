"""`load(like="tflm")`: fully connected layers as TensorFlow Lite Micro and CMSIS-NN round them, and `run --check` with it."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tvm_cascade
from tvm_cascade.checking.reference import LiteRtReference
from tvm_cascade.cli.group import tvm_cascade as commands
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.frontend import load
from tvm_cascade.operators.fixed_point import quantize_multipliers, rescale
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled
from tvm_cascade.testing.tflite import ModelWriter

DEPTH, UNITS, ROWS = 40, 8, 3


def layer(folder: Path, dtype: str = "int8", scales: int = 1, zero: int = 0, bias: str = "int32") -> Path:
    """Write a fully connected layer of random weights whose multipliers are close to powers of two, where halves are common."""
    rng, writer = np.random.default_rng(scales), ModelWriter()
    x = writer.activation((ROWS, DEPTH), dtype, 0.1, 0 if dtype == "int16" else 5, "x")
    scale = np.full(scales, 0.02) if scales == 1 else rng.uniform(0.01, 0.02, scales)
    data = rng.integers(-127, 128, (UNITS, DEPTH)).astype("int8")
    filters = writer.tensor((UNITS, DEPTH), "int8", scale, zero, data=data)
    held = writer.constant(rng.integers(-900, 900, UNITS).astype(bias), 0.002) if bias else -1
    y = writer.tensor((ROWS, UNITS), dtype, 0.512, 0 if dtype == "int16" else -3)
    writer.operator("FULLY_CONNECTED", [x, filters, held], [y], "FullyConnectedOptions", version=4)
    path = folder / "m.tflite"
    path.write_bytes(writer.finish())
    return path


def inputs(dtype: str, calls: int = 40) -> list[np.ndarray]:
    rng, info = np.random.default_rng(7), np.iinfo(dtype)
    return [rng.integers(info.min, info.max + 1, (ROWS, DEPTH)).astype(dtype) for _ in range(calls)]


def rounded_twice(xs: list[np.ndarray], scales: int, zero: int) -> list[np.ndarray]:
    """Compute the layer as TensorFlow Lite Micro does: MBQM of the sum."""
    rng = np.random.default_rng(scales)
    scale = (np.full(scales, 0.02) if scales == 1 else rng.uniform(0.01, 0.02, scales)).astype("float32")
    weights = rng.integers(-127, 128, (UNITS, DEPTH)).astype("int8").astype("int64") - zero
    bias = rng.integers(-900, 900, UNITS)
    step, out = np.float32(0.1), np.float64(np.float32(0.512))
    m, s = quantize_multipliers(np.broadcast_to(np.float64(step) * scale.astype("float64") / out, UNITS))
    return [
        np.clip(rescale((x.astype("int64") - 5) @ weights.T + bias, m, s) - 3, -128, 127).astype("int8") for x in xs
    ]


@pytest.mark.parametrize(("scales", "zero"), [(1, 0), (1, 89), (UNITS, 0)])
def test_int8_is_rounded_twice(tmp_path: Path, scales: int, zero: int) -> None:
    path, xs = layer(tmp_path, scales=scales, zero=zero), inputs("int8")
    expected = rounded_twice(xs, scales, zero)
    like, once = (Compiled(LowerQuantized()(load(path, like=name))) for name in ("tflm", None))
    reference = LiteRtReference(path, {}, {}, "tflm")
    for x, wanted in zip(xs, expected, strict=True):
        np.testing.assert_array_equal(like(x)[0], wanted)
        (computed,) = reference.run({"x": x}).values()
        np.testing.assert_array_equal(computed, wanted)
    assert any((once(x)[0] != wanted).any() for x, wanted in zip(xs, expected, strict=True))


@pytest.mark.parametrize("scales", [1, UNITS])
@pytest.mark.parametrize("bias", ["int64", ""])
def test_int16_equals_a_convolution(tmp_path: Path, bias: str, scales: int) -> None:
    path = layer(tmp_path, "int16", scales, bias=bias)
    like, reference = Compiled(LowerQuantized()(load(path, like="tflm"))), LiteRtReference(path, {}, {}, "tflm")
    for x in inputs("int16"):
        (wanted,) = reference.run({"x": x}).values()
        np.testing.assert_array_equal(like(x)[0], wanted)


def test_folder_says_so_and_its_check_takes_it(tmp_path: Path) -> None:
    path = layer(tmp_path)
    once = Compiled(LowerQuantized()(load(path)))
    x = next(x for x in inputs("int8") if (once(x)[0] != rounded_twice([x], 1, 0)[0]).any())
    np.savez(tmp_path / "x.npz", x=x)
    for like, target in (("tflm", "host"), ("tflm", "cortex-m4")):
        folder = tmp_path / f"{like}_{target}"
        tvm_cascade.compile(path, target=target, output=folder, like=like)
        assert '"like": "tflm"' in (folder / "metadata.json").read_text()
        done = CliRunner().invoke(
            commands, ["run", str(folder), "--inputs", str(tmp_path / "x.npz"), "--check", str(path)]
        )
        assert done.exit_code == 0 and "rounded twice, as in TensorFlow Lite Micro" in done.output, done.output


def test_other_formats_and_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(UsageError, match="--like tflm is about"):
        load(tmp_path / "m.onnx", like="tflm")
    done = CliRunner().invoke(commands, ["plan", str(layer(tmp_path)), "--like", "cmsis"])
    assert done.exit_code == 2 and "'cmsis' is not 'tflm'" in done.output
    with pytest.raises(LoadError, match="FULLY_CONNECTED of int16 with a bias of 32 bits"):
        load(layer(tmp_path, "int16"), like="tflm")
