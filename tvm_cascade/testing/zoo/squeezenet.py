"""SqueezeNet 1.0 with complex bypass (Iandola et al., 2016), as IOS schedules it: 10 blocks, 50 Conv-Relu units.

Eight fire modules; the bypass of every second one is a 1x1 convolution. The other two blocks are what stands before and
behind them.
"""

from __future__ import annotations

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

TABLE_2 = (10, 50)  # blocks, operators (IOS, Table 2)
_FIRES = (16, 16, 32, 32, 48, 48, 64, 64)  # squeezed channels; both expansions have four times as many


def squeezenet(batch: int = 1, size: int = 224, width: float = 1.0, classes: int = 1000, seed: int = 0) -> IRModule:
    """Float32, NCHW. `width` scales the fire modules' channels (multiples of 8), for tests."""
    net = Net("float32", "NCHW", seed)
    x = net.input((batch, 3, size, size), "input")
    x = net.max_pool(net.conv(x, 96, 7, 2, "valid", activation="relu"), 3, 2)
    for k, squeezed in enumerate(_FIRES):
        x = _fire(net, x, max(8, round(squeezed * width / 8) * 8), bypass=k % 2 == 0)
        if k in (2, 6):
            x = net.max_pool(x, 3, 2)
    return net.finish(net.global_pool(net.conv(x, classes, 1, activation="relu")))


def _fire(net: Net, x: Value, squeezed: int, bypass: bool) -> Value:
    """Squeeze, expand by 1x1 and 3x3, concatenate, add the bypass (through a convolution where channels change)."""
    if net.channels(x) != 8 * squeezed:
        bypass = True
    small = net.conv(x, squeezed, 1, activation="relu")
    wide = [
        net.conv(small, 4 * squeezed, 1, activation="relu"),
        net.conv(small, 4 * squeezed, 3, padding=1, activation="relu"),
    ]
    around = net.conv(x, 8 * squeezed, 1) if bypass else x
    return net.add(net.concat(wide), around)
