"""Aliasing of functions' pointers, which TVM's LLVM back end records for whole modules only.

The back end declares all functions in a module before it defines any, and then applies the last declared function's
attribute `tirx.noalias` to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOALIAS = "tirx.noalias"


def alike(functions: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a module's PrimFuncs; if any lacks `tirx.noalias`, like kernels that overwrite the input, remove the
    attribute from all.
    """
    if all(NOALIAS in dict(f.attrs or {}) for f in functions.values()):
        return dict(functions)
    return {gv: f.without_attr(NOALIAS) if f.attrs else f for gv, f in functions.items()}
