"""Random small int8 networks of windowed operators: branches, odd sizes, strides, paddings, dilations."""

from __future__ import annotations

import numpy as np
from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value


def random_network(seed: int) -> IRModule:
    """A network of three to nine operators on a map of odd extents, deterministic for a seed."""
    rng = np.random.default_rng(seed)
    net = Net("int8", seed=seed)
    height, width, channels = (int(v) for v in (rng.integers(5, 18), rng.integers(4, 15), rng.integers(1, 6)))
    live = [net.input((1, height, width, channels))]
    for _ in range(int(rng.integers(3, 10))):
        live.append(_operator(net, live, rng))
    last = live[-1]
    ending = rng.integers(0, 4)
    if ending == 0:
        last = net.global_pool(last)
    elif ending == 1:
        last = net.dense(net.flatten(last), 5)
    return net.finish([last, live[-2]] if rng.random() < 0.2 else last)


def _operator(net: Net, live: list[Value], rng: np.random.Generator) -> Value:
    x = live[-1] if rng.random() < 0.75 else live[int(rng.integers(len(live)))]
    same_shape = [v for v in live if v.shape == x.shape and v is not x]
    same_map = [v for v in live if v.shape[:3] == x.shape[:3] and v is not x]
    height, width = x.shape[1:3]
    kernel = int(rng.integers(1, min(4, height) + 1)), int(rng.integers(1, min(4, width) + 1))
    stride = int(rng.integers(1, 3)) if min(height, width) > 3 else 1
    padding = "same" if rng.random() < 0.7 else "valid"
    kind = int(rng.integers(0, 8))
    if kind == 0 and same_shape:
        return net.add(x, same_shape[int(rng.integers(len(same_shape)))], "relu" if rng.random() < 0.5 else None)
    if kind == 1 and same_map:
        return net.concat([x, same_map[int(rng.integers(len(same_map)))]])
    if kind == 2:
        return net.max_pool(x, kernel, stride, padding)
    if kind == 3:
        return net.avg_pool(x, kernel, stride, padding)
    if kind in (4, 5):
        return net.depthwise(x, kernel=kernel, stride=stride, padding=padding, activation="relu")
    dilation = 2 if padding == "same" and stride == 1 and rng.random() < 0.3 else 1
    return net.conv(
        x, int(rng.integers(1, 9)), kernel=kernel, stride=stride, padding=padding, dilation=dilation, activation="relu"
    )
