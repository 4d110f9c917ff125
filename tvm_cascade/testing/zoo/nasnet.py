"""NASNet-A mobile (Zoph et al., CVPR 2018), 4 @ 1056 on 224x224 images: 564 M multiply-accumulates (557.7 M
counted here, without normalization and pools), 5.3 M weights.

Batch normalization is folded into the convolutions. Factorized reductions read the even pixels in both halves.
"""

from __future__ import annotations

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.zoo.darts import Counted


def _separable(net: Net, x: Value, channels: int, kernel: int, stride: int = 1) -> Value:
    x = net.separable(net.relu(x), channels, kernel, stride, activation="relu")
    return net.separable(x, channels, kernel)


def _adjust(net: Net, previous: Value, like: Value, channels: int) -> Value:
    """`previous` with the extents of `like` and `channels` channels."""
    if previous.shape[1] != like.shape[1]:
        x = net.relu(previous)
        return net.concat([net.conv(x, channels // 2, 1, 2), net.conv(x, channels - channels // 2, 1, 2)])
    if net.channels(previous) != channels:
        return net.conv(net.relu(previous), channels, 1)
    return previous


def normal_cell(net: Net, previous: Value, x: Value, channels: int) -> Value:
    """Five sums of two branches each, concatenated with the adjusted previous cell."""
    p = _adjust(net, previous, x, channels)
    h = net.conv(net.relu(x), channels, 1)
    sums = [
        net.add(_separable(net, h, channels, 5), _separable(net, p, channels, 3)),
        net.add(_separable(net, p, channels, 5), _separable(net, p, channels, 3)),
        net.add(net.avg_pool(h, 3, 1, "same"), p),
        net.add(net.avg_pool(p, 3, 1, "same"), net.avg_pool(p, 3, 1, "same")),
        net.add(_separable(net, h, channels, 3), h),
    ]
    return net.concat([p, *sums])


def reduction_cell(net: Net, previous: Value, x: Value, channels: int) -> Value:
    """Half the height and width."""
    p = _adjust(net, previous, x, channels)
    h = net.conv(net.relu(x), channels, 1)
    one = net.add(_separable(net, h, channels, 5, 2), _separable(net, p, channels, 7, 2))
    two = net.add(net.max_pool(h, 3, 2, "same"), _separable(net, p, channels, 7, 2))
    three = net.add(net.avg_pool(h, 3, 2, "same"), _separable(net, p, channels, 5, 2))
    four = net.add(net.max_pool(h, 3, 2, "same"), _separable(net, one, channels, 3))
    five = net.add(net.avg_pool(one, 3, 1, "same"), two)
    return net.concat([two, three, four, five])


def cell(dtype: str = "int8", size: int = 28, channels: int = 44, seed: int = 0) -> IRModule:
    """A normal cell alone, between two of its kind."""
    net = Net("int8" if dtype == "int8" else "float32", seed=seed)
    shape = (1, size, size, 6 * channels)
    previous, x = net.input(shape, "previous"), net.input(shape, "current")
    return net.finish(normal_cell(net, previous, x, channels))


def network(dtype: str = "int8", repeats: int = 4, channels: int = 44, seed: int = 0) -> Counted:
    """The whole network."""
    net = Net("int8" if dtype == "int8" else "float32", seed=seed)
    x = net.conv(net.input((1, 224, 224, 3), "image"), 32, 3, 2, "valid")
    previous, x = x, reduction_cell(net, x, x, channels // 4)
    previous, x = x, reduction_cell(net, previous, x, channels // 2)
    for stage in range(3):
        if stage:
            previous, x = x, reduction_cell(net, previous, x, channels)
        for _ in range(repeats):
            previous, x = x, normal_cell(net, previous, x, channels)
        channels *= 2
    logits = net.dense(net.flatten(net.global_pool(net.relu(x))), 1000)
    return Counted(net.finish(logits), net.macs, net.weights)
