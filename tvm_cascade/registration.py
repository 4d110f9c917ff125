"""Register the Relax pipeline "cascade" with TVM without importing TVM.

`relax.get_pipeline("cascade")` and `tvm.compile(mod, relax_pipeline="cascade")` look names up in a table in
`tvm.relax.pipeline`. If that module is already imported, the package enters the pipeline at once. Otherwise a finder at
the head of `sys.meta_path` waits for the module and delegates to the remaining finders; the pipeline is entered right
after the module has run, and the finder is removed. If the import of TVM fails or is interrupted, the finder stays for
the next import. The table gets a small function that imports the pipeline when called.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "cascade"


def enter(table: Any) -> None:
    """Register the pipeline in TVM's table; a second call changes nothing."""
    if NAME not in table.PIPELINE_MAP:
        table.register_pipeline(NAME)(_cascade)


def _cascade(*args: Any, **options: Any) -> object:
    """Build the Relax pipeline "cascade": see `tvm_cascade.relax_pipeline.cascade_pipeline`."""
    from tvm_cascade.relax_pipeline import cascade_pipeline  # imports TVM's passes: slow

    return cascade_pipeline(*args, **options)


def watched_spec(finder: Any, fullname: str, path: Any, target: Any) -> ModuleSpec | None:
    """Find the spec by the remaining finders, and set a loader that enters the pipeline once the module has run."""
    others = (f for f in sys.meta_path if f is not finder)
    spec = next((s for f in others if (s := f.find_spec(fullname, path, target)) is not None), None)
    if spec is not None and spec.loader is not None:
        spec.loader = _Watched(spec.loader, finder)
    return spec


class _Watched(Loader):
    """A loader that enters the pipeline once the module has run, and then removes the finder."""

    def __init__(self, loader: Loader, finder: Any) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        enter(module)
        sys.meta_path[:] = [f for f in sys.meta_path if f is not self._finder]
