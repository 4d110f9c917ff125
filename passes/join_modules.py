"""Join the modules of several programs into one, with equal kernels shared.

A network's schedules, and the probes that time the stages, run mostly the same kernels. Joined, every kernel is
scheduled, compiled and stored once. A program's `main` gets the program's name; all further Relax functions get unique
names.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tvm_cascade.passes.relax_functions import ByStructure, UniqueNames
from tvm_cascade.schedules.tir import tvm_ffi


def join_modules(programs: Mapping[str, tvm.IRModule], taken: Collection[str] = ()) -> tvm.IRModule:
    """Build a single module with a Relax function for each name; each `main` keeps its attributes. No further function
    gets a name in `taken`.

    The modules come from `lower_stages` or from `probe_module`: their kernels call no function.
    """
    joined: dict[Any, Any] = {}
    names, kernels = UniqueNames([*programs, *taken]), ByStructure[Any]()

    def kept(gv: Any, kernel: Any) -> Any:
        bare = kernel.without_attr("global_symbol")

        def add() -> Any:
            shared = _variable(names(gv.name_hint), gv.ty)
            joined[shared] = bare
            return shared

        return kernels.get(bare, add)

    for name, mod in programs.items():
        functions = mod.functions_items()
        renamed = {gv: kept(gv, f) for gv, f in functions if isinstance(f, PrimFunc)}
        for gv, function in functions:
            if gv not in renamed:
                free = name if gv.name_hint == "main" else names(f"{name}_{gv.name_hint}")
                renamed[gv] = _variable(free, function.ty)
        for gv, function in functions:
            if isinstance(function, PrimFunc):
                continue
            moved = tvm_ffi.structural_map(function, (tvm.ir.GlobalVar, lambda v, m=renamed: m.get(v, v)))
            symbol = renamed[gv].name_hint
            is_main = gv.name_hint == "main"
            joined[renamed[gv]] = moved.with_attr("global_symbol", symbol) if is_main else moved
    return tvm.IRModule(joined)


def _variable(name: str, ty: Any) -> Any:
    """Make a global variable with the given type, as Relax's normalizer requires for calls."""
    variable = tvm.ir.GlobalVar(name)
    relax.expr._update_type(variable, ty)
    return variable
