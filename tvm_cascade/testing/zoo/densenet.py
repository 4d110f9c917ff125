"""DenseNet-121 (Huang et al., CVPR 2017): 2.8 G multiply-accumulates, 8.0 M weights on 224x224 images.

A dense layer is relu -> 1x1 to 4 x growth -> 3x3 to growth, concatenated to all before it. Batch normalization in front
of an activation cannot be folded into a convolution; in int8 it is left out, with the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.zoo.darts import Counted


def _dense_block(net: Net, x: Value, layers: int, growth: int) -> Value:
    for _ in range(layers):
        y = net.conv(net.relu(net.batch_norm(x)), 4 * growth, 1, activation="relu")
        x = net.concat([x, net.conv(y, growth, 3)])
    return x


def network(
    dtype: str = "int8", blocks: Sequence[int] = (6, 12, 24, 16), growth: int = 32, size: int = 224, seed: int = 0
) -> Counted:
    """The network with `blocks` dense layers per block; the published one by default."""
    net = Net("int8" if dtype == "int8" else "float32", seed=seed)
    x = net.conv(net.input((1, size, size, 3), "image"), 2 * growth, 7, 2, 3, activation="relu")
    x = net.max_pool(x, 3, 2, "same")
    for k, layers in enumerate(blocks):
        if k:
            x = net.conv(net.relu(net.batch_norm(x)), net.channels(x) // 2, 1)
            x = net.avg_pool(x, 2)
        x = _dense_block(net, x, layers, growth)
    logits = net.dense(net.flatten(net.global_pool(net.relu(net.batch_norm(x)))), 1000)
    return Counted(net.finish(logits), net.macs, net.weights)
