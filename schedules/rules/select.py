"""Choosing the kernel of an operator: the first performance schedule that applies, else the generic row kernel."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace

from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.kernel import Role
from tvm_cascade.schedules.kernels.row_kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.variants import Variant, first, shape_key

RULE_MODULES = (
    "cortex_m_mve",
    "cortex_m_dsp",
    "cortex_m_scalar",
    "riscv",
    "pooling",
    "moves",
    "softmax",
)  # the most demanding core first, then rules for all cores


GENERIC = "generic"  # the variant that no performance schedule makes


@dataclass(frozen=True, slots=True)
class Core:
    """What a schedule rule may rely on."""

    name: str = "host"  # cortex-m4, ...
    dsp: bool = False  # Armv7E-M DSP instructions: SMLAD and friends
    mve: bool = False  # Armv8.1-M vector extension (Helium)
    fpu: bool = False
    backend: str = "llvm"  # "c" or "llvm"
    optimise: str = "balanced"  # size, speed or balanced: what choices are made for
    choices: tuple[tuple[str, str], ...] = ()  # shape and the variant chosen for it; others get the usual one

    @property
    def tunable(self) -> bool:
        """Whether any performance schedule may serve the core, so that there is something to choose."""
        return self.name.startswith(("cortex-m", "riscv"))

    def choice(self, shape: str) -> str | None:
        """The variant chosen for a shape, if any."""
        return next((v for s, v in self.choices if s == shape), None)


def variants_of(spec: OperatorSpec, core: Core) -> list[Variant]:
    """Every kernel that the performance schedules can make of an operator, the usual one first.

    All come from the first module, in the order of `RULE_MODULES`, of which at least one variant applies.
    """
    for name in RULE_MODULES:
        module = importlib.import_module(f"tvm_cascade.schedules.rules.{name}")
        listed = module.variants(spec, core)
        if first(listed) is not None:
            return [replace(v, name=f"{name}.{v.name}") for v in listed]
    return []


def first_rule(spec: OperatorSpec, core: Core, small: bool = False) -> RowKernel | None:
    """The kernel that was chosen for an operator's shape, else the first that applies; None where none does.

    With `small` the last that applies: rules list small code last.
    """
    wanted = core.choice(shape_key(spec)) if core.choices else None
    for name in RULE_MODULES:
        module = importlib.import_module(f"tvm_cascade.schedules.rules.{name}")
        listed = module.variants(spec, core)
        listed.sort(key=lambda v: f"{name}.{v.name}" != wanted)
        for variant in reversed(listed) if small else listed:
            kernel = variant.make()
            if kernel is not None:
                return replace(kernel, rule=f"{name}.{variant.name}")
    return None


def select(spec: OperatorSpec, access: RowAccess, core: Core, generic: RowKernel) -> RowKernel:
    """The kernel of an operator for a core: `generic`, the operator's generic one, where no performance schedule applies.

    Rules are asked only about operators that run row by row.
    """
    chosen = core.choice(shape_key(spec)) if core.choices else None
    if not serves(access, generic) or chosen == GENERIC:
        return generic
    kernel = first_rule(spec, core)
    return generic if kernel is None else replace(kernel, whole=generic.whole)


def serves(access: RowAccess, generic: RowKernel) -> bool:
    """Whether performance schedules are asked about an operator: it goes by the rows of NHWC tensors, or is a single row.

    They take axis 1 for the rows. Those of `[1, 1, H, W]` along axis 2 are contiguous too, but W elements and not H * W.
    """
    apart = (Role.PLANE, Role.OUTPUT_PLANE)
    single = generic.whole and generic.reason is None
    by_rows = access.rowwise and not generic.whole and {*access.input_axes, *access.output_axes} <= {1, None}
    return (single or by_rows) and not any(p.role in apart for p in generic.params)
