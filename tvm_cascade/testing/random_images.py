"""Random float networks on images: every kind of operator that staged programs may keep packed, and what meets them.

A network is a random directed acyclic graph: each step takes one live value or several and adds what an operator makes of
them, so that tensors have several readers, of kernels for vectors of channels and of others, and several results.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import relax as _relax
from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

relax: Any = _relax  # its nodes get their fields at run time, where no type checker sees them

_CHANNELS = (8, 12, 13, 16, 20, 24, 28, 32, 40, 48, 58, 64)
_PADDINGS = ("same", "valid", 1, 2, (0, 1, 1, 0), (1, 0, 2, 1), (0, 0, 1, 1), (2, 1, 0, 0))
_MOST_ELEMENTS = 40_000  # of a value: larger ones are not made larger
_MOST_CHANNELS = 160


def random_images(seed: int, steps: int = 9, batch: int = 1, channels: tuple[int, ...] = _CHANNELS) -> IRModule:
    """A network in NCHW of one or two inputs, about `steps` operators with their activations, and one to three results."""
    return _Drawer(seed, batch, channels).network(steps)


class _Drawer:
    def __init__(self, seed: int, batch: int, channels: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(seed)
        self.net = Net("float32", "NCHW", seed=seed)
        self.batch, self.widths = batch, channels
        self.live: list[Value] = []

    def network(self, steps: int) -> IRModule:
        size = tuple(int(v) for v in self.rng.integers(5, 15, 2))
        self.live.append(self.net.input((self.batch, int(self.pick((3, 16, 20))), *size), "x"))
        if self.chance(0.2):
            self.live.append(self.net.input((self.batch, int(self.pick(self.widths)), *size), "y"))
        self.live += [self.net.conv(x, int(self.pick(self.widths)), 3, activation="relu") for x in list(self.live)]
        rare = float(self.pick((0.03, 0.1, 0.4)))
        made = 0
        while made < steps:
            value = self.pick(_RARE if self.chance(rare) else _COMMON)(self)
            if value is not None:
                self.live.append(value)
                made += 1
        return self.net.finish(self.results())

    def results(self) -> Value | list[Value]:
        """The sum of what is made of all values that nothing reads, but for some that are results themselves, read or not."""
        read: set[Any] = set()
        for _, expr in self.net._lines:
            relax.analysis.post_order_visit(expr, lambda e: read.add(e) if isinstance(e, relax.Var) else None)
        made = [v for v in self.live if v.expr not in self.net._inputs]
        returned = [v for v in made if self.chance(0.08)][:2]
        ends = [self.end(v) for v in made if v.expr not in read and v not in returned]
        total = ends[:1]
        for value in ends[1:]:
            total = [self.net.add(total[0], value)]
        return [*total, *returned] if len(total) + len(returned) > 1 or self.chance(0.2) else (total or returned)[0]

    def end(self, x: Value) -> Value:
        """Ten numbers that depend on all of a value."""
        if len(x.shape) == 4 and self.chance(0.5):
            x = self.net.conv(x, int(self.pick(self.widths)), int(self.pick((1, 3))), activation="relu")
        if len(x.shape) == 4:
            x = self.net.global_pool(x)
        return self.net.dense(self.net.flatten(x), 10)

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def image(self) -> Value:
        """A live value of four axes, mostly a late one; any value may be taken again."""
        images = [v for v in self.live if len(v.shape) == 4]
        return images[-1] if self.chance(0.5) else self.pick(images)

    def value(self, expr: Any) -> Value:
        made = self.net._emit(expr)
        return Value(made, tuple(int(d) for d in made.ty.shape.values))

    def others(self, x: Value, axes: tuple[int, ...]) -> list[Value]:
        """Live values that agree with `x` on `axes`."""
        return [v for v in self.live if len(v.shape) == 4 and all(v.shape[a] == x.shape[a] for a in axes)]

    def window(self, x: Value, most: int = 5) -> dict[str, Any]:
        """Kernel, stride, padding and dilation of a window that fits an image."""
        while True:
            kernel = self.pick(((1, 1), (1, 1), (3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (2, 2), (2, 3)))
            stride = self.pick(((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (1, 2), (3, 3)))
            dilation = self.pick(((1, 1), (1, 1), (1, 1), (2, 2), (1, 2)))
            padding = self.pick(_PADDINGS)
            if max(kernel) > most:
                continue
            pads = (0, 0) if padding in ("same", "valid") else (padding, padding)
            if isinstance(padding, tuple):
                pads = (padding[0] + padding[2], padding[1] + padding[3])
            elif isinstance(padding, int):
                pads = (2 * padding, 2 * padding)
            spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
            if all(s <= n + p for s, n, p in zip(spans, x.shape[2:], pads, strict=True)):
                return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}

    def activation(self) -> Any:
        return self.pick((None, "relu", "relu", "relu6"))


def _conv(d: _Drawer) -> Value | None:
    x = d.image()
    return d.net.conv(x, int(d.pick(d.widths)), **d.window(x), activation=d.activation(), bias=d.chance(0.8))


def _grouped(d: _Drawer) -> Value | None:
    x = d.image()
    groups = [g for g in (2, 4, 8) if x.shape[1] % g == 0]
    if not groups:
        return None
    g = d.pick(groups)
    return d.net.conv(x, g * int(d.pick((1, 4, 8, 12))), **d.window(x), groups=g, activation=d.activation())


def _depthwise(d: _Drawer) -> Value | None:
    x = d.image()
    times = 2 if d.chance(0.1) and x.shape[1] * 2 <= _MOST_CHANNELS else 1
    options = {"activation": d.activation(), "bias": d.chance(0.8)}
    return d.net.depthwise(x, multiplier=times, **d.window(x), **options) if x.shape[1] > 1 else None


def _separable(d: _Drawer) -> Value | None:
    x = d.net.relu(d.image()) if d.chance(0.5) else d.image()
    return d.net.separable(x, int(d.pick(d.widths)), **d.window(x)) if x.shape[1] > 1 else None


def _branches(d: _Drawer) -> Value | None:
    """Convolutions of one input, which may be merged, beside each other in a concatenation or one by one."""
    x, stride = d.image(), d.pick((1, 1, 2))
    some = [int(d.pick(d.widths)) for _ in range(int(d.rng.integers(2, 4)))]
    if sum(some) > _MOST_CHANNELS:
        return None
    kernels = [d.pick((1, 3, (1, 3), (3, 1), 5)) for _ in some]
    act = d.activation()
    parts = [d.net.conv(x, c, k, stride, "same", activation=act) for c, k in zip(some, kernels, strict=True)]
    if d.chance(0.5):
        parts = [d.net.conv(p, int(d.pick(d.widths)), 3) if d.chance(0.5) else p for p in parts]
    if d.chance(0.3):
        d.live += parts
    return d.net.concat(parts)


def _pool(d: _Drawer) -> Value | None:
    x, largest = d.image(), d.chance(0.5)
    window = d.window(x, 3)
    op = relax.op.nn.max_pool2d if largest else relax.op.nn.avg_pool2d
    pads = window["padding"]
    pads = {"same": 1, "valid": 0}.get(pads, pads) if isinstance(pads, str) else pads
    pads = [pads] * 4 if isinstance(pads, int) else list(pads)
    if any(p >= k for p, k in zip(pads, window["kernel"] * 2, strict=True)):
        pads = [0] * 4  # a window of padding alone has no mean
    if any(k > n for k, n in zip(window["kernel"], x.shape[2:], strict=True)):
        return None
    options = {} if largest else {"count_include_pad": d.chance(0.5)}
    kernel, stride = list(window["kernel"]), list(window["stride"])
    return d.value(op(x.expr, kernel, stride, pads, ceil_mode=d.chance(0.2), layout="NCHW", **options))


def _adaptive(d: _Drawer) -> Value | None:
    x = d.image()
    size = tuple(int(d.rng.integers(1, n + 1)) for n in x.shape[2:]) if d.chance(0.6) else (1, 1)
    return d.value(relax.op.nn.adaptive_avg_pool2d(x.expr, size, layout="NCHW"))


def _reduce(d: _Drawer) -> Value | None:
    x = d.image()
    axes = list(d.pick(((2, 3), (2, 3), (2,), (3,), (1,), (1, 2, 3))))
    op = d.pick((relax.op.mean, relax.op.mean, relax.op.max, relax.op.sum))
    made = d.value(op(x.expr, axes, d.chance(0.7)))
    return d.value(relax.op.multiply(made.expr, relax.const(0.1, "float32")))


def _gate(d: _Drawer) -> Value | None:
    x = d.image()
    return d.net.mul(x, d.net.sigmoid(d.net.conv(d.net.global_pool(x), x.shape[1], 1)))


def _join(d: _Drawer) -> Value | None:
    """A sum, product or maximum of two values of one shape, or of a value and one that is broadcast."""
    x = d.image()
    alike = [v for v in d.others(x, (0, 1, 2, 3)) if v is not x]
    broadcast = [v for v in d.others(x, (0,)) if all(n in (1, m) for n, m in zip(v.shape, x.shape, strict=True))]
    if not alike and (not broadcast or d.chance(0.5)):
        alike = [d.net.conv(x, x.shape[1], 3)]
    op = d.pick((relax.op.add, relax.op.add, relax.op.multiply, relax.op.maximum, relax.op.subtract))
    a, b = x.expr, d.pick(alike or broadcast).expr
    return d.value(op(b, a) if d.chance(0.5) else op(a, b))


def _sum(d: _Drawer) -> Value | None:
    """A residual sum with what a convolution of the same shape computes, or with another value of that shape."""
    x = d.image()
    alike = [v for v in d.others(x, (0, 1, 2, 3)) if v is not x]
    other = d.pick(alike) if alike and d.chance(0.7) else d.net.conv(x, x.shape[1], d.pick((1, 3)), activation="relu")
    return d.net.add(x, other, d.activation()) if d.chance(0.5) else d.net.add(other, x)


def _global(d: _Drawer) -> Value | None:
    """Squeeze and excitation without the product: a mean over the map, and what reads it."""
    x = d.net.conv(d.net.global_pool(d.image()), int(d.pick(d.widths)), 1, activation="relu")
    return x if d.chance(0.3) else None


def _concat(d: _Drawer) -> Value | None:
    """Of values as wide as many vectors, where there are some."""
    x = d.image()
    parts = [v for v in d.others(x, (0, 2, 3)) if v.shape[1] % 16 == x.shape[1] % 16]
    return _joined(d, [x, *(d.pick(parts) for _ in range(int(d.rng.integers(1, 3))))], 1)


def _concat_of_any(d: _Drawer) -> Value | None:
    x, axis = d.image(), d.pick((1, 1, 2, 3))
    parts = d.others(x, tuple({0, 1, 2, 3} - {axis}))
    return _joined(d, [x, *(d.pick(parts) for _ in range(int(d.rng.integers(1, 3))))], axis)


def _joined(d: _Drawer, parts: list[Value], axis: int) -> Value | None:
    if sum(prod(p.shape) for p in parts) > _MOST_ELEMENTS or sum(p.shape[1] for p in parts) > _MOST_CHANNELS:
        return None
    return d.net.concat([parts[i] for i in d.rng.permutation(len(parts))], axis)


def _split(d: _Drawer) -> Value | None:
    x = d.image()
    axis = 1 if d.chance(0.8) else 2
    if x.shape[axis] < 3:
        return None
    at = d.pick([c for c in (16, 32, x.shape[axis] // 2, x.shape[axis] // 3) if 0 < c < x.shape[axis]])
    call = d.net._emit(relax.op.split(x.expr, [at], axis))
    parts = [d.value(relax.TupleGetItem(call, k)) for k in (0, 1)]
    if d.chance(0.2):
        return d.net.concat([d.net.relu(p) for p in parts[::-1]], axis)
    d.live.append(parts[0])
    return parts[1]


def _slice(d: _Drawer) -> Value | None:
    x = d.image()
    axis = int(d.pick((1, 1, 2, 3)))
    n = x.shape[axis]
    begin = int(d.pick([b for b in (0, 1, 16, n // 2) if b < n]))
    end, step = n - int(d.rng.integers(0, max(1, (n - begin) // 2))), int(d.pick((1, 1, 2)))
    return d.value(relax.op.strided_slice(x.expr, [axis], [begin], [end], [step]))


def _activation(d: _Drawer) -> Value | None:
    """What keeps finite values finite, and whatever layout they have."""
    x = d.image()
    c = relax.const(
        d.rng.uniform(0.5, 1.5, d.pick(((), (1, x.shape[1], 1, 1), (x.shape[1], 1, 1)))).astype("float32"), "float32"
    )
    nn, op = relax.op.nn, relax.op
    made: tuple[Callable[[Any], Any], ...] = (
        nn.relu, op.sigmoid, op.tanh, nn.gelu, nn.silu, lambda e: nn.leakyrelu(e, 0.1), lambda e: op.clip(e, -0.5, 0.5),
        lambda e: op.add(e, c), lambda e: op.multiply(c, e), lambda e: op.subtract(c, e), lambda e: op.maximum(e, c),
    )  # fmt: skip
    return d.value(d.pick(made)(x.expr))


def _element(d: _Drawer) -> Value | None:
    """Element-wise operators that are undefined somewhere, constants of other shapes, and what normalizes channels."""
    x = d.image()
    shape = d.pick(((1, x.shape[1], 1, 1), (1, 1, *x.shape[2:]), x.shape, (x.shape[3],), (x.shape[2], 1)))
    c = relax.const(d.rng.uniform(0.5, 1.5, shape).astype("float32"), "float32")
    nn, op, emit = relax.op.nn, relax.op, d.net._emit
    made: tuple[Callable[[Any], Any], ...] = (
        lambda e: op.sqrt(emit(op.abs(e))), lambda e: op.exp(emit(op.tanh(e))), op.negative,
        lambda e: op.add(e, c), lambda e: op.multiply(c, e), lambda e: op.divide(e, c), lambda e: op.subtract(c, e),
        lambda e: op.divide(c, emit(op.add(emit(op.multiply(e, e)), c))), lambda e: op.rsqrt(emit(op.maximum(e, c))),
        lambda e: nn.softmax(e, 1), lambda e: nn.prelu(e, relax.const(np.full(x.shape[1], 0.2), "float32"), 1),
    )  # fmt: skip
    return d.value(d.pick(made)(x.expr))


def _shuffle(d: _Drawer) -> Value | None:
    """ShuffleNet's permutation of channels, or another change of axes."""
    x = d.image()
    n, c, h, w = x.shape
    if d.chance(0.6) and c % 2 == 0:
        y = d.net.reshape(x, (n, 2, c // 2, h, w))
        y = d.value(relax.op.permute_dims(y.expr, [0, 2, 1, 3, 4]))
        return d.net.reshape(y, (n, c, h, w))
    y = d.value(relax.op.permute_dims(x.expr, list(d.pick(((0, 2, 3, 1), (0, 1, 3, 2), (0, 3, 1, 2))))))
    return y if d.chance(0.3) else d.net.relu(y)


def _reshape(d: _Drawer) -> Value | None:
    x = d.image()
    n, c, h, w = x.shape
    shapes = [(n, c, w, h), (n, c, h * w, 1), (n, 1, c, h * w)]
    shapes += [(n, c * 2, h // 2, w)] if h % 2 == 0 else []
    return d.net.reshape(x, d.pick(shapes))


def _normalize(d: _Drawer) -> Value | None:
    return d.net.batch_norm(d.image())


def _pad(d: _Drawer) -> Value | None:
    x = d.image()
    widths = d.pick(([0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 2, 0], [0, 0, 1, 2, 0, 0, 0, 0]))
    return d.value(
        relax.op.nn.pad(x.expr, widths, d.pick(("constant", "reflect")) if sum(widths[2:4]) == 0 else "constant")
    )


def _upsample(d: _Drawer) -> Value | None:
    x = d.image()
    if prod(x.shape) * 4 > _MOST_ELEMENTS:
        return None
    size = tuple(2 * n for n in x.shape[2:])
    method = d.pick(("nearest_neighbor", "linear"))
    return d.value(relax.op.image.resize2d(x.expr, size, layout="NCHW", method=method))


def _transposed(d: _Drawer) -> Value | None:
    x = d.image()
    channels = int(d.pick(d.widths))
    if prod(x.shape[2:]) * 4 * channels > _MOST_ELEMENTS:
        return None
    weight = relax.const(d.rng.standard_normal((x.shape[1], channels, 2, 2)).astype("float32") / x.shape[1], "float32")
    return d.value(relax.op.nn.conv2d_transpose(x.expr, weight, strides=(2, 2)))


def _product(d: _Drawer) -> Value | None:
    return d.net.dense(d.image(), int(d.pick((7, 16, 20))))


_COMMON = (_conv, _conv, _depthwise, _branches, _pool, _sum, _concat, _activation, _activation, _gate, _separable)
_RARE = (
    _grouped, _adaptive, _reduce, _join, _split, _slice, _shuffle, _reshape, _normalize, _pad, _upsample, _transposed,
    _product, _element, _concat_of_any, _global,
)  # fmt: skip
