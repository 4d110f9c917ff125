"""Errors that a pass raises come out of TVM as what they are."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.ir import IRModule

import tvm_cascade.passes  # noqa: F401  (registers the classes)
from tvm_cascade.errors import CascadeError, GraphError, InfeasibleError, UsageError, ValidationError


@pytest.mark.parametrize(
    "error",
    [
        GraphError("the function's body is\nno sequence of bindings"),
        UsageError("give rewritten forms of one module"),
        ValidationError("step 1 of a: not in memory"),
        InfeasibleError(1000, 200, ["conv2d1", "add; 2"], "give more memory, or change the network"),
    ],
)
def test_class_message_and_data_survive(error: CascadeError) -> None:
    @tvm.ir.transform.module_pass(opt_level=0, name="fails")
    def fails(mod: IRModule, _context: tvm.ir.transform.PassContext) -> IRModule:
        raise error

    run: Any = fails  # the decorator makes it a pass
    with pytest.raises(type(error)) as caught:
        run(IRModule())
    assert str(caught.value) == str(error)
    assert vars(caught.value).items() >= vars(error).items()
