"""Softmax of bytes to steps far below 1/256, as PT2E observes attention over many steps: integers, near exact values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized, with_real_operators
from tvm_cascade.schedules.tir import relax
from tvm_cascade.testing.reference import Compiled

_LOWER: Any = LowerQuantized()
_ROWS = 200


def _network(classes: int, step: float, out: float) -> tvm.IRModule:
    bb: Any = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, _ROWS, classes), "int8"))
    with bb.function("main", [x]):
        with bb.dataflow():
            reals = bb.emit(relax.op.dequantize(x, relax.const(step, "float32"), relax.const(3, "int8"), axis=0))
            made = bb.emit(relax.op.nn.softmax(reals, -1))
            scale, zero = relax.const(out, "float32"), relax.const(-128, "int8")
            stored = bb.emit_output(relax.op.quantize(made, scale, zero, axis=0, out_dtype="int8"))
        bb.emit_func_output(stored)
    return with_real_operators(bb.finalize())


@pytest.mark.parametrize(
    ("classes", "step", "out"), [(64, 0.0006, 6.2e-5), (16, 0.05, 2.0**-11), (256, 0.02, 3e-5), (64, 0.1, 0.001)]
)
def test_probabilities_are_those_of_doubles(classes: int, step: float, out: float) -> None:
    lowered = _LOWER(_network(classes, step, out))
    assert float_remains(lowered) == ()
    x = np.random.default_rng(0).integers(-128, 128, (1, _ROWS, classes)).astype("int8")
    x[0, 0] = 7  # all alike: each is 1 / classes
    reals = np.exp((x.astype("float64") - x.max(-1, keepdims=True)) * np.float32(step))
    want = np.clip(np.rint(reals / reals.sum(-1, keepdims=True) / np.float32(out)) - 128, -128, 127)
    ours = Compiled(lowered)(x)[0].astype("int64")
    np.testing.assert_array_equal(ours[0, 0], want[0, 0])
    beside = np.abs(ours - want)
    assert beside.max() <= 1 and beside.sum() * 5_000 <= beside.size  # near ties alone


def test_steps_beyond_the_bits_stay_floats() -> None:
    assert "relax.nn.softmax" in [r.operator for r in float_remains(_LOWER(_network(64, 0.01, 2.0**-17)))]
