"""AlexNet (Krizhevsky et al. 2012) in its one-tower form (2014), without local response normalization."""

from __future__ import annotations

from typing import Literal

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net


def alexnet(
    batch: int = 1, size: int = 224, classes: int = 1000, layout: Literal["NHWC", "NCHW"] = "NCHW", width: float = 1.0
) -> IRModule:
    """Five convolutions and three dense layers; `width` scales all channels, for tests. Sizes from 63 pixels work."""
    net = Net("float32", layout=layout)
    c = lambda n: max(1, int(n * width))  # noqa: E731
    x = net.input((batch, 3, size, size) if layout == "NCHW" else (batch, size, size, 3))
    x = net.max_pool(net.conv(x, c(64), 11, 4, 2, activation="relu"), 3, 2)
    x = net.max_pool(net.conv(x, c(192), 5, activation="relu"), 3, 2)
    x = net.conv(x, c(384), 3, activation="relu")
    x = net.conv(x, c(256), 3, activation="relu")
    x = net.max_pool(net.conv(x, c(256), 3, activation="relu"), 3, 2)
    x = net.flatten(x)
    x = net.dense(x, c(4096), activation="relu")
    x = net.dense(x, c(4096), activation="relu")
    return net.finish(net.softmax(net.dense(x, classes)))
