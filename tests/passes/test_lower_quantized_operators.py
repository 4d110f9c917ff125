"""Every lowered operator against LiteRT's reference kernels, bit for bit, on random single-operator models.

Cases are written two hundred to a file: one import, one compilation and one oracle for all of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.frontend import load
from tvm_cascade.passes.lower_quantized import LowerQuantized, float_remains
from tvm_cascade.testing.operator_cases import OPERATORS
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

CASES = 200  # of each operator for each type
INPUTS = 3  # for each case


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_equals_the_reference(tmp_path: Path, operator: str, dtype: str) -> None:
    rng = np.random.default_rng([sum(map(ord, operator)), len(dtype)])
    writer = ModelWriter()
    last = [_add_case(operator, dtype, rng, writer) for _ in range(CASES)]
    data = writer.finish()
    (tmp_path / "cases.tflite").write_bytes(data)
    lowered = LowerQuantized()(load(tmp_path / "cases.tflite"))
    assert float_remains(lowered) == ()
    run, reference = Compiled(lowered), Reference(data)
    for seed in range(INPUTS):
        inputs = random_inputs(reference.inputs, seed)
        for k, (ours, theirs) in enumerate(zip(run(*inputs), reference.run(inputs), strict=True)):
            case = next(i for i, end in enumerate(last) if k < end)
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs, err_msg=f"case {case}, input {seed}, output {k}")


def _add_case(operator: str, dtype: str, rng: np.random.Generator, writer: ModelWriter) -> int:
    """Adds a case; returns the number of outputs that the model has then."""
    OPERATORS[operator](rng, dtype, writer)
    return len(writer.outputs)
