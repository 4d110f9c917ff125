"""The integer LSTM: its functions over all their arguments, what is refused, and the memory and work of its kernel."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.frontend import load
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.integer.lstm import exponentials
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.litert_check import equal_outputs
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

STEPS, DEPTH, UNITS = 6, 3, 48


def _lstm(
    writer: ModelWriter,
    exponent: int = -11,
    batch: int = 1,
    without: str = "",
    clip: float = 0.0,
    beyond: int | None = None,
    major: bool = False,
    states: int = UNITS,
    zero: int = 0,
    clipped: float = 0.0,
) -> None:
    """Biases over the whole range of a gate. Other `states` than units are projected, from units of a `zero` point. `without`
    and `beyond` make it one that is refused."""
    rng = np.random.default_rng(-exponent)
    x = writer.activation((STEPS, batch, DEPTH) if major else (batch, STEPS, DEPTH), "int8", 0.02, 5)
    inputs = [x, *([-1] * 23)]
    for k in range(4):
        inputs[1 + k] = writer.constant(rng.integers(-127, 128, (UNITS, DEPTH)).astype("int8"), 0.01)
        inputs[5 + k] = writer.constant(rng.integers(-127, 128, (UNITS, states)).astype("int8"), 0.002)
        inputs[12 + k] = writer.constant(rng.integers(-45000, 45000, UNITS).astype("int32"), 0.0002)
    if states != UNITS:
        inputs[16] = writer.constant(rng.integers(-127, 128, (states, UNITS)).astype("int8"), 0.004)
        inputs[17] = writer.constant(rng.integers(-9000, 9000, states).astype("int32"), 0.004 / 128)
    inputs[18] = writer.tensor((batch, states), "int8", 1 / 128, variable=True)
    cell = "int8" if without == "cell" else "int16"
    inputs[19] = writer.tensor((batch, UNITS), cell, 2.0**exponent, variable=True)
    if beyond is not None:
        inputs[beyond] = writer.constant(np.ones(UNITS, "int16"), 0.01)
    between = [] if without == "intermediates" else [writer.tensor((1,), "int8", 1 / 128, zero) for _ in range(5)]
    options = {"fusedActivationFunction": 4, "timeMajor": major, "cellClip": clip, "projClip": clipped}
    out = writer.tensor((STEPS, batch, states) if major else (batch, STEPS, states), "int8", 1 / 128)
    name, table = "UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTMOptions"
    writer.operator(name, inputs, [out], table, intermediates=between, **options)


def test_every_scale_of_the_cell_equals_the_reference(tmp_path: Path) -> None:
    writer = ModelWriter()
    for exponent in range(-15, -10):
        _lstm(writer, exponent, batch=4, clip=0.4 if exponent == -13 else 0.0)
    data = writer.finish()
    (tmp_path / "m.tflite").write_bytes(data)
    lower: Any = LowerQuantized()  # a class that TVM's decorator makes a pass
    lowered = lower(load(tmp_path / "m.tflite", stateless=True))
    assert float_remains(lowered) == ()
    run, reference = Compiled(lowered), Reference(data)
    seen: set[int] = set()
    for k in range(4):
        arrays = random_inputs(reference.inputs, k)
        for ours, theirs in zip(run(*arrays), reference.run(arrays), strict=True):
            np.testing.assert_array_equal(ours, theirs)
            seen |= set(theirs.ravel().tolist())
    assert len(seen) > 200  # of 256


@pytest.mark.parametrize("clipped", [0.0, 0.5])
def test_projections_equal_the_reference(tmp_path: Path, clipped: float) -> None:
    """From units of a zero point, at which they saturate; and the memory and work of one sequence on the host."""
    writer, states = ModelWriter(), 10
    for zero, major in ((0, False), (-90, True), (100, False)):
        _lstm(writer, batch=3, major=major, states=states, zero=zero, clipped=clipped)
    made = equal_outputs(tmp_path, writer)
    assert max(np.abs(a).max() for a in made) <= 64 if clipped else len({*made[0].ravel().tolist()}) > 100
    writer = ModelWriter()
    _lstm(writer, states=states, zero=-90, clipped=clipped)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    plan = tvm_cascade.compile(tmp_path / "m.tflite", target="host", output=tmp_path / "p", stateless=True).plan
    assert 0 <= plan.peak - (STEPS * DEPTH + STEPS * states + 2 * UNITS + UNITS) < 16  # of alignment
    ran = tvm_cascade.run(tmp_path / "p", board="host", check=tmp_path / "m.tflite")
    assert ran.match and ran.arena_high_water_bytes == plan.peak
    products = STEPS * DEPTH + (STEPS - 1) * states
    assert ran.executed_macs == UNITS * (4 * products + STEPS * states)


def test_float_peepholes_equal_the_reference(tmp_path: Path) -> None:
    """Of all gates, and without those of a coupled input gate; of some gates only they are refused."""
    for first in (0, 1):
        writer = ModelWriter()
        _floats(writer, first, range(first, 3))
        equal_outputs(tmp_path, writer)
    writer = ModelWriter()
    _floats(writer, 0, (1, 2))
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match="an LSTM with peepholes of some gates only"):
        load(tmp_path / "m.tflite")


def _floats(writer: ModelWriter, first: int, peepholes: Iterable[int]) -> None:
    """A float LSTM of 5 units whose gates are those from `first` on."""
    rng, inputs = np.random.default_rng(first), [writer.activation((2, STEPS, DEPTH), "float32"), *([-1] * 23)]
    for k in range(first, 4):
        for at, shape in ((1, (5, DEPTH)), (5, (5, 5)), (12, (5,))):
            inputs[at + k] = writer.constant(rng.standard_normal(shape).astype("float32"))
    for k in peepholes:
        inputs[9 + k] = writer.constant(rng.standard_normal(5).astype("float32"))
    inputs[18:20] = [writer.tensor((2, 5), "float32", variable=True) for _ in range(2)]
    options = {"fusedActivationFunction": 4, "timeMajor": False, "cellClip": 0.0, "projClip": 0.0}
    name, table = "UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTMOptions"
    writer.operator(name, inputs, [writer.tensor((2, STEPS, 5), "float32")], table, **options)


def test_exponentials_are_those_of_real_numbers() -> None:
    for fraction in (12, 14):
        table = exponentials(fraction)
        exact = np.exp(-np.arange(1, len(table) + 1) / (1 << fraction)) * (1 << 15)
        assert len(table) == (1 << fraction) // 4
        assert float(np.abs(table - exact).max()) < 4


def test_the_network_needs_its_sequences_and_its_cells(tmp_path: Path) -> None:
    writer = ModelWriter()
    _lstm(writer)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    made = tvm_cascade.compile(tmp_path / "m.tflite", target="host", output=tmp_path / "p", stateless=True)
    assert 0 <= made.plan.peak - (STEPS * DEPTH + STEPS * UNITS + 2 * UNITS) < 16  # of alignment
    ran = tvm_cascade.run(tmp_path / "p", board="host", check=tmp_path / "m.tflite")
    assert ran.match and ran.arena_high_water_bytes == made.plan.peak
    assert ran.executed_macs == 4 * UNITS * (STEPS * DEPTH + (STEPS - 1) * UNITS)


@pytest.mark.parametrize("major", [False, True])
def test_sequences_side_by_side_are_computed_whole(tmp_path: Path, major: bool) -> None:
    writer = ModelWriter()
    _lstm(writer, batch=3, major=major)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    lower: Any = LowerQuantized()
    (computed,) = extract_graph(lower(load(tmp_path / "m.tflite", stateless=True))).operators
    assert computed is not None and computed.kernel.whole and computed.kernel.scratch_bytes == 2 * UNITS


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"without": "cell"}, "whose cell is not int16"),
        ({"without": "intermediates"}, "without the scale of its output"),
        ({"exponent": -9}, "whose cell has the scale"),
        ({"beyond": 10}, "with peepholes"),
        ({"beyond": 21}, "with layer normalization"),
    ],
)
def test_other_forms_are_refused_by_name(tmp_path: Path, wrong: dict, message: str) -> None:
    writer = ModelWriter()
    _lstm(writer, **wrong)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match=message):
        load(tmp_path / "m.tflite")
