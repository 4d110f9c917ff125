"""SqueezeNet v1.0 (Iandola et al. 2016) plain, with simple and with complex bypass: figure 2 of that paper.

`zoo.squeezenet` is the variant that IOS schedules; these are the ones of MetaFlow's section 6.
"""

from __future__ import annotations

from typing import Literal

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

_FIRES = (16, 16, 32, 32, 48, 48, 64, 64)  # squeezed channels of fire 2 to 9


def squeezenet_v1(
    bypass: Literal["none", "simple", "complex"] = "complex", batch: int = 1, size: int = 224, classes: int = 1000,
    width: float = 1.0,
) -> IRModule:  # fmt: skip
    """Float32, NCHW. Simple: fires 3, 5, 7, 9 add their input. Complex: the others add a 1x1 convolution of theirs."""
    net = Net("float32", layout="NCHW")
    x = net.input((batch, 3, size, size))
    x = net.max_pool(net.conv(x, max(4, int(96 * width)), 7, 2, "valid", activation="relu"), 3, 2)
    for k, squeezed in enumerate(_FIRES):
        y = _fire(net, x, max(2, int(squeezed * width)))
        if bypass != "none" and net.channels(x) == net.channels(y):
            y = net.add(y, x)
        elif bypass == "complex":
            y = net.add(y, net.conv(x, net.channels(y), 1))
        x = net.max_pool(y, 3, 2) if k in (2, 6) else y
    x = net.conv(x, classes, 1, activation="relu")
    return net.finish(net.softmax(net.flatten(net.global_pool(x))))


def _fire(net: Net, x: Value, squeezed: int) -> Value:
    x = net.conv(x, squeezed, 1, activation="relu")
    return net.concat([net.conv(x, 4 * squeezed, k, activation="relu") for k in (1, 3)])
