"""Small random DAGs of windowed operators, from a seed: strides, dilations, paddings, branches, odd sizes."""

from __future__ import annotations

from random import Random

from tvm_cascade.graph import Graph
from tvm_cascade.testing.graphs import Builder


def random_graph(seed: int, *, operators: int = 8, largest: int = 14, signal: bool = False) -> Graph:
    """A graph of about `operators` operators on maps of at most `largest` rows, or of one row; always ends in something."""
    rng = Random(seed)
    b = Builder()
    maps = [b.input(1 if signal else rng.randint(3, largest), rng.randint(2, largest), rng.randint(1, 4))]
    if rng.random() < 0.2:
        maps.append(b.input(*b.tensors[maps[0]].shape[1:]))
    while len(b.ops) < operators:
        maps.extend(_grow(rng, b, maps))
    used = {t for op in b.ops for t in op.inputs}
    ends = [t.index for t in b.tensors if t.index not in used and t.index not in b.inputs]
    outputs = list(ends)
    if rng.random() < 0.3:
        outputs[-1] = b.global_pool(outputs[-1])
        if rng.random() < 0.6:
            outputs[-1] = b.softmax(b.dense(b.flatten(outputs[-1]), 3))
    if rng.random() < 0.15:
        outputs.append(maps[len(maps) // 2])
    return b.finish(*dict.fromkeys(outputs), name=f"random{seed}")


def _grow(rng: Random, b: Builder, maps: list[int]) -> list[int]:
    x = rng.choice(maps[-3:])
    _, h, w, c = b.tensors[x].shape
    alike = [m for m in maps if b.tensors[m].shape == b.tensors[x].shape and m != x]
    near = [m for m in maps if b.tensors[m].shape[:3] == (1, h, w) and m != x]
    kind = rng.choice(["conv", "conv", "conv", "depthwise", "pool", "relu", "resize", "split", "add", "add", "concat"])
    kernel, stride = (rng.randint(1, 5), rng.randint(1, 3)), (rng.randint(1, 3), rng.randint(1, 3))
    dilation = (rng.randint(1, 2), rng.randint(1, 2))
    fits = (kernel[0] - 1) * dilation[0] < h and (kernel[1] - 1) * dilation[1] < w
    if kind == "conv":
        return [b.conv(x, rng.randint(1, 5), kernel, stride, valid=fits and rng.random() < 0.4, dilation=dilation)]
    if kind == "depthwise":
        return [b.depthwise(x, kernel, stride)]
    if kind == "pool":
        return [b.max_pool(x, min(kernel[0], h, w), stride[0], valid=rng.random() < 0.5)]
    if kind == "resize" and h * w < 100:
        return [b.resize(x, 2)]
    if kind == "split" and c % 2 == 0:
        return b.split(x, 2)
    if kind == "add" and alike:
        return [b.add(rng.choice(alike), x)]
    if kind == "concat" and near:
        return [b.concat([x, rng.choice(near)])]
    return [b.relu(x)]
