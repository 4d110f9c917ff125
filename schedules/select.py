"""Choosing the kernel of an operator: the first performance schedule that applies, else the generic row kernel."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_cascade.schedules.access import RowAccess
from tvm_cascade.schedules.kernel import Role
from tvm_cascade.schedules.row_kernel import RowKernel, row_kernel
from tvm_cascade.schedules.tir import PrimFunc

RULE_MODULES = ("cortex_m_mve", "cortex_m_dsp", "cortex_m_scalar", "riscv")  # the most demanding core first


@dataclass(frozen=True, slots=True)
class Core:
    """What a schedule rule may rely on."""

    name: str = "host"  # cortex-m4, ...
    dsp: bool = False  # Armv7E-M DSP instructions: SMLAD and friends
    mve: bool = False  # Armv8.1-M vector extension (Helium)
    fpu: bool = False
    backend: str = "llvm"  # "c" or "llvm"


Rule = Callable[[PrimFunc, tuple[np.ndarray, ...], Core], RowKernel | None]


def rules() -> tuple[tuple[str, Rule], ...]:
    """All performance schedules with their names, in the order in which they are tried."""
    found: list[tuple[str, Rule]] = []
    for name in RULE_MODULES:
        module = f"tvm_cascade.schedules.{name}"
        if importlib.util.find_spec(module) is not None:
            found += [(f"{name}.{r.__name__}", r) for r in importlib.import_module(module).rules]
    return tuple(found)


def first_rule(func: PrimFunc, constants: Sequence[np.ndarray], core: Core) -> RowKernel | None:
    """The kernel of the first performance schedule that takes an operator, None where none does."""
    for name, rule in rules():
        kernel = rule(func, tuple(constants), core)
        if kernel is not None:
            return replace(kernel, rule=name)
    return None


def select(
    func: PrimFunc,
    constants: Sequence[np.ndarray],
    access: RowAccess,
    core: Core,
    name: str = "row_kernel",
    generic: RowKernel | None = None,
) -> RowKernel:
    """The kernel of an operator for a core.

    Rules are asked only about operators that run row by row. `generic` is the operator's generic kernel, where it has
    been made before.
    """
    apart = (Role.PLANE, Role.OUTPUT_PLANE)  # rows that are not contiguous: performance schedules know NHWC alone
    scattered = generic is not None and any(p.role in apart for p in generic.params)
    if access.rowwise and not scattered and (generic is None or not generic.whole):
        kernel = first_rule(func, constants, core)
        if kernel is not None:
            return kernel
    return generic or row_kernel(func, constants, access, name)
