"""Rule set of float32 layers for the M-profile vector extension: weights as floats, or stored as small integers."""

from __future__ import annotations

from functools import partial

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import stored_mve
from tvm_cascade.schedules.rules.fpu_float_kernels import blocked, read_layer
from tvm_cascade.schedules.rules.lanes import LANES
from tvm_cascade.schedules.rules.mve_float_kernels import BLOCKING, DEPTHWISE_PIXELS, OTHERS, convolution, depthwise
from tvm_cascade.schedules.rules.variants import Variant


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List a float layer's variants, the default first, the smallest code last; none for any other operator.

    There are none either for a depthwise layer without a multiple of four channels, for groups without a multiple of
    four outputs, and if padding zeros would exceed a third of the weights.
    """
    layer = read_layer(spec) if target.vectors else None
    if (
        layer is None
        or layer.multiplier > 1
        or (layer.groups > 1 and layer.outputs // layer.groups % LANES)
        or (layer.outputs % LANES and (layer.depthwise or layer.outputs <= 2 * LANES))
    ):
        return []
    if layer.stored is not None:
        return stored_mve.variants_of(layer)
    return blocked(layer, partial(depthwise, layer), DEPTHWISE_PIXELS, partial(convolution, layer), (BLOCKING, *OTHERS))
