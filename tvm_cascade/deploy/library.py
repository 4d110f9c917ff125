"""The shared library of a staged module, for GPUs with weights and machine code in it; no GPU or driver is needed."""

# TVM has no stubs: pyright infers its functions' types too narrowly.
# pyright: reportArgumentType=false
from __future__ import annotations

import shutil
import sys
from pathlib import Path

import tvm

from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.runtime.cuda_code import CudaCode
from tvm_cascade.runtime.execute import compile_stages
from tvm_cascade.runtime.shared_library import write_library
from tvm_cascade.staging.kernels.processors import other_triple


def cross_compiler_for(triple: str) -> str:
    """Return the name of the C++ compiler that links for another system, as Debian calls it: aarch64-linux-gnu-g++."""
    machine, *rest = triple.split("-")
    return "-".join((machine, *(part for part in rest if part not in ("unknown", "pc")), "g++"))


def require_linker(cuda: bool, triple: str = "") -> None:
    """Check before minutes of work for a way to link a shared library here; `triple`: of another system.

    Raises `MissingToolError` without a C++ compiler, `UsageError` for CUDA on a system without ELF files.
    """
    if triple:
        compiler = cross_compiler_for(triple)
        if shutil.which(compiler) is None:
            raise MissingToolError(
                compiler, f"it links libraries for {triple}: apt-get install g++-{compiler[:-4]} (Debian, Ubuntu)"
            )
        return
    if shutil.which("g++") is None and shutil.which("c++") is None and shutil.which("clang++") is None:
        raise MissingToolError(
            "a C++ compiler", "apt-get install g++ (Debian, Ubuntu) or xcode-select --install (macOS)"
        )
    if cuda and not sys.platform.startswith("linux"):
        raise UsageError("libraries for cuda are linked on Linux: emit this folder there")


def build_library(mod: tvm.IRModule, target: tvm.target.Target, path: Path, code: CudaCode | None = None) -> None:
    """Compile a module of `lower_stages` and link it to the shared library `path`.

    `code`: for CUDA, the machine code to embed. Raises `ToolError` if the compiler or the linker fails.
    """
    triple = other_triple(target)
    write_library(compile_stages(mod, target, code), path, code, cross_compiler_for(triple) if triple else "")
