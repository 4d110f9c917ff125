"""Many random cases of one operator, lowered together and compared with the oracle bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.operator_cases import Generator
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter


def check_operator(
    generate: Generator,
    dtype: str,
    folder: Path,
    *,
    cases: int,
    inputs: int = 3,
    seed: int = 0,
    plain: bool = False,
    within: int = 0,
    inside: bool = False,
) -> None:
    """Asserts that every output of every case equals the reference's on every input, and that nothing stays float.

    Operators on floats are equal within 1e-5 of the largest output, since sums are reassociated. With `plain` the
    ordinary kernels are the reference, of which integers may differ by `within`. With `inside` uint8 inputs and outputs of
    the operators are tensors inside of the model, between QUANTIZE operators that change nothing.

    One import, one compilation and one oracle serve all cases: the file in `folder` holds them side by side.
    """
    rng, writer = np.random.default_rng(seed), ModelWriter()
    ends = []
    for _ in range(cases):
        generate(rng, dtype, writer)
        ends.append(len(writer.outputs))
    if inside:
        writer.put_inside()
    data = writer.finish()
    path = folder / "cases.tflite"
    path.write_bytes(data)
    lower: Any = LowerQuantized()  # a class that TVM's decorator makes a pass
    lowered = lower(load(path, stateless=True))
    assert dtype == "float32" or float_remains(lowered) == ()
    run, reference = Compiled(lowered), Reference(data, plain=plain)
    for k in range(inputs):
        arrays = random_inputs(reference.inputs, k)
        for output, (ours, theirs) in enumerate(zip(run(*arrays), reference.run(arrays), strict=True)):
            case = next(i for i, end in enumerate(ends) if output < end)
            assert ours.dtype == theirs.dtype
            where = f"case {case}, input {k}, output {output}"
            if theirs.dtype.kind == "f":
                reach = 1e-5 * max(float(np.nanmax(np.abs(theirs), initial=0)), 1e-3)
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=reach, err_msg=where)
                continue
            if within:
                np.testing.assert_allclose(ours.astype("int32"), theirs, rtol=0, atol=within, err_msg=where)
                continue
            np.testing.assert_array_equal(ours, theirs, err_msg=where)
