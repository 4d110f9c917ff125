"""What every operator computes, in numpy: folds weights after a search and proves rules in tests.

Slow and plain. Integer convolutions and products accumulate in int32 and are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tvm_cascade.substitution.dag import Dag, Node, Ref, postorder

Array = np.ndarray


def evaluate(refs: Iterable[Ref], values: Mapping[str, Array]) -> dict[Ref, Array]:
    """Arrays of `refs`; `values` holds those of inputs and weights by name.

    Raises
    ------
    KeyError
        An input or weight is missing.
    NotImplementedError
        An opaque operator is reached.
    """
    refs = tuple(refs)
    made: dict[Ref, Array] = {}
    for node in postorder(refs):
        outputs = apply(node, [made[r] for r in node.inputs], values)
        for port, value in enumerate(outputs):
            made[Ref(node, port)] = value
    return {r: made[r] for r in refs}


def run(dag: Dag, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """The graph's outputs."""
    made = evaluate(dag.outputs, values)
    return tuple(made[r] for r in dag.outputs)


def apply(node: Node, read: list[Array], values: Mapping[str, Array]) -> tuple[Array, ...]:
    """Outputs of one operator from its operands."""
    if node.kind in ("input", "weight"):
        return (values[str(node["name"])],)
    attrs: dict[str, Any] = dict(node.attrs)
    if node.kind == "split":
        cuts = np.cumsum(attrs["sizes"])[:-1]
        return tuple(np.split(read[0], cuts, axis=attrs["axis"]))
    if node.kind not in _RULES:
        raise NotImplementedError(f"{node.kind} has no numpy meaning")
    return (_RULES[node.kind](attrs, *read),)


def activate(name: str, x: Array) -> Array:
    return _UNARY[name](x) if name else x


