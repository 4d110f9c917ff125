"""Float inputs that are only quantized, and outputs that are only dequantized, as stored integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.errors import UsageError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled
from tvm_cascade.testing.tflite import ModelWriter

_LOWER: Any = LowerQuantized()


def _network(outputs: int) -> bytes:
    """A table between a quantize and a dequantize; its second output is float in the model's own right."""
    w = ModelWriter()
    x = w.activation((1, 6, 5, 3), "float32", name="x")
    stored = w.tensor((1, 6, 5, 3), "int8", 0.05, 4)
    w.operator("QUANTIZE", [x], [stored])
    made = w.tensor((1, 6, 5, 3), "int8", 1 / 256, -128)
    w.operator("LOGISTIC", [stored], [made])
    real = w.tensor((1, 6, 5, 3), "float32", name="y")
    w.operator("DEQUANTIZE", [made], [real])
    w.outputs = [real]
    if outputs == 2:
        other = w.tensor((1, 6, 5, 3), "float32", name="z")
        w.operator("ABS", [real], [other])
    return w.finish()


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_integers_are_those_between(tmp_path: Path, outputs: int) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(_network(outputs))
    plain, stored = load(path), load(path, stored_io=True)
    (given,), (made, *others) = io_spec(stored).inputs, io_spec(stored).outputs
    assert (given.dtype, given.zero_point, made.dtype, made.zero_point) == ("int8", 4, "int8", -128)
    assert given.scale == pytest.approx(0.05) and made.scale == pytest.approx(1 / 256)
    assert [o.dtype for o in others] == ["float32"] * (outputs - 1)
    assert io_spec(plain).inputs[0].dtype == "float32"
    q = np.random.default_rng(0).integers(-128, 128, given.shape).astype("int8")
    real = (np.float32(0.05) * (q.astype("float32") - 4)).astype("float32")
    want, have = Compiled(_LOWER(plain))(real), Compiled(_LOWER(stored))(q)
    np.testing.assert_array_equal((have[0].astype("float32") + 128) / 256, want[0])
    for ours, theirs in zip(have[1:], want[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert outputs == 2 or float_remains(_LOWER(stored)) == ()


def refuses(writer: ModelWriter, folder: Path, words: str) -> None:
    (folder / "net.tflite").write_bytes(writer.finish())
    with pytest.raises(UsageError, match=words):
        load(folder / "net.tflite", stored_io=True)


def test_a_model_without_floats_has_none_to_store(tmp_path: Path) -> None:
    w = ModelWriter()
    x, y = w.activation((1, 4), "int8", 0.1, name="x"), w.tensor((1, 4), "int8", 0.1)
    w.operator("RELU", [x], [y])
    refuses(w, tmp_path, "no float input of the model is only quantized")


def test_an_input_that_something_else_reads_stays_float(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 4), "float32", name="x")
    stored, y = w.tensor((1, 4), "int8", 0.1), w.tensor((1, 4), "float32")
    w.operator("QUANTIZE", [x], [stored])
    w.operator("ABS", [x], [y])
    refuses(w, tmp_path, "only quantized")


def test_an_input_of_two_quantizations_stays_float_beside_one_that_is_stored(tmp_path: Path) -> None:
    w = ModelWriter()
    x, y = (w.activation((1, 4), "float32", name=name) for name in "xy")
    quantized = [(x, 0.1), (x, 0.05), (y, 0.1)]
    made = []
    for source, scale in quantized:
        stored, bounded = w.tensor((1, 4), "int8", scale), w.tensor((1, 4), "int8", scale)
        w.operator("QUANTIZE", [source], [stored])
        w.operator("RELU", [stored], [bounded])
        made.append(w.tensor((1, 4), "float32"))
        w.operator("DEQUANTIZE", [bounded], [made[-1]])
    w.outputs = made
    (tmp_path / "net.tflite").write_bytes(w.finish())
    plain, stored = load(tmp_path / "net.tflite"), load(tmp_path / "net.tflite", stored_io=True)
    assert [spec.dtype for spec in io_spec(stored).inputs] == ["float32", "int8"]
    a, q = np.array([[-1.0, 0.26, 1.23, 6.4]], "float32"), np.array([[-5, 3, 0, 7]], "int8")
    want = Compiled(_LOWER(plain))(a, np.float32(0.1) * q.astype("float32"))
    have = Compiled(_LOWER(stored))(a, q)
    for ours, theirs, (_, scale) in zip(have, want, quantized, strict=True):
        np.testing.assert_allclose(ours * np.float32(scale if ours.dtype == np.int8 else 1), theirs, rtol=1e-6)


def test_a_project_of_stored_integers_is_checked_against_the_floats(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(_network(1))
    made = tvm_cascade.compile(path, target="host", output=tmp_path / "fw", stored_io=True)
    assert made.plan.peak < tvm_cascade.plan(path, target="host").plan.peak / 2
    done = tvm_cascade.run(tmp_path / "fw", check=path)
    assert done.ok and done.match and next(iter(done.outputs.values())).dtype == np.int8
    header = (tmp_path / "fw" / "net.h").read_text()
    assert "NET_X_ZERO_POINT (4)" in header and "NET_Y_ZERO_POINT (-128)" in header


def test_that_floats_are_only_quantized_is_said(tmp_path: Path) -> None:
    path, said = tmp_path / "net.tflite", []
    path.write_bytes(_network(1))
    tvm_cascade.plan(path, progress=said.append)
    tvm_cascade.plan(path, stored_io=True, progress=lambda line: said.append(f"stored: {line}"))
    (hint,) = [line for line in said if "stored" in line and "--stored-io" in line]
    assert hint == "net: x: a float that the network only quantizes; --stored-io takes integers, 90 bytes for 360"


@pytest.mark.parametrize(("other", "stored"), [(0.045, True), (0.03, False)])
def test_an_input_of_nearly_equal_scales_is_stored_by_the_largest(tmp_path: Path, other: float, stored: bool) -> None:
    """What reads it by another scale stores it anew: `round(q * 0.05 / 0.045)`, within the range of int8."""
    w = ModelWriter()
    x, reals = w.activation((1, 64), "float32", name="x"), []
    for number, scale in enumerate((other, 0.05)):
        integers = w.tensor((1, 64), "int8", scale, 0)
        reals.append(w.tensor((1, 64), "float32", name=f"y{number}"))
        w.operator("QUANTIZE", [x], [integers])
        w.operator("DEQUANTIZE", [integers], [reals[-1]])
    w.outputs = reals
    path = tmp_path / "net.tflite"
    path.write_bytes(w.finish())
    mod = load(path, stored_io=True)
    given = io_spec(mod).inputs[0]
    assert given.dtype == ("int8" if stored else "float32")
    if stored:
        q = np.arange(-128, 128, 4, dtype="int8").reshape(1, 64)
        assert given.scale == pytest.approx(0.05)
        first, second = Compiled(_LOWER(mod))(q)
        np.testing.assert_array_equal(second, q)
        np.testing.assert_array_equal(first, np.clip(np.rint(q * (0.05 / other)), -128, 127))
