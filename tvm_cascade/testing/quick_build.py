"""Relax modules built quickly for this process (`schedules.tir.quick_build`), to compare what small networks compute."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax as _relax

from tvm_cascade.schedules.tir.quick_build import QUICK_TARGET, linked, quick_build

__all__ = [
    "QUICK_TARGET", "check_calls", "linked", "quick_build", "quick_run", "virtual_machine", "with_linked_kernels",
]  # fmt: skip

relax: Any = _relax  # its nodes get their fields at run time


def with_linked_kernels(executable: Any) -> Any:
    """The executable of a virtual machine, its kernels `linked`."""
    parts = list(executable.mod.imports)
    executable.mod.clear_imports()
    for part in parts:
        executable.mod.import_module(linked(part) if part.kind == "llvm" else part)
    return executable


def check_calls(mod: Any) -> None:
    """Assert that every call of a kernel hands over tensors of the types and static shapes that the kernel declares."""

    def check(call: Any) -> None:
        if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.call_tir"):
            return
        out_type = call.ty_args[0]
        tensors = [a.ty for a in call.args[1].fields] + list(getattr(out_type, "fields", [out_type]))
        declared = [p.ty for p in mod[call.args[0]].params if hasattr(p.ty, "shape")]
        name = call.args[0].name_hint
        assert [str(t.dtype) for t in tensors] == [str(t.dtype) for t in declared], name
        for tensor, own in zip(tensors, declared, strict=True):
            sizes = list(zip(tensor.shape, own.shape, strict=True))
            assert all(int(a) == int(b) for a, b in sizes if hasattr(a, "value") and hasattr(b, "value")), name

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, check)


def virtual_machine(mod: tvm.IRModule, optimisation: int = 0) -> Any:
    """A Relax virtual machine of `mod` on this machine: of a quick build, or optimised by TVM and LLVM where it runs long.

    TVM's checks of the arguments of every kernel are left out: they take two thirds of the time to machine code. Instead
    the calls of the module are checked against its kernels before.
    """
    check_calls(mod)
    made = quick_build(mod, optimisation)
    return relax.VirtualMachine(made if optimisation else with_linked_kernels(made), tvm.cpu())


def quick_run(mod: tvm.IRModule, *inputs: Any, function: str = "main") -> list[Any]:
    """The outputs of one call of a Relax function, as arrays."""
    result = virtual_machine(mod)[function](*map(tvm.runtime.tensor, inputs))
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else result)]
