"""Marks of a network from a file with small weights, which kernels then keep as small.

Weights of four bits or fewer are int8 in the module, and floats of 16 or 8 bits float32, with the file's values.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Collection

from tvm.ir import IRModule

_ATTR = "cascade_small_weights"
_FLOATS = "cascade_small_floats"


def with_small_weights(mod: IRModule) -> IRModule:
    """Copy the module, with a mark."""
    mod = mod.clone()
    mod["main"] = mod["main"].with_attr(_ATTR, 1)
    return mod


def has_small_weights(mod: IRModule) -> bool:
    """Test whether a module is marked."""
    main = next((f for v, f in mod.functions.items() if v.name_hint == "main"), None)
    return main is not None and _ATTR in dict(main.attrs or {})


def with_small_floats(mod: IRModule, kinds: Collection[str]) -> IRModule:
    """Copy the module, marked with the kinds of floats that the file holds (`small_floats.KINDS`); return the module
    itself for none.
    """
    if not kinds:
        return mod
    mod = mod.clone()
    mod["main"] = mod["main"].with_attr(_FLOATS, ",".join(sorted(kinds)))
    return mod


def small_floats_of(mod: IRModule) -> tuple[str, ...]:
    """Return the kinds of small floats that a module's file holds."""
    main = next((f for v, f in mod.functions.items() if v.name_hint == "main"), None)
    given = "" if main is None else str(dict(main.attrs or {}).get(_FLOATS, ""))
    return tuple(given.split(",")) if given else ()
