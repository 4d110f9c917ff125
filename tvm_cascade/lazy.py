"""Packages with names imported at first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make the functions `__getattr__` and `__dir__` of a package.

    `modules` maps each name to a module: relative to the package, or a full name in `tvm_cascade`.
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module = modules[name]
        return getattr(import_module(module if module.startswith("tvm_cascade.") else f"{package}.{module}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
