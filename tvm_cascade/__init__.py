"""tvm_cascade: memory and latency scheduling for Apache TVM.

`plan`, `compile`, `run` and the other functions do the same as the commands with these names, and `load` reads a model.
Importing the package imports neither TVM nor PyTorch: the functions import TVM when first used. The Relax pipeline
"cascade" is registered with TVM, at once if TVM is already imported, else as soon as TVM is imported
(`tvm_cascade.registration`).
"""

import sys

# In place of that of `typing`, whose import takes time in which Ctrl-C would still show a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from tvm_cascade.api import (
        allocate,
        benchmark,
        bundle,
        compare,
        compile,
        doctor,
        export,
        flash,
        front_end,
        load,
        optimize,
        order,
        plan,
        quantize,
        run,
        stages,
        targets,
        validate,
    )
    from tvm_cascade.errors import CascadeError

__version__ = "0.1.0"
__all__ = [
    "CascadeError",
    "allocate",
    "benchmark",
    "bundle",
    "compare",
    "compile",
    "doctor",
    "export",
    "flash",
    "front_end",
    "load",
    "optimize",
    "order",
    "plan",
    "quantize",
    "run",
    "stages",
    "targets",
    "validate",
]


def __getattr__(name: str) -> object:
    if name == "CascadeError":
        from tvm_cascade.errors import CascadeError

        return CascadeError
    if name in __all__:
        from tvm_cascade.torch_import import deferred

        with deferred():
            from tvm_cascade import api

        return getattr(api, name)
    raise AttributeError(f"module 'tvm_cascade' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_PIPELINES = "tvm.relax.pipeline"  # the module whose table holds TVM's pipelines


class _Finder:
    """Finder at the head of `sys.meta_path`: waits for the import of TVM's pipelines (`registration`)."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if fullname != _PIPELINES:
            return None
        from tvm_cascade.registration import watched_spec

        return watched_spec(self, fullname, path, target)


if hasattr(sys.modules.get(_PIPELINES), "register_pipeline"):
    from tvm_cascade.registration import enter

    enter(sys.modules[_PIPELINES])
elif not any(type(finder).__module__ == __name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
