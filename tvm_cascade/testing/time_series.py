"""Networks whose rows are time: the shapes of networks that classify motion, heartbeats and sound, with random weights.

Time runs along the width, as Keras' Conv1D converts: [1, 1, time, channels].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

Dtype = Literal["float32", "int8"]


def activity(dtype: Dtype = "int8", steps: int = 128) -> IRModule:
    """Nine channels of motion, two convolutions before each pool, a dense layer over all steps."""
    net, x = _begin(dtype, steps, 9)
    for channels in (16, 32):
        x = net.conv(net.conv(x, channels, (1, 5), activation="relu"), channels, (1, 3), activation="relu")
        x = net.max_pool(x, (1, 2), (1, 2))
    return net.finish(net.dense(net.flatten(x), 6))


def heartbeat(dtype: Dtype = "int8", steps: int = 512) -> IRModule:
    """One channel, strided convolutions, a mean over time."""
    net, x = _begin(dtype, steps, 1)
    for channels in (16, 32, 32):
        x = net.conv(x, channels, (1, 7), (1, 2), activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 5))


def dilated(dtype: Dtype = "int8", steps: int = 200) -> IRModule:
    """A temporal convolutional network: dilations 1 to 8, a mean over time."""
    net, x = _begin(dtype, steps, 8)
    for dilation in (1, 2, 4, 8):
        x = net.conv(x, 24, (1, 3), dilation=(1, dilation), activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 4))


def keyword(dtype: Dtype = "int8", steps: int = 98) -> IRModule:
    """Forty features a frame, depthwise separable layers of long windows."""
    net, x = _begin(dtype, steps, 40)
    x = net.conv(x, 64, (1, 3), activation="relu")
    for _ in range(3):
        x = net.separable(x, 64, (1, 9), activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 12))


def gesture(dtype: Dtype = "int8", steps: int = 150) -> IRModule:
    """Three channels, three convolutions with pools."""
    net, x = _begin(dtype, steps, 3)
    for channels in (8, 16, 16):
        x = net.max_pool(net.conv(x, channels, (1, 3), activation="relu"), (1, 2), (1, 2))
    return net.finish(net.dense(net.flatten(x), 4))


def gated(dtype: Dtype = "int8", steps: int = 96) -> IRModule:
    """As in WaveNet: dilated convolutions, tanh times sigmoid, residuals."""
    net, x = _begin(dtype, steps, 4)
    x = net.conv(x, 16, 1)
    for dilation in (1, 2, 4):
        filtered, gate = (net.conv(x, 16, (1, 3), dilation=(1, dilation)) for _ in range(2))
        y = net.mul(net.tanh(filtered), net.sigmoid(gate))
        x = net.add(x, net.conv(y, 16, 1))
    return net.finish(net.conv(x, 8, 1, activation="relu"))


def causal(dtype: Dtype = "int8", steps: int = 160) -> IRModule:
    """Convolutions that see no later step."""
    net, x = _begin(dtype, steps, 16)
    for dilation in (1, 2, 4):
        x = net.conv(x, 32, (1, 3), 1, (0, 2 * dilation, 0, 0), dilation=(1, dilation), activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 3))


def separable(dtype: Dtype = "int8", steps: int = 128) -> IRModule:
    """Depthwise separable layers with strides."""
    net, x = _begin(dtype, steps, 6)
    for channels, stride in ((24, 1), (48, 2), (48, 1), (64, 2)):
        x = net.separable(x, channels, (1, 5), (1, stride), activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 8))


NETWORKS: tuple[Callable[..., IRModule], ...] = (
    activity,
    heartbeat,
    dilated,
    keyword,
    gesture,
    gated,
    causal,
    separable,
)


def _begin(dtype: Dtype, steps: int, channels: int) -> tuple[Net, Value]:
    net = Net(dtype)
    return net, net.input((1, 1, steps, channels), "x")
