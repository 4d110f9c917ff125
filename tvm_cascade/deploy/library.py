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


def require_linker(cuda: bool) -> None:
    """Check before minutes of work for a way to link a shared library here.

    Raises `MissingToolError` without a C++ compiler, `UsageError` for CUDA on a system without ELF files.
    """
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
    write_library(compile_stages(mod, target, code), path, code)
