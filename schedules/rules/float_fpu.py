"""Rule set of float32 layers for scalar floating-point units: weights as floats, or stored as small integers."""

from __future__ import annotations

from functools import partial

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import stored_fpu
from tvm_cascade.schedules.rules.fpu_float_kernels import (
    BLOCKING,
    DEPTHWISE_PIXELS,
    OTHERS,
    blocked,
    convolution,
    depthwise,
    read_layer,
)
from tvm_cascade.schedules.rules.variants import Variant


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List a float layer's variants, the default first, the smallest code last; none for any other operator."""
    layer = read_layer(spec) if target.core.fpu else None
    if layer is None:
        return []
    if layer.stored is not None:
        return stored_fpu.variants_of(layer)
    return blocked(layer, partial(depthwise, layer), DEPTHWISE_PIXELS, partial(convolution, layer), (BLOCKING, *OTHERS))
