"""The package imports no TVM, and TVM finds the pipeline "cascade" whichever of both is imported first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_imports_neither_tvm_nor_torch() -> None:
    code = "import sys, tvm_cascade; print({m.split('.')[0] for m in sys.modules} & {'tvm', 'tvm_ffi', 'torch'})"
    assert python(code) == "set()"


def test_planning_imports_neither_what_compiles_nor_what_it_does_not_read() -> None:
    rooms = ("micro", "parallel", "runtime", "importers.onnx.load", "importers.torch.load", "importers.tflite.load")
    code = f"""
import sys, tvm_cascade.api
print([m for m in sys.modules for r in {rooms!r} if f"{{m}}.".startswith(f"tvm_cascade.{{r}}.")])
print(tvm_cascade.api.RunReport.__module__)
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\ntvm_cascade.runs.run_report\n"


def test_dir_lists_the_api() -> None:
    assert python("import tvm_cascade as t; print(set(t.__all__) <= set(dir(t)), 'plan' in dir(t))") == "True True"


@pytest.mark.parametrize("order", ["tvm_cascade, tvm", "tvm, tvm_cascade"])
def test_the_pipeline_is_registered_in_either_order(order: str) -> None:
    code = f"""
import sys, {order}
from tvm import relax
left = [f for f in sys.meta_path if type(f).__module__.startswith("tvm_cascade")]
heavy = "tvm_cascade.passes" in sys.modules
print(len(left), heavy, type(relax.pipeline.__loader__).__name__, relax.get_pipeline("cascade").info.name)
"""
    assert python(code) == "0 False SourceFileLoader tvm_cascade.pipeline"


@pytest.mark.parametrize("again", ["importlib.reload(t)", "sys.modules.pop('tvm_cascade'); import tvm_cascade"])
def test_the_package_may_be_imported_again_before_tvm(again: str) -> None:
    code = (
        f"import importlib, sys, tvm_cascade as t; {again}; from tvm import relax; print(*relax.pipeline.PIPELINE_MAP)"
    )
    assert "cascade" in python(code).split()


def test_an_interrupted_import_leaves_the_hook_for_the_next() -> None:
    code = """
import sys, types
from importlib.machinery import ModuleSpec
import tvm_cascade

class Fails:  # a loader that is interrupted once, and then makes a table as TVM's
    def __init__(self): self.interrupted = False
    def create_module(self, spec): return None
    def exec_module(self, module):
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        module.PIPELINE_MAP = {}
        module.register_pipeline = lambda name: lambda f: module.PIPELINE_MAP.setdefault(name, f)

class Finder:
    loader = Fails()
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return ModuleSpec(name, cls.loader) if name == "tvm.relax.pipeline" else None

for name in ("tvm", "tvm.relax"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
sys.meta_path.insert(1, Finder)
before = len(sys.meta_path)
try:
    import tvm.relax.pipeline
    print("not interrupted")
except KeyboardInterrupt:
    print("tvm.relax.pipeline" in sys.modules, len(sys.meta_path) == before)
import tvm.relax.pipeline
print(list(sys.modules["tvm.relax.pipeline"].PIPELINE_MAP), len(sys.meta_path) - before)
"""
    assert python(code).splitlines() == ["False True", "['cascade'] -1"]
