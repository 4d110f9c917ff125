"""Builds for this process that are made quickly and run slowly: to compare what small networks and kernels compute.

Machine code without optimisation, after the passes of TVM's own pipeline that code for one processor cannot do without:
nothing is simplified, partitioned, vectorized or shared. Such a build takes a third of the usual time, and is linked: LLVM
selects instructions for an object without optimisation too, where its JIT optimises in any case and takes four times as long.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tvm
from tvm import relax as _relax
from tvm import s_tir as _s_tir
from tvm import tirx as _tirx

from tvm_cascade.emit.host import register_pipeline

relax: Any = _relax  # its nodes get their fields at run time
s_tir: Any = _s_tir
tirx: Any = _tirx
QUICK_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


_NAME = register_pipeline(
    "tvm_cascade.quick",
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LowerMatchBuffer(),
    s_tir.transform.LowerOpaqueBlock(),
    tirx.transform.FlattenBuffer(),
    tirx.transform.VectorizeLoop(False),
)


def quick_build(mod: Any, optimisation: int = 0) -> Any:
    """An executable of a Relax module, or of PrimFuncs, for this machine's processor; without checks of arguments."""
    target = QUICK_TARGET if optimisation == 0 else tvm.target.Target({"kind": "llvm", "opt-level": optimisation})
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        return tvm.compile(mod, target, tir_pipeline="default" if optimisation else _NAME)


def linked(module: Any) -> Any:
    """A module of LLVM code without optimisation as a shared library, loaded; `module` itself where that cannot be linked.

    Its functions may call those of this process alone. Others, such as the conversions of float16 that are part of
    compilers, only LLVM's JIT knows.
    """
    if sys.platform != "linux" or shutil.which("ld") is None:
        return module
    with tempfile.TemporaryDirectory() as folder:
        made, library = Path(folder) / "module.o", Path(folder) / "module.so"
        module.write_to_file(str(made))
        subprocess.run(["ld", "-shared", "-z", "now", "-o", str(library), str(made)], check=True, capture_output=True)
        try:
            return tvm.runtime.load_module(str(library))
        except RuntimeError:  # of the dynamic linker: a function is not there
            return module


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
