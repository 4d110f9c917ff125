"""The mark of a network from a file with weights of four bits or fewer: kernels then keep such weights in four bits.

The weights themselves are int8 in the module, with the file's values.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from tvm.ir import IRModule

_ATTR = "cascade_small_weights"


def with_small_weights(mod: IRModule) -> IRModule:
    """Return a copy of the module that is marked."""
    mod = mod.clone()
    mod["main"] = mod["main"].with_attr(_ATTR, 1)
    return mod


def has_small_weights(mod: IRModule) -> bool:
    """Test whether a module is marked."""
    main = next((f for v, f in mod.functions.items() if v.name_hint == "main"), None)
    return main is not None and _ATTR in dict(main.attrs or {})
