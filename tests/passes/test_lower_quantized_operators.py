"""Every lowered operator against LiteRT's reference kernels, bit for bit, on random single-operator models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing import activation_cases, choice_cases, move_cases, operator_cases, weighted_cases
from tvm_cascade.testing.operator_check import check_operator
from tvm_cascade.testing.reference import Compiled, Reference
from tvm_cascade.testing.tflite import ModelWriter

_TIMES = int(os.environ.get("TVM_CASCADE_SWEEP", "1"))  # more cases of the same random sequences
CASES = 40 * _TIMES  # of each of the common operators for each type
MORE_CASES = 20 * _TIMES  # of the others
FEW_CASES = 8 * _TIMES  # where only the type differs, or compilation is slow


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("operator", operator_cases.OPERATORS)
def test_common_operators_equal_the_reference(tmp_path: Path, operator: str, dtype: str) -> None:
    check_operator(operator_cases.OPERATORS[operator], dtype, tmp_path, cases=CASES, seed=len(operator))


_UNSIGNED = {
    **operator_cases.OPERATORS,
    **move_cases.OPERATORS,
    **{name: activation_cases.OPERATORS[name] for name, dtype in activation_cases.KINDS if dtype == "uint8"},
    **{name: weighted_cases.OPERATORS[name] for name, dtype in weighted_cases.KINDS if dtype == "uint8"},
    **{name: choice_cases.OPERATORS[name] for name, dtype in choice_cases.KINDS if dtype == "uint8"},
}


@pytest.mark.parametrize("operator", _UNSIGNED)
def test_uint8_inside_of_a_network_equals_the_reference(tmp_path: Path, operator: str) -> None:
    """Where it is stored as int8: the reference rounds some sums of uint8 otherwise than those of int8."""
    check_operator(_UNSIGNED[operator], "uint8", tmp_path, cases=4 * _TIMES, inputs=2, seed=len(operator), inside=True)


PLAIN = ("elu",)  # has one kernel, which is not among the reference's


@pytest.mark.parametrize("operator, dtype", activation_cases.KINDS)
def test_activations_equal_the_reference(tmp_path: Path, operator: str, dtype: str) -> None:
    cases, plain = FEW_CASES if operator in activation_cases.SLOW else MORE_CASES, operator in PLAIN
    check_operator(activation_cases.OPERATORS[operator], dtype, tmp_path, cases=cases, seed=len(operator), plain=plain)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_sums_are_one_away_from_the_ordinary_kernel(tmp_path: Path, dtype: str) -> None:
    """Which truncates; the reference's own reads these types as unsigned bytes."""
    check_operator(weighted_cases.sum_, dtype, tmp_path, cases=FEW_CASES, plain=True, within=1)


def test_what_the_reference_lacks_is_said(tmp_path: Path) -> None:
    writer = ModelWriter()
    activation_cases.elu(np.random.default_rng(0), "int8", writer)
    with pytest.raises(ValueError, match="ELU"):
        Reference(writer.finish())


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("operator", move_cases.OPERATORS)
def test_moves_and_comparisons_equal_the_reference(tmp_path: Path, operator: str, dtype: str) -> None:
    check_operator(move_cases.OPERATORS[operator], dtype, tmp_path, cases=MORE_CASES, seed=len(operator))


@pytest.mark.parametrize("operator, dtype", weighted_cases.KINDS)
def test_weighted_operators_equal_the_reference(tmp_path: Path, operator: str, dtype: str) -> None:
    check_operator(weighted_cases.OPERATORS[operator], dtype, tmp_path, cases=MORE_CASES, seed=len(operator))


_CHOICES = (
    *choice_cases.KINDS,
    *((name, "int16") for name in choice_cases.INT16),
    *((name, "float32") for name in choice_cases.OPERATORS),
)


@pytest.mark.parametrize("operator, dtype", _CHOICES)
def test_choices_and_roots_equal_the_reference(tmp_path: Path, operator: str, dtype: str) -> None:
    cases = (6 if dtype == "int8" else 3) * _TIMES
    check_operator(choice_cases.OPERATORS[operator], dtype, tmp_path, cases=cases, seed=len(operator))


