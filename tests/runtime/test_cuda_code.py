"""Machine code for GPUs: which architectures, exact arithmetic, and what is refused; no GPU is needed."""

from __future__ import annotations

import pytest
import tvm

from tvm_cascade.cuda_toolkit import find_nvcc
from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.runtime import cuda_code
from tvm_cascade.runtime.cuda_code import (
    CudaCode,
    compile_cuda,
    compiled_as,
    parse_architectures,
    require_cuda_compiler,
)

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: make test-cuda installs it and runs these tests")
SOURCE = 'extern "C" __global__ void root(float* x) { x[threadIdx.x] = sinf(x[0]) / x[1]; }'


def test_architectures_are_put_in_order():
    assert parse_architectures(["sm_100,sm_80", "sm_90", "sm_90"]) == ("sm_80", "sm_90", "sm_100")
    assert CudaCode(("sm_90",)).generate() == ["-gencode", "arch=compute_90,code=sm_90"]
    last = CudaCode(("sm_80", "sm_90")).generate()
    assert last[-1] == "arch=compute_90,code=compute_90" and len(last) == 6  # PTX for GPUs that came later
    with pytest.raises(UsageError, match="sm90 is no architecture"):
        parse_architectures(["sm90"])


def test_without_a_compiler_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(cuda_code, "cuda_compiler", lambda: None)
    with pytest.raises(MissingToolError, match=r"tvm-cascade\[cuda\]"):
        require_cuda_compiler(CudaCode(("sm_90",)))


def test_nvrtc_makes_one_architecture(monkeypatch):
    monkeypatch.setattr(cuda_code, "cuda_compiler", lambda: "nvrtc")
    with pytest.raises(UsageError, match="one architecture at a time"):
        require_cuda_compiler(CudaCode(("sm_80", "sm_90")))


def test_nvcc_of_the_extra_is_found(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_nvcc() == str(tool)


@needs_nvcc
def test_arithmetic_is_exact_unless_asked():
    exact, fast = (compile_cuda(SOURCE, CudaCode(("sm_90",), fast)) for fast in (False, True))
    assert exact[:4] == fast[:4] == b"\x50\xed\x55\xba"  # the magic number of a fat binary
    assert len(exact) > len(fast)  # the exact sine reduces its argument


@needs_nvcc
def test_what_the_compiler_does_not_know_is_refused():
    with pytest.raises(UsageError, match=r"nvcc makes no code for sm_35: choose of .*sm_90"):
        require_cuda_compiler(CudaCode(("sm_35",)))
    with pytest.raises(ToolError, match=r"nvcc refuses a kernel: .*error"):
        compile_cuda("__global__ void broken( {", CudaCode(("sm_90",)))


def test_the_callback_of_tvm_is_put_back(monkeypatch):
    seen = []
    monkeypatch.setattr(cuda_code, "compile_cuda", lambda source, code: seen.append((source, code)) or b"code")
    code = CudaCode(("sm_90",))
    with compiled_as(code):
        assert bytes(tvm.get_global_func("tvm_callback_cuda_compile")("text")) == b"code"
    assert seen == [("text", code)]
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "neither")
    with pytest.raises(ValueError, match="neither"):
        tvm.get_global_func("tvm_callback_cuda_compile")("text")
    assert len(seen) == 1
