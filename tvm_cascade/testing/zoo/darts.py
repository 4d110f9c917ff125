"""DARTS-V2 for ImageNet (Liu et al., ICLR 2019): C = 48, 14 cells, 4.7 M weights.

Layer for layer the `NetworkImageNet` of quark0/darts with the genotype DARTS_V2: cells 5 and 10 of 14 reduce, the auxiliary
head, which training alone uses, is left out. It has 529.9 M multiply-accumulates, counted with padding (convolutions 503.1 M,
depthwise ones 26.1 M, classifier 0.8 M), and 4,681,416 weights, with those of normalizations and biases 4,718,752: the 4.7 M
that the authors print. They print 574 M multiply-accumulates too, which no plain way of counting gives: normalizations would
add 4.1 M, rectifiers 5.8 M, pools 1.3 M, sums 1.2 M, the auxiliary head 1.6 M, and factorized reductions counted at the size of
their inputs 27.1 M, all together 570.9 M. With 50 channels instead of 48 it would be 573.5 M, but 5.1 M weights. Others who
counted that code got 523 to 545 M (its issue 46). The first cell needs to the byte what Serenity printed for it.
Batch normalization is folded into the convolutions, as a converter does. Of a
factorized reduction both halves read the even pixels, where the original shifts the second by one: the same shapes and
the same work.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

Genes = tuple[tuple[str, int], ...]

NORMAL: Genes = (
    ("sep_conv_3x3", 0), ("sep_conv_3x3", 1), ("sep_conv_3x3", 0), ("sep_conv_3x3", 1),
    ("sep_conv_3x3", 1), ("skip_connect", 0), ("skip_connect", 0), ("dil_conv_3x3", 2),
)  # fmt: skip
REDUCE: Genes = (
    ("max_pool_3x3", 0), ("max_pool_3x3", 1), ("skip_connect", 2), ("max_pool_3x3", 1),
    ("max_pool_3x3", 0), ("skip_connect", 2), ("skip_connect", 2), ("max_pool_3x3", 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counted:
    """A module with its multiply-accumulates and weights as the literature counts them."""

    mod: IRModule
    macs: int
    weights: int


def _reduced(net: Net, x: Value, channels: int) -> Value:
    x = net.relu(x)
    halves = [net.conv(x, channels // 2, 1, 2), net.conv(x, channels - channels // 2, 1, 2)]
    return net.concat(halves)


def _operation(net: Net, gene: str, x: Value, channels: int, stride: int) -> Value:
    if gene == "skip_connect":
        return x if stride == 1 else _reduced(net, x, channels)
    if gene == "max_pool_3x3":
        return net.max_pool(x, 3, stride, "same")
    x = net.relu(x)
    if gene == "dil_conv_3x3":
        return net.separable(x, channels, 3, stride, dilation=2)
    x = net.separable(x, channels, 3, stride, activation="relu")
    return net.separable(x, channels, 3)


def add_cell(net: Net, s0: Value, s1: Value, channels: int, reduction: bool, after_reduction: bool) -> Value:
    """One cell on the outputs of the last two; `after_reduction`: s0 is twice as large as s1."""
    s0 = _reduced(net, s0, channels) if after_reduction else net.conv(net.relu(s0), channels, 1)
    s1 = net.conv(net.relu(s1), channels, 1)
    states = [s0, s1]
    genes = REDUCE if reduction else NORMAL
    for (a, i), (b, j) in zip(genes[::2], genes[1::2], strict=True):
        one = _operation(net, a, states[i], channels, 2 if reduction and i < 2 else 1)
        other = _operation(net, b, states[j], channels, 2 if reduction and j < 2 else 1)
        states.append(net.add(one, other))
    return net.concat(states[2:])


def first_cell(dtype: str = "int8", seed: int = 0) -> IRModule:
    """The first cell alone, the one with the highest peak: 56x56x48 and 28x28x48 to 28x28x192."""
    net = Net("int8" if dtype == "int8" else "float32", seed=seed)
    s0, s1 = net.input((1, 56, 56, 48), "stem0"), net.input((1, 28, 28, 48), "stem1")
    return net.finish(add_cell(net, s0, s1, 48, False, True))


def network(dtype: str = "int8", layers: int = 14, seed: int = 0) -> Counted:
    """The whole network on 224x224 images."""
    net = Net("int8" if dtype == "int8" else "float32", seed=seed)
    channels = 48
    s0 = net.conv(net.input((1, 224, 224, 3), "image"), channels // 2, 3, 2, 1, activation="relu")
    s0 = net.conv(s0, channels, 3, 2, 1)
    s1 = net.conv(net.relu(s0), channels, 3, 2, 1)
    after = True
    for layer in range(layers):
        reduction = layer in (layers // 3, 2 * layers // 3)
        channels *= 2 if reduction else 1
        s0, s1, after = s1, add_cell(net, s0, s1, channels, reduction, after), reduction
    logits = net.dense(net.flatten(net.global_pool(s1)), 1000)
    return Counted(net.finish(logits), net.macs, net.weights)
