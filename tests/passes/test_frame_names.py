"""Names of operators in refusals of frames."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade.errors import UsageError
from tvm_cascade.passes.sliding.incremental import frame_module

relax: Any = _relax


def test_a_refusal_names_a_function_as_the_plan_does() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit_te(
                lambda a: tvm.te.compute((1, 8, 4), lambda n, t, c: a[n, 7 - t, c]), x, primfunc_name_hint="scan"
            )
            result = builder.emit_output(turned)
        builder.emit_func_output(result)
    with pytest.raises(UsageError, match=r"scan \("):
        frame_module(builder.finalize(), 1)
