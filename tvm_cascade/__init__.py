"""tvm_cascade: memory and latency scheduling for Apache TVM.

`load`, `plan`, `compile`, `run`, `order`, `stages`, `optimize` and `doctor` do what the command line does. Importing the
package imports neither TVM nor PyTorch: the functions do when they are first used. The Relax pipeline "cascade" is
registered with TVM, at once where TVM is imported already, else as soon as it is (`tvm_cascade.registration`).
"""

from __future__ import annotations

from tvm_cascade.registration import register_pipeline

# That of `typing`, which is not imported: until the command line listens, Ctrl-C would show a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tvm_cascade.api import bundle, compile, doctor, export, load, optimize, order, plan, run, stages

__version__ = "0.1.0"
__all__ = ["bundle", "compile", "doctor", "export", "load", "optimize", "order", "plan", "run", "stages"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from tvm_cascade import api

        return getattr(api, name)
    raise AttributeError(f"module 'tvm_cascade' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_pipeline()
