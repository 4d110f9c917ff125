"""Quick builds are linked where they can be, and compute the same."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_cascade.testing.quick_build import QUICK_TARGET, linked, quick_build, virtual_machine

needs_linker = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("ld") is None, reason="no linker, as on other systems"
)


def network(dtype: str) -> tvm.IRModule:
    """The sum of two inputs, as floats."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((3, 4), dtype)) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.astype(builder.emit(relax.op.add(x, y)), "float32"))
        builder.emit_func_output(out)
    return relax.transform.LegalizeOps()(builder.get())


def calling(function: str) -> Any:
    """An LLVM module of one function, which calls another of this name."""
    x = tirx.decl_buffer((1,), "float32", "x")
    body = tirx.BufferStore(x, tirx.call_pure_extern("float32", function, x[0]), [0])
    func = tirx.PrimFunc([x], body).with_attr("global_symbol", "f")
    return tvm.compile(tvm.IRModule({"f": func}), QUICK_TARGET).mod


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_virtual_machine_computes_what_the_jit_does(dtype: str) -> None:
    mod = network(dtype)
    x, y = (np.arange(12, dtype=dtype).reshape(3, 4) / k for k in (3, 7))
    feeds = [tvm.runtime.tensor(value.astype(dtype)) for value in (x, y)]
    machines = virtual_machine(mod), relax.VirtualMachine(quick_build(mod), tvm.cpu())
    one, other = (machine["main"](*feeds).numpy() for machine in machines)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(one, x + y, rtol=1e-3)


@needs_linker
def test_what_calls_functions_of_this_process_is_linked() -> None:
    made = linked(calling("expf"))
    assert made.kind == "library"
    x = tvm.runtime.tensor(np.zeros(1, "float32"))
    made["f"](x)
    assert x.numpy() == [1]


@needs_linker
def test_what_calls_another_function_is_left_to_the_jit() -> None:
    made = calling("tvm_cascade_nobody_has_this")
    assert linked(made) is made
