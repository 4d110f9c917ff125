"""Import TVM without PyTorch: TVM's FFI imports `torch` if installed, which takes three times the time and twice the
memory.

Inside `deferred`, the FFI's import cannot find `torch`, unless already imported by the process. The FFI then works as
without torch. The parts it takes from torch (`torch.dtype` as an argument, `use_torch_stream`, the exchange of tensors
without Python) are made up for at the first import of torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_FFI = "tvm_ffi"


@contextmanager
def deferred() -> Iterator[None]:
    """Keep torch from being imported by the imports of TVM in the block; without effect if either is imported already."""
    if _FFI in sys.modules or "torch" in sys.modules:
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        finder.blocks = False
        if _FFI not in sys.modules:
            finder.remove()


class _Finder:
    """Finder: hides torch from TVM's FFI, and waits for an import of torch by anybody else."""

    def __init__(self) -> None:
        self.blocks = True

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        if self.blocks and any(map(_is_initializing, (_FFI, "tvm"))):
            raise ModuleNotFoundError("torch is not imported with TVM", name="torch")
        self.remove()
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None and _FFI in sys.modules:
            spec.loader = _Watched(spec.loader)
        return spec

    def remove(self) -> None:
        """Take the finder out of `sys.meta_path`."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


def _is_initializing(package: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(package), "__spec__", None), "_initializing", False))


class _Watched(Loader):
    """Loader of torch: tells TVM's FFI about the import."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _make_up(module)


def _make_up(torch: ModuleType) -> None:
    """Redo the FFI's set-up for torch, skipped when the FFI was imported."""
    ffi: Any = sys.modules[_FFI]
    with suppress(ImportError, AttributeError):  # modules of another version of the FFI
        ffi.core.torch, ffi.core._convert_torch_dtype_to_ffi_dtype = torch, _dtype
        importlib.import_module(f"{_FFI}._convert").torch = torch  # type: ignore[attr-defined]
        exchange = importlib.import_module(f"{_FFI}._optional_torch_c_dlpack")
        if not getattr(exchange, "_LIB", None):
            importlib.reload(exchange)
        stream: Any = importlib.import_module(f"{_FFI}.stream")
        contexts = stream.StreamContext
        importlib.reload(stream)
        stream.StreamContext = contexts  # of which objects may exist already
        ffi.use_torch_stream = stream.use_torch_stream
        if module := sys.modules.get("tvm.relax.base_py_module"):
            module.to_dlpack_legacy = importlib.import_module("torch.utils.dlpack").to_dlpack  # type: ignore[attr-defined]


def _dtype(of_torch: Any) -> Any:
    """Convert a torch type to an FFI type."""
    return sys.modules[_FFI].dtype(str(of_torch).removeprefix("torch."))
