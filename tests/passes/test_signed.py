"""uint8 tensors inside of a network are stored as int8; its inputs and outputs, and what only moves them, are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax as _relax

pytest.importorskip("ai_edge_litert")

from tvm_cascade.frontend import load
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.relax_functions import bindings_of, is_call_tir
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

relax: Any = _relax


def stored_types(path: Path) -> list[str]:
    """By operator of the lowered network: its kind and the types that it reads and writes."""
    lower: Any = LowerQuantized()
    mod = lower(load(path))
    run, reference = Compiled(mod), Reference(path.read_bytes())
    for k in range(3):
        arrays = random_inputs(reference.inputs, k)
        for ours, theirs in zip(run(*arrays), reference.run(arrays), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    calls = [b for b in bindings_of(mod["main"]) if is_call_tir(b.value)]
    return [
        f"{mod[b.value.args[0]].attrs['op_kind']} {b.value.args[1].fields[0].ty.dtype} {b.var.ty.dtype}" for b in calls
    ]


def test_arithmetic_reads_one_type_and_writes_the_other(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 6, 6, 2), "uint8", 0.1, 7)
    y, pooled, z = (w.tensor((1, n, n, 2), "uint8", s, o) for n, s, o in ((6, 0.2, 99), (3, 0.2, 99), (3, 0.1, 11)))
    w.operator("MUL", [x, x], [y], "MulOptions", inner=True, version=2)
    halves: dict[str, Any] = {"padding": 1, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2}
    w.operator("AVERAGE_POOL_2D", [y], [pooled], "Pool2DOptions", inner=True, **halves)
    w.operator("ADD", [pooled, pooled], [z], "AddOptions", version=2)
    path = tmp_path / "m.tflite"
    path.write_bytes(w.finish())
    assert stored_types(path) == ["mul uint8 int8", "avg_pool2d int8 int8", "add int8 uint8"]


def test_what_only_moves_inputs_and_outputs_keeps_their_type(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 4, 4, 2), "uint8", 0.1, 7)
    padded = w.tensor((1, 5, 5, 2), "uint8", 0.1, 7)
    w.operator("PAD", [x, w.constant(np.array([[0, 0], [0, 1], [0, 1], [0, 0]], "int32"))], [padded], inner=True)
    low = w.tensor((1, 5, 5, 2), "uint8", 0.1, 7)
    w.operator("MINIMUM", [padded, w.constant(np.array([200, 30], "uint8"), 0.1, 7)], [low], inner=True)
    y, z = (w.tensor((1, 5, 5, 2), "uint8", 0.2, 99) for _ in range(2))
    w.operator("MUL", [low, padded], [y], "MulOptions", inner=True, version=2)
    w.operator("MAXIMUM", [y, w.constant(np.array([90, 120], "uint8"), 0.2, 99)], [z], inner=True)
    w.operator("LOGISTIC", [z], [w.tensor((1, 5, 5, 2), "uint8", 1 / 256, 0)])
    path = tmp_path / "m.tflite"
    path.write_bytes(w.finish())
    kinds = ["pad uint8 uint8", "minimum uint8 uint8", "mul uint8 int8", "maximum int8 int8", "lut int8 uint8"]
    assert stored_types(path) == kinds


def test_an_operator_without_integer_form_reads_and_writes_the_files_values(tmp_path: Path) -> None:
    """It keeps what it reads and writes in the file's type, so that nothing is converted to and fro."""
    w = ModelWriter()
    x, at = w.activation((4, 3), "uint8", 0.1, 7), w.activation((2,), "int32")
    y, chosen = w.tensor((4, 3), "uint8", 0.2, 99), w.tensor((2, 3), "uint8", 0.2, 99)
    w.operator("MUL", [x, x], [y], "MulOptions", inner=True, version=2)
    w.operator("GATHER", [y, at], [chosen], "GatherOptions", inner=True, axis=0)
    w.operator("ADD", [chosen, chosen], [w.tensor((2, 3), "uint8", 0.1, 11)], "AddOptions", version=2)
    path = tmp_path / "m.tflite"
    path.write_bytes(w.finish())
    lower: Any = LowerQuantized()
    run, reference = Compiled(lower(load(path))), Reference(path.read_bytes())
    arrays = [np.random.default_rng(0).integers(0, 256, (4, 3)).astype("uint8"), np.array([3, 1], "int32")]
    np.testing.assert_array_equal(run(*arrays)[0], reference.run(arrays)[0])


def test_an_operator_that_is_refused_is_copied_between_conversions() -> None:
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([4], "float32"))
    scale, zero = relax.const(np.float32(0.1)), relax.const(np.uint8(7))
    with bb.function("main", [x]):
        with bb.dataflow():
            stored = bb.emit(relax.op.quantize(x, scale, zero, 0, "uint8"))
            chosen = bb.emit(relax.op.take(stored, relax.const(np.array([3, 0], "int32")), None))
            result = bb.emit_output(relax.op.dequantize(chosen, scale, zero, 0))
        bb.emit_func_output(result)
    lower: Any = LowerQuantized()
    made = Compiled(lower(bb.finalize()))(np.array([-0.7, 1.0, 2.0, 24.8], "float32"))
    np.testing.assert_allclose(made[0], [24.8, -0.7], rtol=1e-6)