def _conv2d(attrs: Mapping[str, Any], x: Array, w: Array, b: Array | None = None) -> Array:
    wide = np.int32 if x.dtype.kind in "iu" else x.dtype
    nchw = x if attrs["layout"] == "NCHW" else np.transpose(x, (0, 3, 1, 2))
    top, left, bottom, right = attrs["padding"]
    padded = np.pad(nchw, ((0, 0), (0, 0), (top, bottom), (left, right))).astype(wide)
    (sh, sw), (dh, dw), groups = attrs["strides"], attrs["dilation"], attrs["groups"]
    out, depth, kh, kw = w.shape
    windows = sliding_window_view(padded, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), axis=(2, 3))
    windows = windows[:, :, ::sh, ::sw, ::dh, ::dw]
    n, _, oh, ow = windows.shape[:4]
    columns = windows.reshape(n, groups, depth, oh, ow, kh, kw).transpose(1, 0, 3, 4, 2, 5, 6)
    columns = columns.reshape(groups, n * oh * ow, depth * kh * kw)
    kernels = w.astype(wide).reshape(groups, out // groups, depth * kh * kw).transpose(0, 2, 1)
    y = (columns @ kernels).reshape(groups, n, oh, ow, out // groups).transpose(1, 0, 4, 2, 3).reshape(n, out, oh, ow)
    if b is not None:
        y = y + b.reshape(1, -1, 1, 1)
    y = activate(attrs["act"], y)
    return y if attrs["layout"] == "NCHW" else np.transpose(y, (0, 2, 3, 1))


def _qconv2d(
    attrs: Mapping[str, Any], x: Array, w: Array, scales: Array, bias: Array | None = None, _: Array | None = None
) -> Array:
    plain = {**attrs, "act": ""}
    total = _conv2d(plain, x.astype("int64") - attrs["x_quantum"][1], w.astype("int64") - attrs["w_zero"])
    return _requantized(attrs, total, scales, bias, (-1, 1, 1) if attrs["layout"] == "NCHW" else (-1,))


def _qmatmul(
    attrs: Mapping[str, Any], x: Array, w: Array, scales: Array, bias: Array | None = None, _: Array | None = None
) -> Array:
    total = (x.astype("int64") - attrs["x_quantum"][1]) @ (w.astype("int64") - attrs["w_zero"])
    return _requantized(attrs, total, scales, bias, (-1,))


def _requantized(
    attrs: Mapping[str, Any], total: Array, scales: Array, bias: Array | None, shape: tuple[int, ...]
) -> Array:
    """Stored values of sums; rounded to even, which engines do otherwise, but for every output channel alike."""
    if bias is not None:
        total = total + bias.reshape(shape)
    return _stored(attrs, total * (attrs["x_quantum"][0] * scales.astype("float64").reshape(shape)))


def _stored(attrs: Mapping[str, Any], real: Array) -> Array:
    step, zero = attrs["y_quantum"]
    if attrs["act"]:
        low, high = (0.0, None) if attrs["act"] == "relu" else attrs["act"]
        real = np.clip(real, low, high)
    return np.clip(np.rint(real / step) + zero, *attrs["range"]).astype(attrs["dtype"])


def _qadd(attrs: Mapping[str, Any], *read: Array) -> Array:
    a, b = ((x.astype("int64") - zero) * step for x, (step, zero) in zip(read, attrs["quanta"], strict=True))
    return _stored(attrs, a + b)


def _matmul(attrs: Mapping[str, Any], a: Array, b: Array, bias: Array | None = None) -> Array:
    wide = np.int32 if a.dtype.kind in "iu" else a.dtype
    y = a.astype(wide) @ b.astype(wide)
    return activate(attrs["act"], y if bias is None else y + bias)


def _pool(attrs: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
    """Windows of `x` (NCHW) with their taps last, and which taps are real."""
    nchw = x if attrs["layout"] == "NCHW" else np.transpose(x, (0, 3, 1, 2))
    (kh, kw), (sh, sw), (top, left, bottom, right) = attrs["kernel"], attrs["strides"], attrs["padding"]
    more = (sh - 1, sw - 1) if attrs["ceil"] else (0, 0)
    widths = ((0, 0), (0, 0), (top, bottom + more[0]), (left, right + more[1]))
    real = np.pad(np.ones(nchw.shape, bool), widths)
    padded = np.pad(nchw, widths)
    cut = [sliding_window_view(v, (kh, kw), axis=(2, 3))[:, :, ::sh, ::sw] for v in (padded, real)]
    return tuple(v.reshape(*v.shape[:4], kh * kw) for v in cut)  # type: ignore[return-value]


def _back(attrs: Mapping[str, Any], y: Array) -> Array:
    return y if attrs["layout"] == "NCHW" else np.transpose(y, (0, 2, 3, 1))


def _max_pool(attrs: Mapping[str, Any], x: Array) -> Array:
    taps, real = _pool(attrs, x)
    low = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    return _back(attrs, np.where(real, taps, np.array(low, x.dtype)).max(-1))


def _avg_pool(attrs: Mapping[str, Any], x: Array) -> Array:
    taps, real = _pool(attrs, x)
    count = taps.shape[-1] if attrs["count_pad"] else real.sum(-1)
    return _back(attrs, (taps.sum(-1) / count).astype(x.dtype))


def _batch_norm(attrs: Mapping[str, Any], x: Array, gamma: Array, beta: Array, mean: Array, var: Array) -> Array:
    shape = [1] * x.ndim
    shape[attrs["axis"]] = -1
    scale = (gamma / np.sqrt(var + attrs["eps"])).reshape(shape)
    return ((x - mean.reshape(shape)) * scale + beta.reshape(shape)).astype(x.dtype)


def _softmax(attrs: Mapping[str, Any], x: Array) -> Array:
    e = np.exp(x - x.max(attrs["axis"], keepdims=True))
    return e / e.sum(attrs["axis"], keepdims=True)


def _fused(attrs: Mapping[str, Any], *read: Array) -> Array:
    def value(term: Any) -> Array:
        if isinstance(term, int):
            return read[term]
        kind, options, operands = term
        return _RULES[kind](dict(options), *[value(t) for t in operands])

    return value(attrs["program"])


def _eye(attrs: Mapping[str, Any]) -> Array:
    """A kernel that copies channel i to output i: ones at (i, i) and the given tap."""
    (shape, dtype), (row, col) = attrs["types"][0], attrs["at"]
    w = np.zeros(shape, dtype)
    for o in range(shape[0]):
        w[o, o % shape[1], row, col] = 1
    return w


def _block_diagonal(attrs: Mapping[str, Any], w: Array) -> Array:
    """Weights of `groups` groups as weights of `groups / merge` groups, zeros elsewhere."""
    merge, groups = attrs["merge"], attrs["groups"]
    out, depth, kh, kw = w.shape
    wide = np.zeros((out, depth * merge, kh, kw), w.dtype)
    for o in range(out):
        place = (o // (out // groups)) % merge
        wide[o, place * depth : (place + 1) * depth] = w[o]
    return wide


def _compose(attrs: Mapping[str, Any], inner: Array, outer: Array) -> Array:
    """Weights of a 1x1 convolution `outer` after a convolution `inner` of `groups` groups, as one dense kernel."""
    groups, depth = attrs["groups"], attrs["depth"]
    out, per_group, kh, kw = inner.shape
    dense = np.zeros((out, depth, kh, kw), inner.dtype)
    for o in range(out):
        g = o // (out // groups)
        dense[o, g * per_group : (g + 1) * per_group] = inner[o]
    return np.einsum("om,mikl->oikl", outer[:, :, 0, 0], dense).astype(inner.dtype)


def _full(attrs: Mapping[str, Any]) -> Array:
    shape, dtype = attrs["types"][0]
    return np.full(shape, attrs["value"], dtype)


def _sigmoid(x: Array) -> Array:
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0).astype(x.dtype),
    "relu6": lambda x: np.clip(x, 0, 6).astype(x.dtype),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    "neg": lambda x: -x,
}
_RULES: dict[str, Callable[..., Array]] = {
    "conv2d": _conv2d,
    "qconv2d": _qconv2d,
    "qmatmul": _qmatmul,
    "qadd": _qadd,
    "matmul": _matmul,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "batch_norm": _batch_norm,
    "softmax": _softmax,
    "mean": lambda a, x: x.mean(axis=a["axes"], keepdims=a["keepdims"]),
    "concat": lambda a, *xs: np.concatenate(xs, axis=a["axis"]),
    "transpose": lambda a, x: np.transpose(x, a["perm"]),
    "reshape": lambda a, x: x.reshape(a["shape"]),
    "pad": lambda a, x: np.pad(x, a["widths"]),
    "fused": _fused,
    "full": _full,
    "eye_kernel": _eye,
    "block_diagonal": _block_diagonal,
    "compose_kernels": _compose,
    "clip": lambda a, x: np.clip(x, a["low"], a["high"]).astype(x.dtype),
    "add": lambda a, x, y: x + y,
    "sub": lambda a, x, y: x - y,
    "mul": lambda a, x, y: x * y,
    "div": lambda a, x, y: x / y,
    "maximum": lambda a, x, y: np.maximum(x, y),
    "minimum": lambda a, x, y: np.minimum(x, y),
}
for _name, _f in _UNARY.items():
    _RULES[_name] = lambda a, x, f=_f: f(x)
