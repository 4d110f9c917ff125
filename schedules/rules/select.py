"""Kernel selection: the chosen or first applicable variant of a performance schedule, else the generic row kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import Tensor
from tvm_cascade.schedules.kernels.computation import Computation
from tvm_cascade.schedules.kernels.kernel import RowKernel
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


def select(computed: Computation, tensors: Sequence[Tensor], target: KernelTarget) -> RowKernel:
    """The row kernel of an operator for a core: from a performance schedule, or the generic one where none applies.

    `tensors` are its inputs and outputs.
    """
    chosen = target.choice(shape_key(computed.spec)) if target.choices else None
    served = computed.has_plain_rows(tensors) and chosen != GENERIC
    kernel = first_rule(computed.spec, target) if served else None
    return computed.kernel if kernel is None else replace(kernel, whole=computed.access.whole)
