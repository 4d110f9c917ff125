"""Commands and functions that read no PyTorch file do not import torch; TVM works with it as soon as anybody does."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MODEL = str(files("tvm_cascade.testing") / "data" / "shapes.tflite")


def python(code: str) -> list[str]:
    """Return the lines that a Python process prints on standard error."""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("arguments", [["plan", MODEL], ["doctor"], ["stages", MODEL, "--target", "llvm"]])
def test_commands_import_no_torch(arguments: list[str]) -> None:
    code = f"""
import atexit, sys
atexit.register(lambda: print("tvm" in sys.modules, "torch" in sys.modules, file=sys.stderr))
from tvm_cascade.cli import main
main({arguments!r})
"""
    assert python(code)[-1].split()[1] == "False"


def test_functions_import_no_torch_and_tvm_knows_it_later() -> None:
    code = f"""
import sys
import tvm_cascade
assert tvm_cascade.plan({MODEL!r}).peak_bytes > 0
import tvm, tvm_ffi
print("torch" in sys.modules, file=sys.stderr)
import torch
print(tvm_ffi.convert(torch.float32), tvm_ffi.convert(torch.bool), tvm_ffi._convert.torch is torch, file=sys.stderr)
print(tvm.runtime.from_dlpack(torch.ones(2)).numpy().tolist(), tvm_ffi.convert(torch.ones(2)).shape, file=sys.stderr)
print(torch.from_dlpack(tvm.runtime.tensor(torch.ones(2).numpy())).tolist(), file=sys.stderr)
print(tvm_ffi.use_torch_stream.__doc__.strip().splitlines()[0], file=sys.stderr)
print([f for f in sys.meta_path if type(f).__module__ == "tvm_cascade.torch_import"], file=sys.stderr)
"""
    assert python(code) == [
        "False",
        "float32 bool True",
        "[1.0, 1.0] (2,)",
        "[1.0, 1.0]",
        "Create an FFI stream context with a Torch stream or graph.",
        "[]",
    ]


def test_torch_that_is_imported_already_stays_as_it_is() -> None:
    code = """
import sys, torch, tvm_cascade
tvm_cascade.plan
import tvm_ffi
print(tvm_ffi._convert.torch is torch, file=sys.stderr)
print([f for f in sys.meta_path if type(f).__module__ == "tvm_cascade.torch_import"], file=sys.stderr)
"""
    assert python(code) == ["True", "[]"]


def test_an_import_of_tvm_by_others_imports_torch_as_ever() -> None:
    code = "import sys, tvm_cascade, tvm; print('torch' in sys.modules, file=sys.stderr)"
    assert python(code) == ["True"]
