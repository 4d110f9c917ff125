"""Kinds of packages for foreign build systems. Each module in this package with an object `KIND` defines a kind.

`KINDS` lists the names without importing any: `esp_idf.py` is the kind `esp-idf`.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_cascade.emit.package import PackageKind

KINDS = tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def package_kind(name: str) -> PackageKind:
    """Return the kind with this name from `KINDS`."""
    return import_module(f"{__name__}.{name.replace('-', '_')}").KIND
