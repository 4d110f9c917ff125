"""Importing TVM for a command: its errors are not raised, and what the environment says stays."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

MODEL = str(files("tvm_cascade.testing") / "data" / "shapes.tflite")
SET = ("TVM_DEVICE_BACKEND_AUTOLOAD", "OPENBLAS_NUM_THREADS")  # what `install` sets where it is not
COUNT_ERRORS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static long errors;
void __cxa_throw(void *error, void *type, void (*destroy)(void *)) {
    void (*raise)(void *, void *, void (*)(void *)) = dlsym(RTLD_NEXT, "__cxa_throw");
    errors++;
    raise(error, type, destroy);
    abort();
}
__attribute__((destructor)) static void end(void) { fprintf(stderr, "C++ errors: %ld\\n", errors); }
"""


def python(code: str, **environment: str) -> str:
    """What a Python process prints on standard error."""
    wanted = {k: v for k, v in os.environ.items() if k not in SET} | environment
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, env=wanted, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
def test_a_plan_raises_no_error_of_cplusplus(tmp_path: Path) -> None:
    (tmp_path / "count.c").write_text(COUNT_ERRORS)
    counter = tmp_path / "count.so"
    subprocess.run(("cc", "-shared", "-fPIC", "-o", counter, tmp_path / "count.c", "-ldl"), check=True)
    command = f"from tvm_cascade.cli import main; main(['plan', {MODEL!r}])"
    assert "C++ errors: 0" in python(command, LD_PRELOAD=str(counter)).splitlines()
    assert "C++ errors: 0" not in python("import tvm", LD_PRELOAD=str(counter))


@pytest.mark.parametrize(
    ("words", "loaded"), [(["run", "x"], False), (["stages", "x"], True), (["-x", "doctor"], True)]
)
def test_back_ends_for_gpus_are_for_commands_that_compile_for_them(words: list[str], loaded: bool) -> None:
    code = f"""
import os, sys
from tvm_cascade.tvm_import import install
install({words!r})
import tvm
import tflite
import tvm.backend.loader
print(tvm.backend.loader.is_loaded("cuda"), tvm.runtime.disco is not None, file=sys.stderr)
print([f for f in sys.meta_path if type(f).__module__ == "tvm_cascade.tvm_import"], file=sys.stderr)
"""
    assert python(code).splitlines() == [f"{loaded} True", "[]"]


def test_what_the_environment_says_stays() -> None:
    code = "import os, sys; from tvm_cascade.tvm_import import install; install(['plan'])\n"
    said = python(
        code + "print(os.environ['TVM_DEVICE_BACKEND_AUTOLOAD'], file=sys.stderr)", TVM_DEVICE_BACKEND_AUTOLOAD="1"
    )
    assert said.strip() == "1"


@pytest.mark.parametrize(("words", "threads"), [(["plan", "run"], "1"), (["run", "plan"], None)])
def test_planning_starts_no_threads_for_matrices(words: list[str], threads: str | None) -> None:
    code = f"import os, sys; from tvm_cascade.tvm_import import install; install({words!r})\n"
    assert python(code + "print(os.environ.get('OPENBLAS_NUM_THREADS'), file=sys.stderr)").strip() == str(threads)


def test_names_of_functions_are_those_of_the_registry() -> None:
    code = """
import sys
from tvm_cascade.tvm_import import install
install(["plan"])
import tvm, tvm_ffi
from tvm_ffi import registry
def all_names():
    name = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()
    return [name(i) for i in range(name(-1))]
first = registry.list_global_func_names()
same = registry.list_global_func_names()
tvm_ffi.register_global_func("tvm_cascade.test.one_more", lambda: 1)
more = registry.list_global_func_names()
print(first == same, all(a is b for a, b in zip(first, same)), more == all_names(), len(more) - len(first), file=sys.stderr)
tvm_ffi.registry.remove_global_func(first[0])
tvm_ffi.register_global_func("tvm_cascade.test.another", lambda: 1)
left = registry.list_global_func_names()
print(left == all_names(), first[0] in left, "tvm_cascade.test.another" in left, file=sys.stderr)
"""
    assert python(code).split() == ["True", "True", "True", "1", "True", "False", "True"]


def test_modules_have_the_functions_that_they_have_without() -> None:
    code = """
import sys
from tvm_cascade.tvm_import import LATE, install
if {installed}:
    install(["doctor"])
import tvm
late = sorted(LATE - {{"tvm.runtime.disco"}})
waiting = [m for m in sys.modules if m.startswith(tuple(name + "." for name in late))]
assert bool(waiting) != {installed}, waiting
for name in late:  # which have waited until here
    dir(sys.modules[name])
modules = {{m: vars(sys.modules[m]) for m in sorted(sys.modules) if m.startswith("tvm.") and "disco" not in m}}
kind = sys.modules["tvm_ffi"].Function
found = [(m, n, getattr(f, "__name__", n)) for m, v in modules.items() for n, f in sorted(v.items()) if type(f) is kind]
print(len(found) > 1000, found, file=sys.stderr)
"""
    with_it, without = (python(code.format(installed=installed)) for installed in (True, False))
    assert with_it == without
    assert with_it.startswith("True ")


def test_tables_of_a_file_are_imported_where_they_are_asked_for() -> None:
    code = """
import sys
from tvm_cascade.tvm_import import install
install(["plan"])
import tflite
first = [m for m in sys.modules if m.startswith("tflite.")]
from tflite.Buffer import Buffer
import tflite.Tensor
names = tflite.Model.__name__, tflite.Tensor.__name__, tflite.Buffer is Buffer, hasattr(tflite, "nothing")
print(first, *names, tflite.ModelStart.__name__, len([m for m in sys.modules if m.startswith("tflite.")]) > 100, file=sys.stderr)
"""
    assert python(code).split() == ["[]", "Model", "Tensor", "True", "False", "ModelStart", "True"]
