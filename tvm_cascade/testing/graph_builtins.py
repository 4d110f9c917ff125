"""Stand-ins for the builtins of Relax's virtual machine that only TVM's CUDA runtime has: a CPU runs what a GPU would capture."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi

_NAMES = tuple(f"vm.builtin.cuda_graph.{name}" for name in ("get_cached_alloc", "run_or_capture"))


def register_graph_builtins() -> list[str]:
    """Register them in this process; the list tells what they have done: "allocate" for resources that were made, and "run"."""
    calls: list[str] = []
    held: dict[tuple[str, int], tuple[Any, Any]] = {}
    invoke: Any = tvm.get_global_func("vm.builtin.invoke_closure")

    def cached(context: Any, func: Any, index: int) -> Any:
        key = str(context), index  # the address of a virtual machine, where another one may lie later
        if key not in held or not held[key][0].same_as(func):
            calls.append("allocate")
            held[key] = func, invoke(context, func)
        return held[key][1]

    def capture(context: Any, func: Any, args: Any, _index: int) -> Any:
        calls.append("run")
        return invoke(context, func, *args)

    for name, function in zip(_NAMES, (cached, capture), strict=True):
        tvm_ffi.register_global_func(name, function, override=True)
    return calls


def remove_graph_builtins() -> None:
    """Take them away again."""
    for name in _NAMES:
        tvm_ffi.remove_global_func(name)
