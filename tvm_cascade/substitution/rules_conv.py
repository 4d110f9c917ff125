"""Rules about convolutions: Figure 4 of MetaFlow (SysML 2019) and the folding of constants into weights.

Notation: conv(x, w, b) has weights (out, in / groups, height, width). Figure 4b leaves two conditions unsaid: the
identity belongs at the tap that reads the pixel itself, and the convolution must keep the image's size.
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.operators.shapes import channel_axis, image
from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.pattern import Match, Rule, Target, op

_SAME = ("strides", "dilation", "layout", "act", "groups")
MAX_PARTS = 4  # operands of a concatenation that a partial convolution takes apart at once


def conv(pool: Pool, like: Node, x: Ref, w: Ref, b: Ref | None, **changes: Any) -> Ref:
    """A convolution with the attributes of `like`, some of them changed."""
    operands = (x, w) if b is None else (x, w, b)
    return pool.make("conv2d", *operands, **{**dict(like.attrs), **changes})


def bias_of(node: Node) -> Ref | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def result(node: Node) -> Ref:
    return Ref(node, 0)


def zeros(pool: Pool, extent: int, dtype: str) -> Ref:
    return pool.make("full", types=(((extent,), dtype),), value=0)


def both_biases(pool: Pool, a: Node, b: Node) -> tuple[Ref, Ref] | None:
    """Biases of two operators, zeros for a missing one, None where neither has any."""
    if bias_of(a) is None and bias_of(b) is None:
        return None
    made = [bias_of(n) or zeros(pool, outputs_of(n), n.type.dtype) for n in (a, b)]
    return made[0], made[1]


def outputs_of(node: Node) -> int:
    return node.inputs[1].shape[0] if node.kind == "conv2d" else node.inputs[1].shape[-1]


def per_channel(pool: Pool, value: Ref, rank: int, axis: int, channels: int) -> Ref | None:
    """A constant that varies along the channels at most, as a vector of `channels`, else None."""
    shape = (1,) * (rank - len(value.shape)) + value.shape
    if not value.node.constant or len(shape) != rank or any(n != 1 for i, n in enumerate(shape) if i != axis):
        return None
    flat = pool.make("reshape", value, shape=(shape[axis],))
    if shape[axis] == channels:
        return flat
    ones = pool.make("full", types=(((channels,), value.type.dtype),), value=1)
    return pool.make("mul", flat, ones) if shape[axis] == 1 else None


def _column(pool: Pool, vector: Ref) -> Ref:
    return pool.make("reshape", vector, shape=(*vector.shape, 1, 1, 1))


def added_taps(a: Node, b: Node) -> tuple[int, int, int, int]:
    """Taps to add (top, left, bottom, right) so that the window of `a` covers that of `b` too."""
    (top, left, _, _), (kh, kw) = a["padding"], a.inputs[1].shape[2:]  # type: ignore[misc]
    (top2, left2, _, _), (kh2, kw2) = b["padding"], b.inputs[1].shape[2:]  # type: ignore[misc]
    return (
        max(0, top2 - top),
        max(0, left2 - left),
        max(0, (kh2 - top2) - (kh - top)),
        max(0, (kw2 - left2) - (kw - left)),
    )


def _enlarged(pool: Pool, node: Node, by: tuple[int, int, int, int]) -> Ref:
    top, left, bottom, right = by
    weights = node.inputs[1]
    if any(by):
        weights = pool.make("pad", weights, widths=((0, 0), (0, 0), (top, bottom), (left, right)))
    padding = tuple(p + d for p, d in zip(node["padding"], by, strict=True))  # type: ignore[arg-type]
    return conv(pool, node, node.inputs[0], weights, bias_of(node), padding=padding)


def _enlargeable(a: Node, b: Node) -> bool:
    return a["groups"] == b["groups"] == 1 and a["dilation"] == b["dilation"] == (1, 1) and (
        a["strides"] == b["strides"] and a["layout"] == b["layout"]
    )  # fmt: skip


def _enlarge(pool: Pool, m: Match) -> Target | None:
    a, b = m["a"], m["b"]
    by = added_taps(a, b)
    if not _enlargeable(a, b) or not any(by):
        return None
    return {result(a): _enlarged(pool, a, by)}


def _fuse_pair(pool: Pool, a: Node, b: Node) -> tuple[Ref, Ref] | None:
    if any(a[k] != b[k] for k in (*_SAME, "padding")) or a["groups"] != 1:
        return None
    wa, wb = a.inputs[1], b.inputs[1]
    if wa.shape[2:] != wb.shape[2:] or wa.type.dtype != wb.type.dtype:
        return None
    biases = both_biases(pool, a, b)
    bias = pool.make("concat", *biases, axis=0) if biases else None
    wide = conv(pool, a, a.inputs[0], pool.make("concat", wa, wb, axis=0), bias)
    axis = channel_axis(str(a["layout"]))
    parts = pool.make("split", wide, axis=axis, sizes=(wa.shape[0], wb.shape[0])).node
    return Ref(parts, 0), Ref(parts, 1)


def _fuse_convs(pool: Pool, m: Match) -> Target | None:
    made = _fuse_pair(pool, m["a"], m["b"])
    return made and {result(m["a"]): made[0], result(m["b"]): made[1]}


def _fuse_enlarged(pool: Pool, m: Match) -> Target | None:
    a, b = m["a"], m["b"]
    by_a, by_b = added_taps(a, b), added_taps(b, a)
    if not _enlargeable(a, b) or not (any(by_a) or any(by_b)):
        return None
    made = _fuse_pair(pool, _enlarged(pool, a, by_a).node, _enlarged(pool, b, by_b).node)
    return made and {result(a): made[0], result(b): made[1]}


def _fuse_conv_add(pool: Pool, m: Match) -> Target | None:
    total, c = m["sum"], m["c"]
    other = [r for r in total.inputs if r.node is not c]
    if len(other) != 1 or c["act"] or c["groups"] != 1 or c["strides"] != (1, 1):
        return None
    y, x, w = other[0], c.inputs[0], c.inputs[1]
    layout = str(c["layout"])
    (top, left, _, _), (dh, dw) = c["padding"], c["dilation"]  # type: ignore[misc]
    if y.node.constant or y.shape != c.shape or y.type != c.type or x.type.dtype != y.type.dtype:
        return None
    if image(c.shape, layout)[2:] != image(x.shape, layout)[2:] or top % dh or left % dw:
        return None
    out = w.shape[0]
    eye = pool.make("eye_kernel", types=(((out, out, *w.shape[2:]), w.type.dtype),), at=(top // dh, left // dw))
    both = pool.make("concat", x, y, axis=channel_axis(layout))
    return {result(total): conv(pool, c, both, pool.make("concat", w, eye, axis=1), bias_of(c))}


def _add_of_convs(pool: Pool, m: Match) -> Target | None:
    total, a, b = m["sum"], m["a"], m["b"]
    if a is b or total.shape != a.shape or a["act"] or any(a[k] != b[k] for k in (*_SAME, "padding")):
        return None
    wa, wb = a.inputs[1], b.inputs[1]
    if a["groups"] != 1 or a.shape != b.shape or wa.shape[2:] != wb.shape[2:]:
        return None
    biases = both_biases(pool, a, b)
    bias = pool.make("add", *biases) if biases else None
    if a.inputs[0] == b.inputs[0]:
        return {result(total): conv(pool, a, a.inputs[0], pool.make("add", wa, wb), bias)}
    x = pool.make("concat", a.inputs[0], b.inputs[0], axis=channel_axis(str(a["layout"])))
    return {result(total): conv(pool, a, x, pool.make("concat", wa, wb, axis=1), bias)}


def _partial(pool: Pool, m: Match) -> Target | None:
    c, joined = m["c"], m["joined"]
    if c["act"] or c["groups"] != 1 or joined["axis"] != channel_axis(str(c["layout"])):
        return None
    if len(joined.inputs) > MAX_PARTS:
        return None
    sizes = tuple(r.shape[channel_axis(str(c["layout"]))] for r in joined.inputs)
    weights = pool.make("split", c.inputs[1], axis=1, sizes=sizes).node
    total: Ref | None = None
    for i, x in enumerate(joined.inputs):
        part = conv(pool, c, x, Ref(weights, i), bias_of(c) if i == 0 else None)
        total = part if total is None else pool.make("add", total, part)
    assert total is not None
    return {result(c): total}


def _scaled(pool: Pool, c: Node, scale: Ref, shift: Ref | None) -> Ref:
    """conv * scale + shift, both per output channel, as one convolution."""
    weights = pool.make("mul", c.inputs[1], _column(pool, scale))
    bias = bias_of(c)
    bias = pool.make("mul", bias, scale) if bias else None
    if shift is not None:
        bias = pool.make("add", bias, shift) if bias else shift
    return conv(pool, c, c.inputs[0], weights, bias)


def norm_affine(pool: Pool, bn: Node) -> tuple[Ref, Ref] | None:
    """Scale and shift of an inference batch norm whose statistics are constants."""
    _, gamma, beta, mean, var = bn.inputs
    if not all(r.node.constant for r in (gamma, beta, mean, var)):
        return None
    eps = pool.make("full", types=((var.shape, var.type.dtype),), value=bn["eps"])
    scale = pool.make("mul", gamma, pool.make("rsqrt", pool.make("add", var, eps)))
    return scale, pool.make("sub", beta, pool.make("mul", mean, scale))


def _fold_norm(pool: Pool, m: Match) -> Target | None:
    bn, c = m["bn"], m["c"]
    affine = norm_affine(pool, bn)
    if affine is None or c["act"] or not c.inputs[1].node.constant or bn["axis"] != channel_axis(str(c["layout"])):
        return None
    return {result(bn): _scaled(pool, c, *affine)}


def _norm_to_affine(pool: Pool, m: Match) -> Target | None:
    bn = m["bn"]
    affine = norm_affine(pool, bn)
    if affine is None:
        return None
    shape = tuple(n if i == bn["axis"] else 1 for i, n in enumerate(bn.shape))
    scale, shift = (pool.make("reshape", v, shape=shape) for v in affine)
    return {result(bn): pool.make("add", pool.make("mul", bn.inputs[0], scale), shift)}


def _channel_operand(pool: Pool, node: Node, c: Node) -> Ref | None:
    other = [r for r in node.inputs if r.node is not c]
    if len(other) != 1 or c["act"] or not c.inputs[1].node.constant or node.shape != c.shape:
        return None
    axis = channel_axis(str(c["layout"]))
    return per_channel(pool, other[0], len(c.shape), axis, c.shape[axis])


def _fold_bias(pool: Pool, m: Match) -> Target | None:
    c = m["c"]
    vector = _channel_operand(pool, m["sum"], c)
    if vector is None:
        return None
    bias = bias_of(c)
    return {
        result(m["sum"]): conv(pool, c, c.inputs[0], c.inputs[1], pool.make("add", bias, vector) if bias else vector)
    }


def _fold_scale(pool: Pool, m: Match) -> Target | None:
    vector = _channel_operand(pool, m["product"], m["c"])
    return vector and {result(m["product"]): _scaled(pool, m["c"], vector, None)}


def _fold_scale_before(pool: Pool, m: Match) -> Target | None:
    c, product = m["c"], m["product"]
    scales = [r for r in product.inputs if r.node.constant]
    if len(scales) != 1 or c["groups"] != 1 or not c.inputs[1].node.constant or c.inputs[0] != result(product):
        return None
    x = next(r for r in product.inputs if not r.node.constant)
    axis = channel_axis(str(c["layout"]))
    if x.shape != product.shape:
        return None
    vector = per_channel(pool, scales[0], len(x.shape), axis, x.shape[axis])
    if vector is None:
        return None
    row = pool.make("reshape", vector, shape=(1, *vector.shape, 1, 1))
    return {result(c): conv(pool, c, x, pool.make("mul", c.inputs[1], row), bias_of(c))}


def _compose(pool: Pool, m: Match) -> Target | None:
    outer, inner = m["outer"], m["inner"]
    if outer.inputs[1].shape[2:] != (1, 1) or outer["padding"] != (0, 0, 0, 0) or outer["strides"] != (1, 1):
        return None
    if outer["groups"] != 1 or inner["act"] or inner["layout"] != outer["layout"]:
        return None
    w1, w2 = inner.inputs[1], outer.inputs[1]
    if not (w1.node.constant and w2.node.constant):
        return None
    groups = int(inner["groups"])  # type: ignore[call-overload]
    weights = pool.make("compose_kernels", w1, w2, groups=groups, depth=w1.shape[1] * groups)
    bias, b1 = bias_of(outer), bias_of(inner)
    if b1 is not None:
        square = pool.make("reshape", w2, shape=w2.shape[:2])
        column = pool.make("reshape", b1, shape=(*b1.shape, 1))
        moved = pool.make("reshape", pool.make("matmul", square, column, act=""), shape=(w2.shape[0],))
        bias = pool.make("add", bias, moved) if bias else moved
    return {result(outer): conv(pool, inner, inner.inputs[0], weights, bias, groups=1, act=outer["act"])}


_CONV, _A, _B = op("c", "conv2d"), op("a", "conv2d"), op("b", "conv2d")


def first_operand(node: Node) -> Ref:
    return node.inputs[0]


CONV_RULES = (
    Rule("enlarge_kernel", "conv_kxl(x, w)", "conv_KxL(x, pad(w)), K and L to cover a sibling's window",
         (_A, _B), _enlarge, first_operand, ordered=True, integer_exact=True),
    Rule("fuse_convs", "conv(x, w1), conv(x, w2)", "split(conv(x, concat(w1, w2)))",
         (_A, _B), _fuse_convs, first_operand, integer_exact=True),
    Rule("fuse_convs_enlarged", "conv_kxl(x, w1), conv_mxn(x, w2)", "split(conv(x, concat(pad(w1), pad(w2))))",
         (_A, _B), _fuse_enlarged, first_operand, integer_exact=True),
    Rule("fuse_conv_add", "add(conv(x, w), y)", "conv(concat(x, y), concat(w, identity))",
         (op("sum", "add", op("c", "conv2d"), None),), _fuse_conv_add, integer_exact=True),
    Rule("add_of_convs", "add(conv(x, w1), conv(y, w2))", "conv(concat(x, y), concat(w1, w2)), or conv(x, w1 + w2)",
         (op("sum", "add", _A, _B),), _add_of_convs, integer_exact=True),
    Rule("conv_of_concat", "conv(concat(x, y), w)", "add(conv(x, w[:, :c]), conv(y, w[:, c:]))",
         (op("c", "conv2d", op("joined", "concat")),), _partial, integer_exact=True),
    Rule("fold_batch_norm", "batch_norm(conv(x, w, b))", "conv(x, w * s, b * s + t)",
         (op("bn", "batch_norm", _CONV),), _fold_norm, folds_weights=True),
    Rule("batch_norm_to_affine", "batch_norm(x)", "x * s + t", (op("bn", "batch_norm"),), _norm_to_affine,
         folds_weights=True),
    Rule("fold_bias", "add(conv(x, w, b), c)", "conv(x, w, b + c), c constant per channel",
         (op("sum", "add", _CONV, None),), _fold_bias, integer_exact=True, folds_weights=True),
    Rule("fold_scale", "mul(conv(x, w, b), s)", "conv(x, w * s, b * s)", (op("product", "mul", _CONV, None),),
         _fold_scale, folds_weights=True),
    Rule("fold_scale_before", "conv(x * s, w)", "conv(x, w * s)", (op("c", "conv2d", op("product", "mul")),),
         _fold_scale_before, folds_weights=True),
    Rule("compose_convs", "conv_1x1(conv(x, w1), w2), w1 dense, grouped or depthwise", "conv(x, w2 . w1)",
         (op("outer", "conv2d", op("inner", "conv2d")),), _compose, folds_weights=True),
)  # fmt: skip
