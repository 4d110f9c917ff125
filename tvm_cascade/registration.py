"""Registers the Relax pipeline "cascade" with TVM without importing TVM.

`relax.get_pipeline("cascade")` and `tvm.compile(mod, relax_pipeline="cascade")` look names up in a table of
`tvm.relax.pipeline`. Where that module is imported already, the pipeline is entered at once. Else a finder at the head of
`sys.meta_path` waits for the module: it lets the other finders find it, has the pipeline entered right after the module
has run, and removes itself. An import of TVM that fails or is interrupted leaves the finder where it is, for the next
one. What is entered is a light function that imports the pipeline when it is called. Nothing is imported here but what
Python has imported already (the classes of `importlib.abc` would cost 25 ms at every start).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

NAME = "cascade"
_TABLE = "tvm.relax.pipeline"  # the module whose table holds the pipelines


def register_pipeline() -> None:
    """Register the pipeline now where TVM is imported, else as soon as it is. A second call changes nothing."""
    table = sys.modules.get(_TABLE)
    if table is not None and hasattr(table, "register_pipeline"):
        _enter(table)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _enter(table: Any) -> None:
    if NAME not in table.PIPELINE_MAP:
        table.register_pipeline(NAME)(_cascade)


def _cascade(*args: Any, **options: Any) -> object:
    """The Relax pipeline "cascade": see `tvm_cascade.relax_pipeline.cascade_pipeline`."""
    from tvm_cascade.relax_pipeline import cascade_pipeline  # imports TVM's passes: slow

    return cascade_pipeline(*args, **options)


class _Finder:
    """Finds the one module that it waits for, as the finders behind it do, and has its loader watched."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TABLE:
            return None
        others = (f for f in sys.meta_path if not isinstance(f, _Finder))
        spec = next((s for f in others if (s := f.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Watched(spec.loader)  # type: ignore[assignment]
        return spec


class _Watched:
    """A loader that registers the pipeline once its module has run."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _enter(module)
        sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder)]
