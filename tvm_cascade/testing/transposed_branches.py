"""The beginning of small int8 networks whose plans have blocks of every kind."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.quick_build import virtual_machine


def transposed_branches() -> tuple[Net, Value]:
    """A network being built, and its last value: a transpose, branches joined along the channels, a depthwise convolution."""
    net = Net("int8", seed=4)
    planes = net.input((1, 3, 11, 8), "x")
    turned = relax.op.permute_dims(planes.expr, [0, 2, 3, 1])
    x = Value(net._emit(turned), (1, 11, 8, 3), planes.scale, planes.zero_point)
    y = net.concat([net.conv(x, 4, 3), net.relu(net.conv(x, 4, 1))])
    return net, net.depthwise(net.conv(y, 8, 3), 3, 2)


def random_run(mod: tvm.IRModule) -> tuple[np.ndarray, list[np.ndarray]]:
    """A random input of a network that begins so, and the outputs that TVM computes of it."""
    x = np.random.default_rng(0).integers(-128, 128, (1, 3, 11, 8)).astype("int8")
    machine = virtual_machine(LowerQuantized()(mod))
    return x, [r.numpy() for r in machine["main"](tvm.runtime.tensor(x))]
