"""Builds for this process that are made quickly and run slowly: to compare results.

Machine code without optimisation, after the indispensable passes of TVM's pipeline: nothing is simplified, partitioned,
vectorized or shared. Such a build takes a third of the usual time, and is linked: for an object LLVM selects
instructions without optimisation too, while its JIT always optimises and takes four times as long.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm.tirx import compilation_pipeline

from tvm_cascade.schedules.tir import PrimFunc, dtype_of, elements, loads, s_tir, stores, tirx
from tvm_cascade.schedules.tir.nan import nan_kept

QUICK_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def register_pipeline(name: str, *passes: Any) -> str:
    """Register `name` as a pipeline for `tvm.tirx.build`: `passes`, then the needs of LLVM and of an entry with
    tensors; return the name.

    TVM's default pipeline takes twice as long: the passes for blocks, threads and stray statements find nothing in
    kernels on raw pointers.
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
        """Return a module's passes, and the passes that finish functions for the host and for a device."""
        return tvm.transform.Sequential([*passes, *ending]), finish, finish

    compilation_pipeline.register_tir_pipeline(name, pipeline)
    return name


def _is_flat(func: PrimFunc) -> bool:
    """Return True if every buffer that `func` reads or writes has one axis and a type that is stored as it is."""
    buffers = {load.source for load in loads(func.body)} | {store.buffer for store in stores(func.body)}
    buffers |= {p for p in elements(func.params) if hasattr(p.ty, "shape")}
    return all(len(elements(buffer.ty.shape)) == 1 and dtype_of(buffer) != "bool" for buffer in buffers)


def _flatten_buffers() -> Any:
    """Return the pass that flattens all buffers of functions; flat functions, such as kernels, stay as they are."""
    flatten = tirx.transform.FlattenBuffer()

    def flattened(mod: Any, _context: Any) -> Any:
        others = {
            gv: func for gv, func in mod.functions.items() if isinstance(func, tirx.PrimFunc) and not _is_flat(func)
        }
        made = flatten(tvm.IRModule(others))
        changed = mod.clone()
        changed.update({gv: made[gv.name_hint] for gv in others})
        return changed

    return tvm.transform.module_pass(flattened, opt_level=0, name="FlattenBuffers")


_NAME = register_pipeline(
    "tvm_cascade.quick",
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LowerMatchBuffer(),
    s_tir.transform.LowerOpaqueBlock(),
    _flatten_buffers(),
    tirx.transform.VectorizeLoop(False),
)


def quick_build(mod: Any, optimisation: int = 0) -> Any:
    """Compile a Relax module, or PrimFuncs, for this machine's processor; without checks of arguments."""
    target = QUICK_TARGET if optimisation == 0 else tvm.target.Target({"kind": "llvm", "opt-level": optimisation})
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        return tvm.compile(mod, target, tir_pipeline="default" if optimisation else _NAME)


@cache
def _object_of(code: Path) -> bytes:
    """Compile a file with LLVM code."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "code.o"
        tvm.runtime.load_module(str(code)).write_to_file(str(made))
        return made.read_bytes()


_ROOM = 8 << 20  # bytes that have to be free for the files of a module


def can_link() -> bool:
    """Return True if this machine has a linker that makes shared libraries of objects."""
    return sys.platform == "linux" and shutil.which("ld") is not None


def linked(module: Any, code: Path | None = None) -> Any:
    """Link a module of unoptimised LLVM code as a shared library and load the result; return `module` if linking is
    impossible.

    The module's functions may call only functions in this process, and functions in a file with LLVM `code`. Others,
    such as the float16 conversions in compilers, are known only to LLVM's JIT.
    """
    if not can_link():
        return module
    with tempfile.TemporaryDirectory() as folder:
        made, library = Path(folder) / "module.o", Path(folder) / "module.so"
        try:
            with made.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _ROOM)
        except OSError:  # LLVM ends the process where it cannot write
            return module
        module.write_to_file(str(made))
        objects = [made]
        if code is not None:
            objects.append(Path(folder) / "code.o")
            objects[1].write_bytes(_object_of(code))
        command = ["ld", "-shared", "-z", "now", "-o", str(library), *map(str, objects)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            return module
        try:
            return tvm.runtime.load_module(str(library))
        except RuntimeError:  # of the dynamic linker: a function is not there
            return module
