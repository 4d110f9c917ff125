"""Machine code for GPUs from CUDA sources, by nvcc or nvrtc: for one or several architectures, without fast arithmetic.

TVM's own callback compiles for one architecture and with `--use_fast_math`, which rounds divisions and roots to less
than float32, and flushes small numbers to zero. Here both are options. Several architectures make one fat binary, which
also holds the last architecture's PTX: the driver compiles that for later GPUs.
"""

# TVM has no stubs: pyright infers its functions' types too narrowly.
# pyright: reportArgumentType=false, reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from tvm_cascade.cuda_toolkit import find_nvcc
from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.runtime.cuda import COMPILER_REMEDY, cuda_compiler

_CALLBACK = "tvm_callback_cuda_compile"  # TVM's runtime calls it with a module's CUDA source
_EXACT = "TVM_CUDA_NVCC_NO_FAST_MATH"  # TVM's environment variable


@dataclass(frozen=True, slots=True)
class CudaCode:
    """The machine code to make: for these architectures, such as ("sm_80", "sm_90"), in ascending order."""

    architectures: tuple[str, ...]
    fast_math: bool = False

    def generate(self) -> list[str]:
        """Return nvcc's options for the architectures."""
        names = [arch.removeprefix("sm_") for arch in self.architectures]
        kinds = [f"arch=compute_{n},code=sm_{n}" for n in names]
        if len(names) > 1:
            kinds.append(f"arch=compute_{names[-1]},code=compute_{names[-1]}")
        return [word for kind in kinds for word in ("-gencode", kind)]


def parse_architectures(values: Sequence[str]) -> tuple[str, ...]:
    """Parse the architectures in "sm_80,sm_90" or several such texts, ascending. Raises `UsageError` for a wrong name."""
    names = {name for value in values for name in value.replace(",", " ").split()}
    for name in names:
        if re.fullmatch(r"sm_\d+[af]?", name) is None:
            raise UsageError(f"--arch {name} is no architecture: they are called sm_80, sm_90, sm_100, ...")
    return tuple(sorted(names, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


def require_cuda_compiler(code: CudaCode) -> None:
    """Check before minutes of work that a compiler for `code` is here.

    Raises `MissingToolError` without a compiler, `UsageError` for an architecture unknown to the compiler.
    """
    compiler = cuda_compiler()
    if compiler is None:
        raise MissingToolError("a compiler of CUDA sources", COMPILER_REMEDY)
    if compiler == "nvrtc" and len(code.architectures) > 1:
        raise UsageError("nvrtc makes code for one architecture at a time: give one --arch, or install nvcc")
    known = _known_architectures(compiler)
    for name in code.architectures:
        if known and name not in known:
            raise UsageError(
                f"{compiler} makes no code for {name}: choose of {', '.join(known)}, or install another one"
            )


def compile_cuda(source: str, code: CudaCode) -> bytes:
    """Compile a CUDA source to a fat binary (nvcc) or a cubin (nvrtc).

    Raises `ToolError` if the compiler refuses the source.
    """
    from tvm.support import nvcc

    compiler = cuda_compiler()
    if compiler is None:
        raise MissingToolError("a compiler of CUDA sources", COMPILER_REMEDY)
    target = tvm.target.Target({"kind": "cuda", "arch": code.architectures[0]})
    try:
        with _environment(_EXACT, "" if code.fast_math else "1"), _environment("PATH", _path()), target:
            if compiler == "nvcc":
                return bytes(nvcc.compile_cuda(source, "fatbin", code.generate(), compiler="nvcc"))
            with nullcontext() if code.fast_math else _exact_nvrtc():
                return bytes(nvcc.compile_cuda(source, "cubin", code.architectures[0], compiler="nvrtc"))
    except RuntimeError as error:
        _, _, said = str(error).rpartition("ompilation error:\n")
        lines = [line for line in said.splitlines() if "error" in line] or said.strip().splitlines() or [""]
        raise ToolError(f"{compiler} refuses a kernel: {lines[0][:300]}") from None


@contextmanager
def compiled_as(code: CudaCode) -> Iterator[None]:
    """Compile the CUDA sources of modules built in the block as `code` says."""
    before = tvm.get_global_func(_CALLBACK, allow_missing=True)
    tvm_ffi.register_global_func(_CALLBACK, lambda source: compile_cuda(source, code), override=True)
    try:
        yield
    finally:
        if before is not None:
            tvm_ffi.register_global_func(_CALLBACK, before, override=True)


def _known_architectures(compiler: str) -> list[str]:
    """List the architectures known to the compiler; empty if unknown."""
    if compiler == "nvcc":
        try:
            command = [find_nvcc() or "nvcc", "--list-gpu-code"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return []
        return re.findall(r"sm_\d+[af]?", done.stdout)
    try:
        from cuda.bindings import nvrtc

        error, known = nvrtc.nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError):  # the bindings without the library that they bind
        raise MissingToolError("NVIDIA's library nvrtc", COMPILER_REMEDY) from None
    return [f"sm_{arch}" for arch in known] if int(error) == 0 else []


def _path() -> str:
    """Return the PATH on which TVM finds nvcc."""
    found, path = find_nvcc(), os.environ.get("PATH", "")
    return path if found is None else f"{os.path.dirname(found)}{os.pathsep}{path}"


@contextmanager
def _exact_nvrtc() -> Iterator[None]:
    """Keep `--use_fast_math` from nvrtc inside the block: TVM always passes this, and no later option takes it back
    whole.
    """
    from cuda.bindings import nvrtc

    compiled = nvrtc.nvrtcCompileProgram

    def exact(program: Any, count: int, options: Sequence[bytes]) -> Any:
        kept = [option for option in options[:count] if option != b"--use_fast_math"]
        return compiled(program, len(kept), kept)

    nvrtc.nvrtcCompileProgram = exact
    try:
        yield
    finally:
        nvrtc.nvrtcCompileProgram = compiled


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside the block; TVM reads an empty one as not set."""
    before: Any = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
