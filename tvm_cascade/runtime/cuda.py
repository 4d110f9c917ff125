"""Requirements of running on a GPU other than TVM: a driver, CUDA's runtime library, and a compiler of CUDA sources.

TVM's wheel carries its CUDA runtime as a library of its own, `libtvm_runtime_cuda.so`, which is loaded where
`libcuda.so.1` (the driver's) and `libcudart.so.13` are found. Where it is not, modules for CUDA are built all the same,
with sources in place of machine code: such a module cannot be run anywhere.
"""

# TVM has no stubs: pyright does not see a device's attributes.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import importlib.util
import os
import shutil

import tvm

from tvm_cascade.errors import MissingToolError

_MODE = "TVM_CUDA_COMPILE_MODE"  # TVM's environment variable: nvrtc (package cuda-bindings) or nvcc


def cuda_compiler() -> str | None:
    """The compiler for CUDA sources: as the user has set it, else nvrtc, else nvcc; None where neither is installed."""
    if os.environ.get(_MODE):
        return os.environ[_MODE]
    if importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None:
        return "nvrtc"
    return "nvcc" if shutil.which("nvcc") else None


def choose_compiler() -> None:
    """Set TVM's compile mode to the compiler that is installed, unless the user has set it; TVM's default is nvrtc."""
    compiler = cuda_compiler()
    if compiler is not None:
        os.environ.setdefault(_MODE, compiler)


def has_cuda() -> bool:
    """Whether a module for CUDA can be compiled to machine code and run here."""
    return tvm.cuda(0).exist and cuda_compiler() is not None


def with_architecture(target: str) -> str:
    """`target` with the architecture of the installed GPU (`-arch=sm_...`), unless it gives one."""
    return target if "-arch=" in target else f"{target} -arch=sm_{tvm.cuda(0).compute_version.replace('.', '')}"


def require_cuda() -> None:
    """Raises `MissingToolError`, with what is missing, where `has_cuda` does not hold."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        remedy = "TVM looks for libcuda.so.1 and libcudart.so.13 on LD_LIBRARY_PATH"
        raise MissingToolError("NVIDIA's driver or CUDA's runtime library", remedy)
    if not tvm.cuda(0).exist:
        raise MissingToolError("a CUDA device", "nvidia-smi must list one")
    if cuda_compiler() is None:
        raise MissingToolError("a compiler of CUDA sources", "pip install cuda-bindings, or put nvcc on the PATH")
