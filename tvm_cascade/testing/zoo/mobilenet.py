"""MobileNetV1 and V2, int8 with random weights, at any width and resolution."""

from __future__ import annotations

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

# expansion, channels, repeats, stride: Table 2 of the MobileNetV2 paper
_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
# channels, stride of the separable blocks: Table 1 of the MobileNet paper
_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


def _divisible(channels: float) -> int:
    """Channels rounded to a multiple of 8, never below nine tenths."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def mobilenet_v1(width: float = 1.0, size: int = 224, classes: int = 1000, seed: int = 0) -> IRModule:
    """MobileNetV1 on `size` x `size` x 3."""
    net = Net("int8", seed=seed)
    x = net.conv(net.input((1, size, size, 3)), _divisible(32 * width), kernel=3, stride=2, activation="relu6")
    for channels, stride in _V1:
        x = net.depthwise(x, kernel=3, stride=stride, activation="relu6")
        x = net.conv(x, _divisible(channels * width), kernel=1, activation="relu6")
    return net.finish(net.softmax(net.dense(net.flatten(net.global_pool(x)), classes)))


def _bottleneck(net: Net, x: Value, expansion: int, channels: int, stride: int) -> Value:
    inputs = x.shape[3]
    y = net.conv(x, inputs * expansion, kernel=1, activation="relu6") if expansion > 1 else x
    y = net.conv(net.depthwise(y, kernel=3, stride=stride, activation="relu6"), channels, kernel=1)
    return net.add(x, y) if stride == 1 and inputs == channels else y


def mobilenet_v2(width: float = 1.0, size: int = 224, classes: int = 1000, seed: int = 0) -> IRModule:
    """MobileNetV2 on `size` x `size` x 3."""
    net = Net("int8", seed=seed)
    x = net.conv(net.input((1, size, size, 3)), _divisible(32 * width), kernel=3, stride=2, activation="relu6")
    for expansion, channels, repeats, stride in _V2:
        for k in range(repeats):
            x = _bottleneck(net, x, expansion, _divisible(channels * width), stride if k == 0 else 1)
    x = net.conv(x, _divisible(1280 * max(width, 1.0)), kernel=1, activation="relu6")
    return net.finish(net.softmax(net.dense(net.flatten(net.global_pool(x)), classes)))
