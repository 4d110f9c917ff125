"""tvm_cascade: memory and latency scheduling for Apache TVM.

`load`, `plan`, `compile` and `run` do what the command line does and return frozen results. Importing the package registers
the Relax pipeline "cascade"; the algorithms (`graph`, `memory`, `ordering`, `cascading`, `substitution`, `parallel`) import
no TVM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_cascade.api import compile, load, plan, run

__version__ = "0.1.0"
__all__ = ["compile", "load", "plan", "run"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("tvm_cascade.api"), name)
    raise AttributeError(f"module 'tvm_cascade' has no attribute '{name}'")
