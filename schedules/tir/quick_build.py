"""Builds of functions for this process that are made quickly and run slowly: to compare what they compute.

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
from tvm.tirx import compilation_pipeline

from tvm_cascade.schedules.tir import s_tir, tirx
from tvm_cascade.schedules.tir.nan import nan_kept

QUICK_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def register_pipeline(name: str, *passes: Any) -> str:
    """Register `name` as a pipeline for `tvm.tirx.build`: `passes`, then what LLVM and an entry with tensors need; returns it.

    TVM's default pipeline takes twice as long: its passes for blocks, threads and stray statements find nothing in kernels
    that take raw pointers.
    """
    plain = tirx.transform
    ending = (
        plain.UnrollLoop(),
        s_tir.transform.RewriteUnsafeSelect(),  # LLVM evaluates both sides of a Select, also one that may not be read
        plain.AnnotateEntryFunc(),
        plain.SplitHostDevice(),
        plain.MakePackedAPI(),
    )

    def finish() -> Any:
        return tvm.transform.Sequential([plain.LowerTVMBuiltin(), plain.LowerIntrin(), nan_kept()])

    def pipeline() -> Any:
        """Passes of a module, and those that finish functions of the host and of a device."""
        return tvm.transform.Sequential([*passes, *ending]), finish, finish

    compilation_pipeline.register_tir_pipeline(name, pipeline)
    return name


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


_ROOM = 8 << 20  # bytes that have to be free for the files of a module


def linked(module: Any) -> Any:
    """A module of LLVM code without optimisation as a shared library, loaded; `module` itself where that cannot be linked.

    Its functions may call those of this process alone. Others, such as the conversions of float16 that are part of
    compilers, only LLVM's JIT knows.
    """
    if sys.platform != "linux" or shutil.which("ld") is None:
        return module
    with tempfile.TemporaryDirectory() as folder:
        made, library = Path(folder) / "module.o", Path(folder) / "module.so"
        try:
            made.write_bytes(bytes(_ROOM))
        except OSError:  # LLVM ends the process where it cannot write
            return module
        module.write_to_file(str(made))
        command = ["ld", "-shared", "-z", "now", "-o", str(library), str(made)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            return module
        try:
            return tvm.runtime.load_module(str(library))
        except RuntimeError:  # of the dynamic linker: a function is not there
            return module
