"""Requirements of running on a GPU besides TVM: a driver, CUDA's runtime library, and a compiler for CUDA sources.

TVM's wheel carries its CUDA runtime as a separate library, `libtvm_runtime_cuda.so`, loaded if `libcuda.so.1` (the
driver's) and `libcudart.so.13` are found. Otherwise modules for CUDA are built all the same, with sources in place of
machine code: such a module cannot run anywhere.
"""

# TVM has no stubs: pyright does not see a device's attributes.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import importlib.util
import os

import tvm

from tvm_cascade.cuda_toolkit import find_nvcc
from tvm_cascade.errors import MissingToolError

COMPILER_REMEDY = "put nvcc of the CUDA toolkit on the PATH, or pip install 'tvm-cascade[cuda]'"
_MODE = "TVM_CUDA_COMPILE_MODE"  # TVM's environment variable: nvrtc (package cuda-bindings) or nvcc


def cuda_compiler() -> str | None:
    """Choose the compiler for CUDA sources: "nvcc" or "nvrtc" as set by the user, else nvcc, else nvrtc; None without
    both.
    """
    if os.environ.get(_MODE):
        return os.environ[_MODE].lower()
    if find_nvcc():
        return "nvcc"
    found = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None
    return "nvrtc" if found else None


def has_cuda(device: int = 0) -> bool:
    """Test whether a module for CUDA can be compiled to machine code and run here, on GPU number `device`."""
    return tvm.cuda(device).exist and cuda_compiler() is not None


def with_architecture(target: str, device: int = 0) -> str:
    """Add the architecture of an installed GPU (`-arch=sm_...`) to `target`, unless given already."""
    if "-arch=" in target:
        return target
    return f"{target} -arch=sm_{tvm.cuda(device).compute_version.replace('.', '')}"


def require_cuda(device: int = 0) -> None:
    """Raise `MissingToolError`, with the missing part, unless `has_cuda` holds."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        remedy = "TVM looks for libcuda.so.1 and libcudart.so.13 on LD_LIBRARY_PATH"
        raise MissingToolError("NVIDIA's driver or CUDA's runtime library", remedy)
    if not tvm.cuda(device).exist:
        raise MissingToolError(f"CUDA device {device}", "nvidia-smi must list it")
    if cuda_compiler() is None:
        raise MissingToolError("a compiler of CUDA sources", COMPILER_REMEDY)
