"""What tests of staged programs share."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi


@pytest.fixture
def graph_builtins():
    """Stand-ins for the two CUDA graph builtins that only a CUDA runtime has; they record that they ran."""
    calls: list[str] = []
    held: dict[object, object] = {}
    invoke = tvm.get_global_func("vm.builtin.invoke_closure")

    def cached(context, func, index):
        key = (str(context), index)  # of one virtual machine
        if key not in held:
            calls.append("allocate")
            held[key] = invoke(context, func)
        return held[key]

    def capture(context, func, args, index):
        calls.append("run")
        return invoke(context, func, *args)

    tvm_ffi.register_global_func("vm.builtin.cuda_graph.get_cached_alloc", cached, override=True)
    tvm_ffi.register_global_func("vm.builtin.cuda_graph.run_or_capture", capture, override=True)
    yield calls
    for name in ("get_cached_alloc", "run_or_capture"):
        tvm_ffi.remove_global_func(f"vm.builtin.cuda_graph.{name}") if hasattr(tvm_ffi, "remove_global_func") else None
