"""Target cores. Each module in this package with a record `CORE` defines a core; nothing else registers it."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.kernel_target import KernelTarget
from tvm_cascade.errors import UsageError

__all__ = ["CORES", "Core", "KernelTarget", "get_core", "kernel_target"]


def _found() -> dict[str, Core]:
    """Collect this package's records by name, Cortex-M3 before Cortex-M33."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    cores = [module.CORE for module in modules if hasattr(module, "CORE")]
    cores.sort(key=lambda core: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", core.name)])
    return {core.name: core for core in cores}


CORES: Mapping[str, Core] = MappingProxyType(_found())


def get_core(name: str) -> Core:
    """Find a core by name; raise `UsageError` with the known names, or with the core of the microcontroller so named."""
    try:
        return CORES[name]
    except KeyError:
        within = [core.name for core in CORES.values() if core.parts and name.lower().startswith(core.parts)]
        remedy = (
            f"a microcontroller with a {within[0]}: --target {within[0]}" if within else f"known: {', '.join(CORES)}"
        )
        raise UsageError(f"unknown target {name!r}; {remedy}") from None


def kernel_target(name: str, backend: str = "c", optimise: str = "balanced", code_price: float = 0.0) -> KernelTarget:
    """Make the `KernelTarget` for a core by name.

    `backend` is the value of `--emit`, `"c"` or `"obj"`. Raises `UsageError` for an unknown core.
    """
    return KernelTarget(get_core(name), "llvm" if backend == "obj" else "c", optimise, code_price=code_price)
