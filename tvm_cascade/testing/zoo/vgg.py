"""VGG16 (Simonyan and Zisserman 2014), configuration D."""

from __future__ import annotations

from typing import Literal

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions


def vgg16(
    batch: int = 1, size: int = 224, classes: int = 1000, layout: Literal["NHWC", "NCHW"] = "NCHW", width: float = 1.0
) -> IRModule:
    """Thirteen convolutions and three dense layers; `width` scales all channels. Sizes from 32 pixels work."""
    net = Net("float32", layout=layout)
    x = net.input((batch, 3, size, size) if layout == "NCHW" else (batch, size, size, 3))
    for channels, count in _STAGES:
        for _ in range(count):
            x = net.conv(x, max(1, int(channels * width)), 3, activation="relu")
        x = net.max_pool(x, 2)
    x = net.flatten(x)
    for _ in range(2):
        x = net.dense(x, max(1, int(4096 * width)), activation="relu")
    return net.finish(net.softmax(net.dense(x, classes)))
