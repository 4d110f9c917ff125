"""Randomly wired networks (Xie et al., ICCV 2019): Watts-Strogatz graphs WS(n, k, p) of relu -> separable 3x3 nodes.

The graph is drawn by the procedure of Watts and Strogatz (Nature, 1998) with Python's `random.Random(seed)`: a ring of
n nodes joined to k neighbours, the clockwise edges rewired with probability p, directed from the lower to the higher
number. A node adds up its inputs, a stage ends in the sum of its sinks; sources halve height and width. The learned
input weights of the original are left out: they fold into the scales of the sums.

Work depends on the seed by the number of sources. What Serenity prints, 111.0 M multiply-accumulates and 1.2 M weights for
CIFAR10, 160.0 M and 4.7 M for CIFAR100, is that of seeds 28 and 0: 110.994 M and 1.214 M, 159.996 M and 4.674 M.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.zoo.darts import Counted


@dataclass(frozen=True, slots=True)
class Wiring:
    """Parameters of the generator; the paper's small regime by default."""

    n: int = 32
    k: int = 4
    p: float = 0.75
    seed: int = 0


def edges(wiring: Wiring) -> tuple[tuple[int, int], ...]:
    """Directed edges (from, to), from < to, each once."""
    random, n = Random(wiring.seed), wiring.n
    near: list[set[int]] = [set() for _ in range(n)]
    for i in range(n):
        for step in range(1, wiring.k // 2 + 1):
            near[i].add((i + step) % n)
            near[(i + step) % n].add(i)
    for step in range(1, wiring.k // 2 + 1):
        for i in range(n):
            j = (i + step) % n
            if random.random() < wiring.p and len(near[i]) < n - 1 and j in near[i]:
                other = random.choice([x for x in range(n) if x != i and x not in near[i]])
                near[i].remove(j)
                near[j].remove(i)
                near[i].add(other)
                near[other].add(i)
    return tuple((i, j) for i in range(n) for j in sorted(near[i]) if i < j)


def _sum(net: Net, values: list[Value]) -> Value:
    total = values[0]
    for v in values[1:]:
        total = net.add(total, v)
    return total


def add_stage(net: Net, x: Value, channels: int, wiring: Wiring, stride: int = 2) -> Value:
    """One randomly wired stage."""
    wires = edges(wiring)
    values: list[Value] = []
    for i in range(wiring.n):
        inputs = [values[a] for a, b in wires if b == i]
        y = net.relu(_sum(net, inputs) if inputs else x)
        values.append(net.separable(y, channels, 3, 1 if inputs else stride))
    sinks = [values[i] for i in range(wiring.n) if all(a != i for a, _ in wires)]
    return _sum(net, sinks)


def stage(size: int, channels_in: int, channels: int, wiring: Wiring | None = None, stride: int = 2,
          dtype: str = "int8") -> IRModule:  # fmt: skip
    """A stage alone on an input of `size` x `size`."""
    net = Net("int8" if dtype == "int8" else "float32")
    x = net.input((1, size, size, channels_in), "stage_in")
    return net.finish(add_stage(net, x, channels, wiring or Wiring(), stride))


@dataclass(frozen=True, slots=True)
class Design:
    """A network for 32x32 images: channels and strides of its three stages, classes."""

    channels: tuple[int, int, int]
    strides: tuple[int, int, int]
    classes: int
    head: int = 1280  # channels before the classifier


CIFAR10 = Design((22, 48, 172), (1, 2, 2), 10)
CIFAR100 = Design((76, 160, 324), (2, 2, 2), 100)


def network(design: Design = CIFAR10, wiring: Wiring | None = None, dtype: str = "int8", seed: int = 0) -> Counted:
    """The whole network; stage s is drawn with `wiring.seed + s`."""
    wiring = wiring or Wiring()
    net = Net("int8" if dtype == "int8" else "float32", seed=seed)
    x = net.conv(net.input((1, 32, 32, 3), "image"), design.channels[0] // 2, 3, activation="relu")
    for s, (channels, stride) in enumerate(zip(design.channels, design.strides, strict=True)):
        drawn = Wiring(wiring.n, wiring.k, wiring.p, wiring.seed + s)
        x = add_stage(net, x, channels, drawn, stride)
    x = net.conv(x, design.head, 1, activation="relu")
    logits = net.dense(net.flatten(net.global_pool(x)), design.classes)
    return Counted(net.finish(logits), net.macs, net.weights)
