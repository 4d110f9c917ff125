"""Kernel selection: the chosen or first applicable variant of a performance schedule, else the generic row kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module

from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import Tensor
from tvm_cascade.schedules.kernels.computation import Computation
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.kernels.storage import storage_of
from tvm_cascade.schedules.rules.dot_products import with_dot_products
from tvm_cascade.schedules.rules.variants import Variant, shape_key

RuleSet = Callable[[OperatorSpec, KernelTarget], list[Variant]]

# Names of rule sets, as listed in `cores.Core.rules`: prefixes of their variants' names, and modules beside this one.
RULE_SETS = (
    "cortex_m_mve", "cortex_m_dsp", "cortex_m_scalar", "riscv", "hybrid_mve", "hybrid", "int16_mve", "float_mve", "float_fpu",
    "float_pool", "pooling", "moves", "softmax", "matmul",
)  # fmt: skip
GENERIC = "generic"  # name of the variant that is the generic kernel
_WHOLE = ("assign_state",)  # kinds whose kernels compute everything in one call, whatever rows are


def variants_of(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List an operator's variants for a core, the default first.

    They come from a single rule set: the core's first rule set with an applicable variant.
    """
    for name in target.core.rules:
        if listed := _rule_set(name)(spec, target):
            return [_of_set(name, v) for v in listed]
    return []


@cache
def _rule_set(name: str) -> RuleSet:
    """Return a rule set's function `variants`; import the module when a core asks for the rules."""
    return import_module(f"tvm_cascade.schedules.rules.{name}").variants


def _of_set(name: str, variant: Variant) -> Variant:
    """Give the full name to the variant and the kernel."""
    full = f"{name}.{variant.name}"
    return replace(variant, name=full, make=lambda: replace(variant.make(), rule=full, scheduled=True))


def first_variant(spec: OperatorSpec, target: KernelTarget, small: bool = False) -> Variant | None:
    """Return the variant that `target` chooses for an operator's shape, else the default; None if none applies.

    With `small` return the last: rule sets list the smallest code last.
    """
    wanted = target.choice(shape_key(spec)) if target.choices else None
    listed = sorted(variants_of(spec, target), key=lambda v: v.name != wanted)
    return listed[-1 if small else 0] if listed else None


def first_rule(spec: OperatorSpec, target: KernelTarget, small: bool = False) -> RowKernel | None:
    """Build the kernel of the `first_variant`."""
    variant = first_variant(spec, target, small)
    return None if variant is None else variant.make()


def select(computed: Computation, tensors: Sequence[Tensor], target: KernelTarget) -> RowKernel:
    """Choose an operator's row kernel for a core: from a performance schedule, or the generic kernel if none applies.

    `tensors` are the operator's inputs and outputs.
    """
    chosen = target.choice(shape_key(computed.spec)) if target.choices else None
    served = (computed.spec.kind in _WHOLE or computed.has_plain_rows(tensors)) and chosen != GENERIC
    kernel = first_rule(computed.spec, target) if served else None
    if kernel is None:
        kernel = computed.kernel if chosen == GENERIC else generic_kernels(computed.kernel, target)[0]
    else:
        kernel = replace(kernel, whole=computed.access.whole)
    stored = storage_of(computed.func)
    return replace(kernel, storage=stored) if stored.name else kernel


def generic_kernels(kernel: RowKernel, target: KernelTarget) -> list[RowKernel]:
    """List an operator's generic kernels: first with sums of products in target instructions, then plain."""
    products = with_dot_products(kernel, target)
    return [kernel] if products is None else [products, kernel]