_FLOAT = {
    **operator_cases.FLOAT,
    **activation_cases.OPERATORS,
    **move_cases.OPERATORS,
    **weighted_cases.OPERATORS,
}


@pytest.mark.filterwarnings("ignore:invalid value")  # logarithms of what is negative, on both sides
@pytest.mark.parametrize("operator", _FLOAT)
def test_floats_equal_the_reference(tmp_path: Path, operator: str) -> None:
    seed, plain = len(operator), operator in PLAIN
    check_operator(_FLOAT[operator], "float32", tmp_path, cases=FEW_CASES, inputs=2, seed=seed, plain=plain)


@pytest.mark.parametrize("dtype, cases", [("float32", FEW_CASES // 2), ("int8", 2 * FEW_CASES)])
def test_an_lstm_equals_the_reference(tmp_path: Path, dtype: str, cases: int) -> None:
    check_operator(weighted_cases.lstm, dtype, tmp_path, cases=cases, inputs=2)


_INT16 = {
    **{name: operator_cases.OPERATORS[name] for name in operator_cases.INT16},
    **{name: activation_cases.OPERATORS[name] for name in activation_cases.INT16},
    **{name: weighted_cases.OPERATORS[name] for name in weighted_cases.INT16},
}


@pytest.mark.parametrize("operator", _INT16)
def test_int16_activations_equal_the_reference(tmp_path: Path, operator: str) -> None:
    check_operator(_INT16[operator], "int16", tmp_path, cases=MORE_CASES // 2, seed=len(operator))


@pytest.mark.parametrize("operator", move_cases.INT16)
def test_int16_moves_equal_the_reference(tmp_path: Path, operator: str) -> None:
    check_operator(move_cases.OPERATORS[operator], "int16", tmp_path, cases=FEW_CASES, seed=len(operator))


def test_layers_of_int16_sum_beyond_32_bits(tmp_path: Path) -> None:
    """Their bias has 64 bits, and so have the sums of more inputs than about 516."""
    w, rng, depth = ModelWriter(), np.random.default_rng(0), 1500
    x = w.activation((3, depth), "int16", 0.001)
    filters = w.constant(rng.integers(90, 128, (4, depth)).astype("int8"), 0.004)
    bias = w.constant(np.array([0, -(1 << 31) + 1, 12345, 7], "int64"), 0.001 * 0.004)
    outputs = [w.tensor((3, 4), "int16", scale) for scale in (0.7, 0.001)]  # the second saturates
    for out in outputs:
        w.operator("FULLY_CONNECTED", [x, filters, bias], [out], "FullyConnectedOptions", version=4)
    path = tmp_path / "deep.tflite"
    path.write_bytes(w.finish())
    lower: Any = LowerQuantized()
    lowered = lower(load(path))
    assert float_remains(lowered) == ()
    run, reference = Compiled(lowered), Reference(path.read_bytes())
    value = rng.integers(-32768, 32768, (3, depth)).astype("int16")
    value[0], value[1] = 32767, -32768
    ours, theirs = run(value), reference.run([value])
    assert np.ptp(theirs[0].astype("int32")) > 10000 and abs(int(theirs[0][0, 0])) < 32767
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_resizes_whose_coordinates_exceed_32_bits_are_computed_in_floats(tmp_path: Path) -> None:
    w, rows = ModelWriter(), 6 << 20
    x, size = w.activation((1, rows, 1, 1), "int8", 0.5), w.constant(np.array([3, 1], "int32"))
    w.operator("RESIZE_BILINEAR", [x, size], [w.tensor((1, 3, 1, 1), "int8", 0.5)], "ResizeBilinearOptions")
    path = tmp_path / "long.tflite"
    path.write_bytes(w.finish())
    lower: Any = LowerQuantized()
    lowered = lower(load(path))
    assert {r.reason for r in float_remains(lowered)} == {"a resize whose coordinates exceed 32 bits"}
    value = np.arange(rows).astype("int8").reshape(1, rows, 1, 1)
    assert Compiled(lowered)(value)[0].ravel().tolist() == [value[0, r, 0, 0] for r in (0, rows // 3, 2 * rows // 3)]
