"""The shape of what `LowerQuantized` emits, what it refuses, and the proof for fully connected layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te

pytest.importorskip("ai_edge_litert")

from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.integer.dense import proved_multipliers, round_once
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.fixed_point import quantize_multipliers
from tvm_cascade.passes.integer.task import Output
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.origin import marked
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.testing.reference import Compiled, Reference
from tvm_cascade.testing.tflite import ModelWriter


def _lowered(tmp_path: Path, writer: ModelWriter) -> tvm.IRModule:
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    return LowerQuantized()(load(tmp_path / "m.tflite"))


def _kinds(mod: tvm.IRModule) -> list[str]:
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]
    return [str(mod[c.args[0]].attrs["op_kind"]) if c.op.name == "relax.call_tir" else c.op.name for c in calls]


def _convolution(writer: ModelWriter, x: int, zero_point: int, name: str = "y") -> None:
    weights = np.arange(-9, 9, dtype="int8").reshape(1, 3, 3, 2)
    w = writer.tensor((1, 3, 3, 2), "int8", [0.01], data=weights)
    b = writer.tensor((1,), "int32", [0.005], data=np.array([7], "int32"))
    y = writer.tensor((1, 4, 4, 1), "int8", 0.1, zero_point, name=name)
    writer.operator(
        "CONV_2D", [x, w, b], [y], "Conv2DOptions", padding=1, strideH=1, strideW=1, dilationHFactor=1,
        dilationWFactor=1, fusedActivationFunction=3,
    )  # fmt: skip


def test_a_convolution_tells_what_it_computes(tmp_path: Path) -> None:
    writer = ModelWriter()
    _convolution(writer, writer.activation((1, 6, 6, 2), "int8", 0.5, -3), 4)
    mod = _lowered(tmp_path, writer)
    assert _kinds(mod) == ["conv2d"]
    attrs = mod["conv2d"].attrs
    assert [int(v) for v in attrs["padding"]] == [0, 0, 0, 0]
    assert [int(v) for v in attrs["clamp"]] == [4, 64]  # RELU6 at scale 0.1
    assert (int(attrs["input_zero_point"]), int(attrs["output_zero_point"])) == (-3, 4)
    assert int(attrs["num_activations"]) == 1
    assert [str(p.ty.dtype) for p in mod["conv2d"].params] == ["int8", "int8", "int32", "int32", "int32", "int8"]
    assert mod["main"].body.blocks[0].bindings[0].var.name == marked("y")


@pytest.mark.parametrize("value, folded", [(-3, True), (-2, False)])
def test_a_pad_by_the_zero_point_becomes_padding(tmp_path: Path, value: int, folded: bool) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 3, 5, 2), "int8", 0.5, -3)
    widths = writer.constant(np.array([[0, 0], [2, 1], [0, 1], [0, 0]], "int32"))
    padded = writer.tensor((1, 6, 6, 2), "int8", 0.5, -3)
    fill = writer.constant(np.array([value], "int8"), 0.5, -3)
    writer.operator("PADV2", [x, widths, fill], [padded], "PadV2Options")
    _convolution(writer, padded, 0)
    writer.outputs.remove(padded)
    mod = _lowered(tmp_path, writer)
    assert _kinds(mod) == (["conv2d"] if folded else ["pad", "conv2d"])
    assert [int(v) for v in mod["conv2d"].attrs["padding"]] == ([2, 0, 1, 1] if folded else [0, 0, 0, 0])
    data = np.random.default_rng(0).integers(-128, 128, (1, 3, 5, 2)).astype("int8")
    np.testing.assert_array_equal(Compiled(mod)(data)[0], Reference(writer.finish()).run([data])[0])


def test_equal_operators_share_a_function(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 6, 6, 2), "int8", 0.5, -3)
    _convolution(writer, x, 4, "first")
    _convolution(writer, x, 4, "second")
    mod = _lowered(tmp_path, writer)
    assert _kinds(mod) == ["conv2d", "conv2d"]
    assert len(mod.functions) == 2


def test_float_inputs_and_outputs_meet_integers_exactly(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((4, 500), "float32")
    q = writer.tensor((4, 500), "int8", 0.037, -5)
    r = writer.tensor((4, 500), "int8", 0.021, 9)
    y = writer.tensor((4, 500), "float32")
    writer.operator("QUANTIZE", [x], [q], "QuantizeOptions")
    writer.operator("RELU", [q], [r])
    writer.operator("DEQUANTIZE", [r], [y], "DequantizeOptions")
    mod = _lowered(tmp_path, writer)
    assert _kinds(mod) == ["quantize", "relu", "dequantize"]
    ties = (np.arange(-1000, 1000) * np.float32(0.037) / 2).astype("float32").reshape(4, 500)
    noise = np.random.default_rng(0).normal(0, 3, (4, 500)).astype("float32")
    for data in (ties, noise, noise * np.float32(1e4)):
        for ours, theirs in zip(Compiled(mod)(data), Reference(writer.finish()).run([data]), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_only_floats_that_something_reads_are_lowered_and_stay_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted: list[str] = []
    emit = Emitter.call

    def counted(self: Emitter, kind: str, *args: Any, **attributes: Any) -> Any:
        emitted.append(kind)
        return emit(self, kind, *args, **attributes)

    monkeypatch.setattr(Emitter, "call", counted)
    writer = ModelWriter()
    first, second = (writer.tensor((1, 4, 4, 1), "int8", s) for s in (0.3, 0.2))
    _convolution(writer, writer.activation((1, 6, 6, 2), "int8", 0.5, -3), 4)
    writer.operator("RELU", [writer.outputs.pop()], [first], inner=True)
    writer.operator("DEQUANTIZE", [first], [writer.tensor((1, 4, 4, 1), "float32")], "DequantizeOptions")
    writer.operator("RELU", [first], [second])
    mod = _lowered(tmp_path, writer)
    assert emitted.count("dequantize") == 1, "those inside of islands are not"
    assert _kinds(mod) == ["conv2d", "relu", "dequantize", "relu"], "as in the file"
    data = np.random.default_rng(0).integers(-128, 128, (1, 6, 6, 2)).astype("int8")
    for ours, theirs in zip(Compiled(mod)(data), Reference(writer.finish()).run([data]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_stays_float_is_reported_with_its_reason(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 8), "int8", 0.1, 0)
    divisor = writer.constant(np.full((1, 8), 3, "int8"), 0.1)
    writer.operator("FLOOR_DIV", [x, divisor], [writer.tensor((1, 8), "int8", 0.1, 0)], "FloorDivOptions")
    remains = float_remains(_lowered(tmp_path, writer))
    assert [r.operator for r in remains] == ["dequantize", "relax.floor_divide"]
    assert [r.bytes for r in remains] == [32, 32]
    assert {r.reason for r in remains} == {"no integer form of floor_divide"}


def test_halves_of_a_dense_layer_round_away_from_zero(tmp_path: Path) -> None:
    """Every second sum lies halfway between two results."""
    writer = ModelWriter()
    x = writer.activation((256, 1), "int8", 0.5, 0)
    weights = writer.constant(np.array([[1], [3]], "int8"), 0.25)
    out = writer.tensor((256, 2), "int8", 0.25, 0)
    writer.operator("FULLY_CONNECTED", [x, weights, -1], [out], "FullyConnectedOptions", version=4)
    data = np.arange(-128, 128).astype("int8").reshape(256, 1)
    ours, theirs = Compiled(_lowered(tmp_path, writer))(data)[0], Reference(writer.finish()).run([data])[0]
    np.testing.assert_array_equal(ours, theirs)
    assert list(theirs[127:130, 0]) == [-1, 0, 1]


def test_a_float_operator_of_the_file_is_not_its_quantized_form(tmp_path: Path) -> None:
    """The same stored input and output: between a dequantize and a quantize it rounds as floats do, elsewhere not."""
    data = np.arange(-128, 128).astype("int8")
    results = []
    for explicit in (False, True):
        writer = ModelWriter()
        x = writer.activation((256,), "int8", 0.00117, -115)
        y = writer.tensor((256,), "int8", 0.004144, -49)
        if explicit:
            reals = [writer.tensor((256,), "float32") for _ in range(2)]
            writer.operator("DEQUANTIZE", [x], reals[:1], "DequantizeOptions", inner=True)
            writer.operator("ABS", reals[:1], reals[1:], "AbsOptions", inner=True)
            writer.operator("QUANTIZE", reals[1:], [y], "QuantizeOptions")
        else:
            writer.operator("ABS", [x], [y], "AbsOptions")
        mod = _lowered(tmp_path, writer)
        assert _kinds(mod) == ["lut"]
        results.append(Compiled(mod)(data)[0])
        np.testing.assert_array_equal(results[-1], Reference(writer.finish()).run([data])[0])
    assert np.any(results[0] != results[1])


@pytest.mark.parametrize("scale", [0.001, 3.0])
def test_a_float_comparison_of_the_file_tells_neighbours_apart(tmp_path: Path, scale: float) -> None:
    """The quantized operator does not, at scales below 1/256."""
    writer = ModelWriter()
    stored = [writer.activation((256,), "int8", scale, zero) for zero in (0, 1)]
    reals = [writer.tensor((256,), "float32") for _ in stored]
    for x, real in zip(stored, reals, strict=True):
        writer.operator("DEQUANTIZE", [x], [real], "DequantizeOptions", inner=True)
    writer.operator("GREATER", reals, [writer.tensor((256,), "bool")], "GreaterOptions")
    mod = _lowered(tmp_path, writer)
    assert _kinds(mod) == ["greater"]
    left = np.arange(-128, 128).astype("int8")
    for right in (left, np.clip(left + 1.0, -128, 127).astype("int8"), np.clip(left + 2.0, -128, 127).astype("int8")):
        ours, theirs = Compiled(mod)(left, right)[0], Reference(writer.finish()).run([left, right])[0]
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("scale", "zero"), [(0.1, 0), (0.1, 1000), (0.2, 0)])
def test_orders_of_int16_of_unequal_quantization_are_refused(tmp_path: Path, scale: float, zero: int) -> None:
    """The reference reads stored values alone."""
    writer = ModelWriter()
    operands = [writer.activation((4,), "int16", 0.1, 0), writer.activation((4,), "int16", scale, zero)]
    writer.operator("GREATER", operands, [writer.tensor((4,), "bool")], "GreaterOptions")
    if (scale, zero) != (0.1, 0):
        with pytest.raises(
            UnsupportedOperatorError, match="zero point" if zero else "orders integers of unequal scales"
        ):
            _lowered(tmp_path, writer)
        return
    left, right = np.array([500, 30, 60, -2000], "int16"), np.array([1000, 30, 59, -500], "int16")
    np.testing.assert_array_equal(Compiled(_lowered(tmp_path, writer))(left, right)[0], left > right)


def test_lowering_twice_changes_nothing_more(tmp_path: Path) -> None:
    writer = ModelWriter()
    _convolution(writer, writer.activation((1, 6, 6, 2), "int8", 0.5, -3), 4)
    once = _lowered(tmp_path, writer)
    tvm.ir.assert_structural_equal(LowerQuantized()(once), once)


def test_indices_that_are_stored_and_clipped() -> None:
    """An arg max as int8 has no quantization to be clamped in: the clip stays an operator."""
    x = relax.Var("x", relax.TensorType((1, 100), "int8"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            place = builder.emit(relax.op.astype(builder.emit(relax.op.argmax(x, axis=1)), "int8"))
            out = builder.emit_output(relax.op.clip(place, 0, 5))
        builder.emit_func_output(out)
    data = np.zeros((1, 100), "int8")
    data[0, 77] = 1
    assert Compiled(LowerQuantized()(builder.finalize()))(data)[0].tolist() == [5]


def test_functions_with_side_effects_are_left_alone() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x], pure=False):
        y = builder.emit(relax.op.add(x, x))
        builder.emit_func_output(y)
    mod = builder.finalize()
    tvm.ir.assert_structural_equal(LowerQuantized()(mod), mod)


@pytest.mark.parametrize("scale", [0.0, float("nan"), float("inf"), -1.0])
def test_scales_that_make_no_sense_are_refused(scale: float) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "int8"))
    zero = relax.const(0, "int8")
    with builder.function("main", [x]):
        with builder.dataflow():
            real = builder.emit(relax.op.dequantize(x, relax.const(scale, "float32"), zero, axis=0))
            stored = relax.op.quantize(
                builder.emit(relax.op.nn.relu(real)), relax.const(0.5, "float32"), zero, axis=0, out_dtype="int8"
            )
            y = builder.emit_output(builder.emit(stored))
        builder.emit_func_output(y)
    lowered = LowerQuantized()(builder.finalize())
    assert "relax.nn.relu" in [r.operator for r in float_remains(lowered)]


def test_float_networks_pass_through(tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 8), "float32")
    writer.operator("NEG", [x], [writer.tensor((1, 8), "float32")])
    assert [r.reason for r in float_remains(_lowered(tmp_path, writer))] == ["float in the model"]


def test_sums_of_int8_are_those_of_uint8_moved_by_128(tmp_path: Path) -> None:
    """The oracle cannot tell: it reads int8 as unsigned here."""
    results = []
    data = np.random.default_rng(0).integers(0, 256, (5, 40)).astype("uint8")
    for dtype, offset in (("uint8", 0), ("int8", 128)):
        writer = ModelWriter()
        x = writer.activation((5, 40), dtype, 0.1, 131 - offset)
        axes = writer.constant(np.array([1], "int32"))
        writer.operator("SUM", [x, axes], [writer.tensor((5,), dtype, 1.3, 121 - offset)], "ReducerOptions")
        stored = (data.astype("int16") - offset).astype(dtype)
        results.append(Compiled(_lowered(tmp_path, writer))(stored)[0].astype("int16") + offset)
    np.testing.assert_array_equal(*results)


def _double(acc: np.ndarray, e: float) -> np.ndarray:
    product = acc.astype("float64") * e
    whole = np.trunc(product)
    return whole + np.where(np.abs(product - whole) >= 0.5, np.sign(product), 0)


def test_proved_multipliers_equal_doubles_at_every_accumulator() -> None:
    rng = np.random.default_rng(0)
    widened = refused = 0
    for _ in range(300):
        bound = int(rng.integers(1, 60_000))
        # halves of small integers lie close to ties, where 31 bits may fall on the wrong side
        e = float(rng.integers(1, 400)) / float(rng.integers(1, 4000)) / 2
        zero = int(rng.integers(-128, 128))
        out = Output((1,), "int8", np.float32(1), zero, -128, 127)
        try:
            m, s = proved_multipliers(np.array([e]), np.array([bound]), out)
        except NotLowered:
            refused += 1
            continue
        widened += m.dtype == np.int64
        acc = np.arange(-bound, bound + 1)
        expected = np.clip(_double(acc, e) + zero, -128, 127)
        np.testing.assert_array_equal(np.clip(round_once(acc, int(m[0]), int(s[0])) + zero, -128, 127), expected)
    assert widened > 0
    assert refused < 150


def test_an_unproved_multiplier_really_differs() -> None:
    """The proof refuses 31 bits only for layers where some accumulator would come out differently."""
    rng = np.random.default_rng(1)
    out = Output((1,), "int8", np.float32(1), 0, -128, 127)
    checked = 0
    for _ in range(200):
        e, bound = float(rng.integers(1, 400)) / float(rng.integers(1, 4000)) / 2, 60_000
        try:
            m, _ = proved_multipliers(np.array([e]), np.array([bound]), out)
        except NotLowered:
            m = np.zeros(1, "int64")
        if m.dtype == np.int32:
            continue
        plain, shift = quantize_multipliers([e])
        acc = np.arange(-bound, bound + 1)
        ours = np.clip(round_once(acc, int(plain[0]), int(shift[0])), -128, 127)
        checked += int(np.any(ours != np.clip(_double(acc, e), -128, 127)))
    assert checked > 0


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("product", [False, True])
def test_scales_of_weights_along_other_axes_are_not_taken_for_those_of_outputs(product: bool, axis: int) -> None:
    """Eight input and output channels, so that the number of scales tells nothing."""
    rng, extents = np.random.default_rng(axis), (8, 8) if product else (8, 8, 8, 8)
    axis %= len(extents)
    shape = (1, 8) if product else (1, 9, 9, 8)
    real = lambda v: relax.const(np.float32(v))  # noqa: E731
    stored = lambda v: relax.const(np.int8(v))  # noqa: E731
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "int8"))
    weights = relax.const(rng.integers(-127, 128, extents).astype("int8"))
    scales, zeros = relax.const(np.linspace(0.001, 0.02, 8, dtype="float32")), relax.const(np.zeros(8, "int8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            left = builder.emit(relax.op.dequantize(x, real(0.02), stored(3), axis=len(shape) - 1))
            right = builder.emit(relax.op.dequantize(weights, scales, zeros, axis=axis))
            layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
            y = relax.op.matmul(left, right) if product else relax.op.nn.conv2d(left, right, **layouts)
            out = builder.emit_output(
                relax.op.quantize(builder.emit(y), real(0.1 if product else 4.0), stored(-5), axis=len(shape) - 1)
            )
        builder.emit_func_output(out)
    mod = builder.get()
    data = rng.integers(-128, 128, shape).astype("int8")
    given, ours = Compiled(mod)(data)[0], Compiled(LowerQuantized()(mod))(data)[0]
    assert np.ptp(given.astype(int)) > 10
    assert np.abs(given.astype(int) - ours).max() <= 1  # the integer form rounds as TFLite does


def test_equal_operators_share_a_function_that_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tvm.tirx.PrimFunc] = []
    write = te.create_prim_func

    def counted(*args: Any, **options: Any) -> tvm.tirx.PrimFunc:
        written.append(write(*args, **options))
        return written[-1]

    monkeypatch.setattr(te, "create_prim_func", counted)
    writer = ModelWriter()
    shape = (1, 4, 4, 2)
    x, y = writer.activation(shape, "int8", 0.5, -3), writer.activation(shape, "int8", 0.5, -3)
    zeros = (-3, -3, -3, 4)  # of the sums: the first three are of one kind
    for zero in zeros:
        sum_, writer.outputs[:] = writer.tensor(shape, "int8", 0.5, zero), []
        writer.operator("ADD", [x, y], [sum_], "AddOptions", fusedActivationFunction=0)
        x, y = sum_, x
    moved = writer.tensor(shape, "int8", 0.25, 4)
    writer.operator("QUANTIZE", [x], [moved], "QuantizeOptions")
    mod = _lowered(tmp_path, writer)
    assert _kinds(mod) == ["add"] * 4 + ["requantize"]
    assert len(written) == 3, "three sums are equal"
    data = [np.random.default_rng(k).integers(-128, 128, shape).astype("int8") for k in range(2)]
    for ours, theirs in zip(Compiled(mod)(*data), Reference(writer.finish()).run(data), strict=True):
        np.testing.assert_array_equal(ours, theirs)
