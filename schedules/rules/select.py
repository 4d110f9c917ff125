"""Kernel selection: the chosen or first applicable variant of a performance schedule, else the generic row kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import cortex_m_dsp, cortex_m_mve, cortex_m_scalar, moves, pooling, softmax
from tvm_cascade.schedules.rules.variants import Variant, first, shape_key

RuleSet = Callable[[OperatorSpec, KernelTarget], list[Variant]]

# Rule sets by name, as listed in `cores.Core.rules`; the name is also the prefix of their variants' names.
RULE_SETS: Mapping[str, RuleSet] = {
    "cortex_m_mve": cortex_m_mve.variants,
    "cortex_m_dsp": cortex_m_dsp.variants,
    "cortex_m_scalar": cortex_m_scalar.variants,
    "riscv": cortex_m_scalar.variants,  # plain arithmetic has nothing of Arm's in it
    "pooling": pooling.variants,
    "moves": moves.variants,
    "softmax": softmax.variants,
}
GENERIC = "generic"  # name of the variant that is the generic kernel


def variants_of(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """The variants of an operator for a core, the default first.

    They come from one rule set: the first of the core's rule sets with a variant that applies.
    """
    for name in target.core.rules:
        listed = RULE_SETS[name](spec, target)
        if first(listed) is not None:
            return [replace(v, name=f"{name}.{v.name}") for v in listed]
    return []


def first_rule(spec: OperatorSpec, target: KernelTarget, small: bool = False) -> RowKernel | None:
    """The variant that `target` chooses for an operator's shape, else the first that applies; None where none does.

    With `small` the last that applies: rule sets list the smallest code last.
    """
    wanted = target.choice(shape_key(spec)) if target.choices else None
    for name in target.core.rules:
        listed = RULE_SETS[name](spec, target)
        listed.sort(key=lambda v: f"{name}.{v.name}" != wanted)
        for variant in reversed(listed) if small else listed:
            kernel = variant.make()
            if kernel is not None:
                return replace(kernel, rule=f"{name}.{variant.name}")
    return None


def select(spec: OperatorSpec, access: RowAccess, target: KernelTarget, generic: RowKernel) -> RowKernel:
    """The kernel of an operator for a core: from a performance schedule, or `generic` where none applies.

    Performance schedules are tried only on operators that `serves` accepts.
    """
    chosen = target.choice(shape_key(spec)) if target.choices else None
    if not serves(access, generic) or chosen == GENERIC:
        return generic
    kernel = first_rule(spec, target)
    return generic if kernel is None else replace(kernel, whole=generic.whole)


def serves(access: RowAccess, generic: RowKernel) -> bool:
    """Whether performance schedules may be tried on an operator: it runs by rows of NHWC tensors, or is a single row.

    They assume that axis 1 is the row axis. Rows along axis 2 of `[1, 1, H, W]` are contiguous, too, but W elements long.
    """
    planes = (Role.PLANE, Role.OUTPUT_PLANE)
    single = generic.whole and generic.reason is None
    by_rows = access.rowwise and not generic.whole and {*access.input_axes, *access.output_axes} <= {1, None}
    return (single or by_rows) and not any(p.role in planes for p in generic.params)
