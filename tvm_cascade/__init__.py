"""tvm_cascade: memory and latency scheduling for Apache TVM.

`load`, `plan`, `compile`, `run`, `order`, `stages`, `optimize` and `doctor` do what the command line does. Importing the
package registers the Relax pipeline "cascade", where TVM is installed; the algorithms (`graph`, `memory`, `ordering`,
`cascading`, `substitution`, `parallel`) import no TVM.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_cascade.api import bundle, compile, doctor, export, load, optimize, order, plan, run, stages

__version__ = "0.1.0"
__all__ = ["bundle", "compile", "doctor", "export", "load", "optimize", "order", "plan", "run", "stages"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("tvm_cascade.api"), name)
    raise AttributeError(f"module 'tvm_cascade' has no attribute '{name}'")


if find_spec("tvm") is not None:
    import_module("tvm_cascade.pipeline")
