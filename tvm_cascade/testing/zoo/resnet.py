"""ResNet-18 and ResNet-50 (He et al. 2016), with batch norms as trained, and the module of MetaFlow's Figure 1."""

from __future__ import annotations

from typing import Literal

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

Layout = Literal["NHWC", "NCHW"]


def resnet18(
    batch: int = 1, size: int = 224, classes: int = 1000, layout: Layout = "NCHW", width: float = 1.0,
    batch_norm: bool = True,
) -> IRModule:  # fmt: skip
    """Basic blocks 2, 2, 2, 2. Without `batch_norm` the convolutions have biases instead, as after folding."""
    return _resnet((2, 2, 2, 2), False, batch, size, classes, layout, width, batch_norm)


def resnet50(
    batch: int = 1, size: int = 224, classes: int = 1000, layout: Layout = "NCHW", width: float = 1.0,
    batch_norm: bool = True,
) -> IRModule:  # fmt: skip
    """Bottleneck blocks 3, 4, 6, 3, the stride in the 3x3 convolution."""
    return _resnet((3, 4, 6, 3), True, batch, size, classes, layout, width, batch_norm)


def resnet_module(size: int = 14, channels: int = 256, layout: Layout = "NCHW") -> IRModule:
    """MetaFlow's Figure 1, left-most: 3x3 and 3x3 against a 1x1 shortcut, relus, then add and relu."""
    net = Net("float32", layout=layout)
    x = net.input((1, channels, size, size) if layout == "NCHW" else (1, size, size, channels))
    left = net.conv(net.conv(x, channels, 3, activation="relu", bias=False), channels, 3, bias=False)
    right = net.conv(x, channels, 1, activation="relu", bias=False)
    return net.finish(net.relu(net.add(left, right)))


def _resnet(
    depths: tuple[int, ...], bottleneck: bool, batch: int, size: int, classes: int, layout: Layout, width: float,
    batch_norm: bool,
) -> IRModule:  # fmt: skip
    net = Net("float32", layout=layout)

    def conv(x: Value, channels: int, kernel: int, stride: int = 1, relu: bool = True) -> Value:
        x = net.conv(x, channels, kernel, stride, kernel // 2, bias=not batch_norm)
        x = net.batch_norm(x) if batch_norm else x
        return net.relu(x) if relu else x

    x = net.input((batch, 3, size, size) if layout == "NCHW" else (batch, size, size, 3))
    x = net.max_pool(conv(x, max(1, int(64 * width)), 7, 2), 3, 2, 1)
    for stage, depth in enumerate(depths):
        channels = max(1, int(64 * 2**stage * width))
        for block in range(depth):
            stride = 2 if stage and not block else 1
            out = channels * 4 if bottleneck else channels
            short = x if net.channels(x) == out and stride == 1 else conv(x, out, 1, stride, relu=False)
            if bottleneck:
                y = conv(conv(conv(x, channels, 1), channels, 3, stride), out, 1, relu=False)
            else:
                y = conv(conv(x, channels, 3, stride), channels, 3, relu=False)
            x = net.relu(net.add(y, short))
    return net.finish(net.softmax(net.dense(net.flatten(net.global_pool(x)), classes)))
