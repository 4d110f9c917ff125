"""Networks of float activations and int8 weights ("dynamic range"), as LiteRT's reference computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.testing.litert_check import equal_outputs, host_equals
from tvm_cascade.testing.tflite import ModelWriter

RNG = np.random.default_rng(0)


def _bytes(writer: ModelWriter, shape: tuple[int, ...], axis: int | None = None) -> int:
    """int8 weights of one scale, or one for each index of an axis."""
    scale = 0.02 if axis is None else (RNG.random(shape[axis]) * 0.05 + 0.01).astype("float32")
    return writer.tensor(shape, "int8", scale, axis=axis or 0, data=RNG.integers(-127, 128, shape).astype("int8"))


def _bias(writer: ModelWriter, channels: int) -> int:
    return writer.constant(RNG.standard_normal(channels).astype("float32"))


def _dense(writer: ModelWriter, x: int, axis: int | None, asymmetric: bool, **more: object) -> None:
    rows = (3, 2) if more.get("keepNumDims") else (6,)
    bias = _bias(writer, 5) if asymmetric else -1
    how = {"asymmetricQuantizeInputs": asymmetric, "fusedActivationFunction": int(asymmetric), **more}
    out = writer.tensor((*rows, 5), "float32")
    writer.operator("FULLY_CONNECTED", [x, _bytes(writer, (5, 9), axis), bias], [out], "FullyConnectedOptions", **how)


def test_products(tmp_path: Path) -> None:
    """Of one scale and one a unit, inputs stored around zero or around a zero point; a row of zeros."""
    writer = ModelWriter()
    for axis in (None, 0):
        for asymmetric in (False, True):
            x = writer.activation((3, 2, 9), "float32")
            _dense(writer, x, axis, asymmetric, keepNumDims=asymmetric)
    x = [RNG.standard_normal((3, 2, 9)).astype("float32") + shift for shift in (0, 0, 3, -3)]
    for a in x:
        a[1, 1] = 0
    equal_outputs(tmp_path, writer, x, exact=True)
    host_equals(tmp_path)


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_batches_and_rows_of_tables(tmp_path: Path, turned: bool) -> None:
    writer = ModelWriter()
    x, weights = writer.activation((2, 3, 9), "float32"), _bytes(writer, (1, 5, 9) if turned else (9, 5))
    how: dict[str, Any] = {"adjY": turned, "asymmetricQuantizeInputs": turned}
    writer.operator("BATCH_MATMUL", [x, weights], [writer.tensor((2, 3, 5), "float32")], "BatchMatMulOptions", **how)
    places = writer.activation((4,), "int32")
    table = writer.constant(RNG.standard_normal((8, 6)).astype("float32")) if turned else _bytes(writer, (8, 6))
    writer.operator("EMBEDDING_LOOKUP", [places, table], [writer.tensor((4, 6), "float32")])
    writer.operator("EMBEDDING_LOOKUP", [places, _bytes(writer, (8, 3))], [writer.tensor((4, 3), "int8", 0.02)])
    given = [RNG.standard_normal((2, 3, 9)).astype("float32"), RNG.integers(0, 8, 4).astype("int32")]
    equal_outputs(tmp_path, writer, given, exact=True)
    host_equals(tmp_path)


@pytest.mark.parametrize(("stride", "dilation", "same"), [(1, 1, True), (2, 1, True), (1, 2, False)])
def test_convolutions(tmp_path: Path, stride: int, dilation: int, same: bool) -> None:
    writer = ModelWriter()
    how: dict[str, Any] = {"padding": 0 if same else 1, "fusedActivationFunction": 3}
    how |= {f"stride{a}": stride for a in "HW"} | {f"dilation{a}Factor": dilation for a in "HW"}
    size = (-(-7 // stride), -(-6 // stride)) if same else (7 - 2 * dilation, 6 - dilation)
    for axis in (None, 0):
        x = writer.activation((2, 7, 6, 4), "float32")
        given = [x, _bytes(writer, (5, 3, 2, 4), axis), _bias(writer, 5)]
        writer.operator("CONV_2D", given, [writer.tensor((2, *size, 5), "float32")], "Conv2DOptions", **how)
    x, weights = writer.activation((2, 7, 6, 4), "float32"), _bytes(writer, (1, 3, 2, 8), 3)
    out = [writer.tensor((2, *size, 8), "float32")]
    table = "DepthwiseConv2DOptions"
    writer.operator("DEPTHWISE_CONV_2D", [x, weights, _bias(writer, 8)], out, table, depthMultiplier=2, **how)
    equal_outputs(tmp_path, writer, exact=True)
    host_equals(tmp_path)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_filters(tmp_path: Path, asymmetric: bool) -> None:
    writer = ModelWriter()
    for rank, bias in ((1, True), (2, False)):
        x, features = writer.activation((2, 9), "float32"), _bytes(writer, (6, 9))
        given = [x, features, _bytes(writer, (6, 4)), _bias(writer, 6 // rank) if bias else -1]
        given.append(writer.tensor((2, 24), "float32", variable=True))
        how = {"rank": rank, "fusedActivationFunction": 1, "asymmetricQuantizeInputs": asymmetric}
        writer.operator("SVDF", given, [writer.tensor((2, 6 // rank), "float32")], "SVDFOptions", **how)
    equal_outputs(tmp_path, writer, exact=True)
    host_equals(tmp_path)


def _lstm(writer: ModelWriter, first: int, states: int, peepholes: bool, asymmetric: bool) -> None:
    """An LSTM of 6 units whose gates are those from `first` on."""
    units, depth = 6, 4
    given = [writer.activation((2, 5, depth), "float32"), *([-1] * 23)]
    for k in range(first, 4):
        given[1 + k], given[5 + k] = _bytes(writer, (units, depth)), _bytes(writer, (units, states))
        given[12 + k] = _bias(writer, units)
        if peepholes and k < 3:
            given[9 + k] = _bytes(writer, (units,))
    if states != units:
        given[16], given[17] = _bytes(writer, (states, units)), _bias(writer, states)
    given[18:20] = [writer.tensor((2, n), "float32", variable=True) for n in (states, units)]
    how = {"fusedActivationFunction": 4, "timeMajor": False, "cellClip": 10.0, "projClip": 0.0}
    out, table = [writer.tensor((2, 5, states), "float32")], "UnidirectionalSequenceLSTMOptions"
    writer.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", given, out, table, asymmetricQuantizeInputs=asymmetric, **how)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_recurrent_layers(tmp_path: Path, asymmetric: bool) -> None:
    """Plain, with a coupled gate and peepholes, and projected; the first step of one is zero."""
    writer = ModelWriter()
    for first, states, peepholes in ((0, 6, False), (1, 6, True), (0, 3, False)):
        _lstm(writer, first, states, peepholes, asymmetric)
    x = [RNG.standard_normal((2, 5, 4)).astype("float32") for _ in range(3)]
    x[0][:, 0] = 0
    equal_outputs(tmp_path, writer, x)
    host_equals(tmp_path)


def test_weights_stay_bytes(tmp_path: Path) -> None:
    """In flash; and the network needs what is stored of its input beside it."""
    writer = ModelWriter()
    x, weights = writer.activation((1, 200), "float32"), _bytes(writer, (50, 200))
    out = [writer.tensor((1, 50), "float32")]
    writer.operator("FULLY_CONNECTED", [x, weights, -1], out, "FullyConnectedOptions")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    made = tvm_cascade.compile(tmp_path / "m.tflite", target="host", output=tmp_path / "p").plan
    assert sum(op.weight_bytes for op in made.graph.ops) == 50 * 200 + 4 + 4 * 50  # one scale; a bias of zeros
    assert sum(op.macs for op in made.graph.ops) == 50 * 200
    assert 0 <= made.peak - (4 * 200 + 200 + 3 * 4) < 16  # of alignment


def test_operators_that_have_no_such_form_are_refused(tmp_path: Path) -> None:
    writer = ModelWriter()
    x, slopes = writer.activation((1, 3, 4), "float32"), _bytes(writer, (1, 1, 4))
    writer.operator("PRELU", [x, slopes], [writer.tensor((1, 3, 4), "float32")])
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match=r"PRELU.*representative data set"):
        load(tmp_path / "m.tflite")


@pytest.mark.parametrize(
    ("batches", "computed", "message"),
    [(2, False, "several matrices of int8 weights"), (1, True, "no int8 constants of zero point 0")],
)
def test_forms_that_are_refused_name_the_operator(tmp_path: Path, batches: int, computed: bool, message: str) -> None:
    writer = ModelWriter()
    x, weights = writer.activation((2, 3, 9), "float32"), _bytes(writer, (batches, 9, 5))
    if computed:
        weights = writer.activation((1, 9, 5), "int8", 0.1)
    writer.operator("BATCH_MATMUL", [x, weights], [writer.tensor((2, 3, 5), "float32")], "BatchMatMulOptions")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match=rf"BATCH_MATMUL.*{message}"):
        load(tmp_path / "m.tflite")


@pytest.mark.parametrize("last", [0.01, 0.0100001])
def test_equal_scales_of_a_convolution_are_one(tmp_path: Path, last: float) -> None:
    """Inputs are stored around zero then, and around a zero point where one scale is another; depthwise ones always so."""
    writer, scales = ModelWriter(), np.array([0.01, 0.01, 0.01, last], "float32")
    window = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    for shape, axis, kind in (((4, 3, 3, 4), 0, "CONV_2D"), ((1, 3, 3, 4), 3, "DEPTHWISE_CONV_2D")):
        x, out = writer.activation((1, 7, 6, 4), "float32"), writer.tensor((1, 7, 6, 4), "float32")
        data = np.random.default_rng(5).integers(-100, 101, shape).astype("int8")
        weights = writer.tensor(shape, "int8", scales, axis=axis, data=data)
        how: dict[str, Any] = {**window, **({"depthMultiplier": 1} if axis else {})}
        options = "DepthwiseConv2DOptions" if axis else "Conv2DOptions"
        writer.operator(kind, [x, weights, _bias(writer, 4)], [out], options, **how)
    given = [np.random.default_rng(k).standard_normal((1, 7, 6, 4)).astype("float32") + 0.5 for k in range(2)]
    equal_outputs(tmp_path, writer, given, exact=True)
