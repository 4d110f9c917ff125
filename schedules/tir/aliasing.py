"""Whether the pointers of functions may alias, which TVM's LLVM back end keeps for whole modules only.

It declares all functions of a module before it defines any, and then takes the attribute `tirx.noalias` of the function that it
declared last for every one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOALIAS = "tirx.noalias"


def alike(functions: Mapping[Any, Any]) -> dict[Any, Any]:
    """The PrimFuncs of one module; none keeps `tirx.noalias` where one is without, as kernels are that write over their input."""
    if all(NOALIAS in dict(f.attrs or {}) for f in functions.values()):
        return dict(functions)
    return {gv: f.without_attr(NOALIAS) if f.attrs else f for gv, f in functions.items()}
