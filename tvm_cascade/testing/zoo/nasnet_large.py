"""NASNet-A large, 6 @ 4032 on 331x331 images (Zoph et al., CVPR 2018), in the form that IOS (MLSys 2021) schedules.

The 374 operators of IOS's Table 2 are those of this network with a Relu-SepConv as one operator, the sums and the
concatenation at a cell's end as one operator, and a rectified 1x1 convolution as one: 15 normal cells of 16 and 3 first
ones of 18 operators, 2 stem cells (18, 21), 2 reductions (19), a convolution in front, a relu and a pool behind. The
authors' code cuts it into 25 parts: these 22 cells and the three operators around them. The table's 13 blocks are
as many as these parts have kinds and maps: a convolution, 2 stems, 3 first cells, 3 normal ones, 2 reductions, a relu, a
pool. That the authors counted so is our reading; with the channels that a cell reads, 19 parts differ.
"""

from __future__ import annotations

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

OPERATORS = 374
BLOCKS = 13


def nasnet_large(size: int = 331, filters: int = 168, repeats: int = 5) -> IRModule:
    """Float32, NCHW. `filters` of the first cells is a multiple of 4; the original has 168 and 5 repeats."""
    net = Net("float32", "NCHW", seed=0)
    x = net.conv(net.input((1, 3, size, size), "image"), 96, 3, 2, "valid")
    previous, x = x, _stem0(net, x, filters // 4)
    previous, x = x, _stem1(net, previous, x, filters // 2)
    for stage in range(3):
        if stage:
            skipped = previous
            previous, x = x, _reduction(net, previous, x, filters)
            previous, x = x, _first(net, skipped, x, filters // 2, filters)
        else:
            previous, x = x, _first(net, previous, x, filters // 2, filters)
        for _ in range(repeats):
            previous, x = x, _normal(net, previous, x, filters)
        filters *= 2
    return net.finish(net.global_pool(net.relu(x)))


def _squeeze(net: Net, x: Value, channels: int, stride: int = 1) -> Value:
    return net.conv(net.relu(x), channels, 1, stride)


def _separable(net: Net, x: Value, channels: int, kernel: int, stride: int = 1) -> Value:
    x = net.separable(net.relu(x), channels, kernel, stride)
    return net.separable(net.relu(x), channels, kernel)


def _halved(net: Net, left: Value, right: Value, channels: int) -> Value:
    """The five sums of a cell that halves the image."""
    one = net.add(_separable(net, left, channels, 5, 2), _separable(net, right, channels, 7, 2))
    two = net.add(net.max_pool(left, 3, 2, "same"), _separable(net, right, channels, 7, 2))
    three = net.add(net.avg_pool(left, 3, 2, "same"), _separable(net, right, channels, 5, 2))
    four = net.add(net.avg_pool(one, 3, 1, "same"), two)
    five = net.add(_separable(net, one, channels, 3), net.max_pool(left, 3, 2, "same"))
    return net.concat([two, three, four, five])


def _stem0(net: Net, x: Value, channels: int) -> Value:
    return _halved(net, _squeeze(net, x, channels), x, channels)


def _stem1(net: Net, previous: Value, x: Value, channels: int) -> Value:
    right = net.concat([_squeeze(net, previous, channels // 2, 2) for _ in range(2)])
    return _halved(net, _squeeze(net, x, channels), right, channels)


def _reduction(net: Net, previous: Value, x: Value, channels: int) -> Value:
    return _halved(net, _squeeze(net, x, channels), _squeeze(net, previous, channels), channels)


def _first(net: Net, previous: Value, x: Value, channels_left: int, channels: int) -> Value:
    left = net.concat([_squeeze(net, previous, channels_left, 2) for _ in range(2)])
    right = _squeeze(net, x, channels)
    return net.concat([left, *_five(net, left, right, channels)])


def _normal(net: Net, previous: Value, x: Value, channels: int) -> Value:
    left, right = _squeeze(net, previous, channels), _squeeze(net, x, channels)
    return net.concat(_five(net, left, right, channels))


def _five(net: Net, left: Value, right: Value, channels: int) -> list[Value]:
    return [
        net.add(_separable(net, right, channels, 5), _separable(net, left, channels, 3)),
        net.add(_separable(net, left, channels, 5), _separable(net, left, channels, 3)),
        net.add(net.avg_pool(right, 3, 1, "same"), left),
        net.add(net.avg_pool(left, 3, 1, "same"), net.avg_pool(left, 3, 1, "same")),
        net.add(_separable(net, right, channels, 3), right),
    ]
