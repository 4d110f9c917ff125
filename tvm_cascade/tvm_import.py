"""Make TVM's and NumPy's imports cheaper for a command's process: by a third of a second of processor time."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from types import ModuleType
from typing import Any

FOR_DEVICES = ("stages", "optimize", "doctor")  # commands that may compile for GPUs, or say what there is
PLANNERS = ("plan", "compile", "order", "allocate")  # commands that multiply no matrices
LATE = {  # they tune kernels, schedule them for GPUs, find objects in images, train networks, write and distribute them
    "tvm.s_tir.meta_schedule", "tvm.s_tir.dlight", "tvm.s_tir.backend", "tvm.s_tir.analysis",
    "tvm.topi.gpu", "tvm.topi.vision", "tvm.topi.cpp.vision",
    "tvm.relax.backend.adreno", "tvm.relax.backend.cuda", "tvm.relax.backend.gpu_generic",
    "tvm.relax.backend.metal", "tvm.relax.backend.rocm",
    "tvm.relax.training", "tvm.relax.frontend.nn", "tvm.runtime.disco",
}  # fmt: skip
TABLES = "tflite"  # whose package imports a module for each of 180 tables of a file's schema
EXTRA = ("libtvm_runtime_extra.so", "libtvm_runtime_extra.dylib", "tvm_runtime_extra.dll")  # Linux, macOS, Windows


def install(arguments: list[str]) -> None:
    """Prepare the import of TVM for a command with these arguments; keep environment variables already set.

    TVM need not register any GPU back end if the command runs and compiles nothing there. One C++ error remains among
    the errors that TVM 0.27 raises and catches during import: `tvm.runtime.disco` asks for types of a library loaded
    last, or not at all. A process's first error reads all debug information in TVM's libraries for the stack, so this
    library is loaded first. Some fifty modules each list and search the names of all two thousand functions; the list
    is read once instead.
    """
    if not any(word in FOR_DEVICES for word in arguments):
        os.environ.setdefault("TVM_DEVICE_BACKEND_AUTOLOAD", "0")
    if any(word in PLANNERS for word in arguments[:1]):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "tvm" not in sys.modules:
        sys.meta_path[:0] = [_BeforeTvm(), _Late(), _LateTables()]  # type: ignore[list-item]


class _BeforeTvm:
    """Finder at the head of `sys.meta_path` that finds nothing, and loads a library once TVM is looked for."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "tvm":
            sys.meta_path[:] = [f for f in sys.meta_path if f is not self]
            _load_extra()
            with suppress(ImportError, AttributeError):
                _take_functions_by_namespace()


class _Late:
    """Finder: imports a third of TVM's modules only at first use."""

    def __init__(self) -> None:
        self._left = set(LATE)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._left else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
            self._left.remove(fullname)
            if not self._left:
                sys.meta_path[:] = [f for f in sys.meta_path if f is not self]
        return spec


class _LateTables:
    """Finder of the package `TABLES`: imports a table's module when its name is first asked for."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == TABLES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _TableLoader(spec.loader)
            sys.meta_path[:] = [f for f in sys.meta_path if f is not self]
        return spec


class _TableLoader(Loader):
    """Loader: makes a package of tables without running the package."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole  # the loader that runs it, and so imports all tables

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Tables(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Skip the package's code, so the package stays empty."""


class _Tables(ModuleType):
    """A package with its modules' names: `tflite.Model` is the class in the module of this name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if importlib.util.find_spec(f"{self.__name__}.{name}") is None:
            self.__spec__.loader.whole.exec_module(self)  # type: ignore[union-attr]
        else:
            importlib.import_module(f"{self.__name__}.{name}")
        if name not in vars(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        own = getattr(value, name, value) if isinstance(value, ModuleType) else value  # the import system sets modules
        super().__setattr__(name, own)


def _load_extra() -> None:
    """Load the optional part of TVM's runtime, which loads the runtime itself; on failure TVM reports the lack."""
    tvm = importlib.util.find_spec("tvm")
    folders = [Path(f) / "lib" for f in (tvm.submodule_search_locations or ())] if tvm is not None else []
    library = next((f / name for f in folders for name in EXTRA if (f / name).is_file()), None)
    if library is not None:
        try:
            import tvm_ffi  # noqa: F401 -- its library is one that the others are linked to

            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        except (ImportError, OSError):
            pass


def _take_functions_by_namespace() -> None:
    """Give modules the functions from the right namespace; do not read names again.

    The registry lists names in the order of registration.
    """
    import tvm_ffi
    from tvm_ffi import registry

    listed: list[str] = []
    by_namespace: dict[str, list[str]] = {}
    functor = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")

    def list_global_func_names() -> list[str]:
        name = functor()
        count = name(-1)
        if listed and (count < len(listed) or name(len(listed) - 1) != listed[-1]):  # one was removed
            listed.clear()
            by_namespace.clear()
        for i in range(len(listed), count):
            listed.append(name(i))
            by_namespace.setdefault(listed[-1].rpartition(".")[0], []).append(listed[-1])
        return list(listed)

    def init_ffi_api(namespace: str, target_module_name: str | None = None) -> None:
        list_global_func_names()
        module = sys.modules[target_module_name or namespace]
        for name in by_namespace.get(namespace.removeprefix("tvm."), ()):
            function, own_name = registry.get_global_func(name), name.rpartition(".")[2]
            setattr(function, "__name__", own_name)  # noqa: B010 -- the class declares none
            setattr(module, own_name, function)

    registry.list_global_func_names = list_global_func_names
    tvm_ffi.init_ffi_api = registry.init_ffi_api = init_ffi_api
