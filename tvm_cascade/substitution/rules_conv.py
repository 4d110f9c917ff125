"""Substitution rules for convolutions: Figure 4 of MetaFlow (SysML 2019) and the folding of constants into weights.

Notation: conv(x, w, b) has weights (out, in / groups, height, width). Figure 4b omits two conditions: the
identity belongs at the tap that reads the pixel itself, and the convolution must keep the image's size. Merging and
folding also apply to products and quantized operators (rules_algebra.py, rules_quantized.py).
"""

from __future__ import annotations

from tvm_cascade.operators.shapes import channel_axis, image
from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.operands import (
    bias_of,
    independent,
    is_convolution,
    merge_alike,
    merged_outputs,
    other_operand,
    output_axis,
    output_operands,
    parts_for,
    per_channel,
    plus,
)
from tvm_cascade.substitution.pattern import Rule, Target, exact, op

MAX_PARTS = 4  # most operands of a concatenation to which `conv_of_concat` applies


def added_taps(a: Node, b: Node) -> tuple[int, int, int, int]:
    """Return the taps to add (top, left, bottom, right) so that the window of `a` covers the window of `b`."""
    (top, left, _, _), (kh, kw) = a["padding"], a.inputs[1].shape[2:]
    (top2, left2, _, _), (kh2, kw2) = b["padding"], b.inputs[1].shape[2:]
    return (
        max(0, top2 - top),
        max(0, left2 - left),
        max(0, (kh2 - top2) - (kh - top)),
        max(0, (kw2 - left2) - (kw - left)),
    )


def _enlarged(pool: Pool, node: Node, by: tuple[int, int, int, int]) -> Ref:
    """Return the convolution with `by` (top, left, bottom, right) zero taps around its kernel, and padding to match."""
    if not any(by):
        return node.result
    top, left, bottom, right = by
    weights = pool.make("pad", node.inputs[1], widths=((0, 0), (0, 0), (top, bottom), (left, right)))
    padding = tuple(p + d for p, d in zip(node["padding"], by, strict=True))
    return pool.like(node, node.inputs[0], weights, *node.inputs[2:], padding=padding)


def _enlargeable(a: Node, b: Node) -> bool:
    """Return True if kernels may be padded to a common window; quantized weights need zero point 0."""
    plain = a["groups"] == b["groups"] == 1 and a["dilation"] == b["dilation"] == (1, 1) and not a.get("w_zero")
    return plain and a["strides"] == b["strides"] and a["layout"] == b["layout"]


def _smaller(a: Node, b: Node) -> bool:
    """Return True if the kernel of `a` may be padded to cover the window of `b`, and does not yet."""
    return _enlargeable(a, b) and any(added_taps(a, b))


def windows_differ(a: Node, b: Node) -> bool:
    """Return True if kernels may be padded to a common window, and still differ."""
    return _smaller(a, b) or _smaller(b, a)


def _enlarge(pool: Pool, a: Node, b: Node) -> Target:
    return _enlarged(pool, a, added_taps(a, b)) if _smaller(a, b) else None


def fuse(pool: Pool, a: Node, b: Node) -> Target:
    """Merge two operators on a single input, and split the output."""
    whole = merged_outputs(pool, a, b)
    return whole and parts_for(pool, whole, output_axis(a), (a, b))


def fuse_enlarged(pool: Pool, a: Node, b: Node) -> Target:
    """Merge two convolutions whose windows differ, with both windows enlarged by zero taps; None if the windows are
    equal.
    """
    if not windows_differ(a, b):
        return None
    by_a, by_b = added_taps(a, b), added_taps(b, a)
    whole = merged_outputs(pool, _enlarged(pool, a, by_a).node, _enlarged(pool, b, by_b).node)
    return whole and parts_for(pool, whole, output_axis(a), (a, b))


def _fuse_conv_add(pool: Pool, total: Node, c: Node) -> Target:
    y, x, w = other_operand(total, c.result), c.inputs[0], c.inputs[1]
    if y == c.result or c["act"] or c["groups"] != 1 or c["strides"] != (1, 1):
        return None
    layout, (top, left, _, _), (dh, dw) = c["layout"], c["padding"], c["dilation"]
    if y.node.constant or y.type != c.type or x.type.dtype != y.type.dtype:
        return None
    if image(c.shape, layout)[2:] != image(x.shape, layout)[2:] or top % dh or left % dw:
        return None
    out = w.shape[0]
    eye = pool.make("eye_kernel", types=(((out, out, *w.shape[2:]), w.type.dtype),), at=(top // dh, left // dw))
    both = pool.make("concat", x, y, axis=channel_axis(layout))
    return pool.like(c, both, pool.make("concat", w, eye, axis=1), *c.inputs[2:])


def _add_of_convs(pool: Pool, total: Node, a: Node, b: Node) -> Target:
    wa, wb = a.inputs[1], b.inputs[1]
    if a is b or a["act"] or a["groups"] != 1 or a.attrs != b.attrs or wa.shape[2:] != wb.shape[2:]:
        return None
    operands = output_operands(pool, (a, b))
    if operands is None or not total.shape == a.shape == b.shape:
        return None
    bias = [pool.make("add", *biases) for biases in operands[1:]]
    if a.inputs[0] == b.inputs[0]:
        return pool.like(a, a.inputs[0], pool.make("add", wa, wb), *bias)
    x = pool.make("concat", a.inputs[0], b.inputs[0], axis=output_axis(a))
    return pool.like(a, x, pool.make("concat", wa, wb, axis=1), *bias)


def _conv_of_concat(pool: Pool, c: Node, joined: Node) -> Target:
    axis = output_axis(c)
    if c["act"] or c["groups"] != 1 or joined["axis"] != axis or len(joined.inputs) > MAX_PARTS:
        return None
    weights = pool.split(c.inputs[1], 1, (r.shape[axis] for r in joined.inputs))
    total = pool.like(c, joined.inputs[0], weights[0], *c.inputs[2:])
    for x, w in zip(joined.inputs[1:], weights[1:], strict=True):
        total = pool.make("add", total, pool.like(c, x, w))
    return total


def _scaled(pool: Pool, c: Node, scale: Ref, shift: Ref | None = None) -> Ref:
    """Return c * scale + shift, both per output channel, as a single convolution or product."""
    column = pool.make("reshape", scale, shape=(*scale.shape, 1, 1, 1)) if is_convolution(c) else scale
    operands = [pool.make("mul", c.inputs[1], column), *(pool.make("mul", b, scale) for b in c.inputs[2:])]
    if shift is not None:
        operands[1:] = [plus(pool, operands[1] if operands[1:] else None, shift)]
    return pool.like(c, c.inputs[0], *operands)


def norm_affine(pool: Pool, bn: Node) -> tuple[Ref, Ref] | None:
    """Return the scale and shift of an inference batch norm with constant statistics."""
    _, gamma, beta, mean, var = bn.inputs
    if not all(r.node.constant for r in (gamma, beta, mean, var)):
        return None
    eps = pool.make("full", types=((var.shape, var.type.dtype),), value=bn["eps"])
    scale = pool.make("mul", gamma, pool.make("rsqrt", pool.make("add", var, eps)))
    return scale, pool.make("sub", beta, pool.make("mul", mean, scale))


def _fold_norm(pool: Pool, bn: Node, c: Node) -> Target:
    affine = norm_affine(pool, bn)
    if affine is None or c["act"] or not c.inputs[1].node.constant or bn["axis"] != output_axis(c):
        return None
    return _scaled(pool, c, *affine)


def _norm_to_affine(pool: Pool, bn: Node) -> Target:
    affine = norm_affine(pool, bn)
    if affine is None:
        return None
    shape = tuple(n if i == bn["axis"] else 1 for i, n in enumerate(bn.shape))
    scale, shift = (pool.make("reshape", v, shape=shape) for v in affine)
    return pool.make("add", pool.make("mul", bn.inputs[0], scale), shift)


def _channel_operand(pool: Pool, node: Node, c: Node) -> Ref | None:
    """Return the other operand in a sum or product with `c`, as a vector; None unless constant per channel."""
    value = other_operand(node, c.result)
    if c["act"] or node.shape != c.shape or value.type.dtype != c.type.dtype:
        return None
    return per_channel(pool, value, c.shape, output_axis(c))


def fold_bias(pool: Pool, total: Node, c: Node) -> Target:
    """Fold a constant per channel that is added to a convolution or product into its bias."""
    vector = _channel_operand(pool, total, c)
    return vector and pool.like(c, *c.inputs[:2], plus(pool, bias_of(c), vector))


def fold_scale(pool: Pool, product: Node, c: Node) -> Target:
    """Fold a constant factor per channel of a convolution or product into its weights and bias."""
    vector = _channel_operand(pool, product, c) if c.inputs[1].node.constant else None
    return vector and _scaled(pool, c, vector)


def _fold_scale_before(pool: Pool, c: Node, product: Node) -> Target:
    scales = [r for r in product.inputs if r.node.constant]
    if len(scales) != 1 or c["groups"] != 1 or not c.inputs[1].node.constant:
        return None
    x, axis = other_operand(product, scales[0]), output_axis(c)
    vector = per_channel(pool, scales[0], x.shape, axis) if x.shape == product.shape else None
    if vector is None:
        return None
    row = pool.make("reshape", vector, shape=(1, *vector.shape, 1, 1))
    return pool.like(c, x, pool.make("mul", c.inputs[1], row), *c.inputs[2:])


def _compose(pool: Pool, outer: Node, inner: Node) -> Target:
    w1, w2 = inner.inputs[1], outer.inputs[1]
    if w2.shape[2:] != (1, 1) or outer["padding"] != (0, 0, 0, 0) or outer["strides"] != (1, 1):
        return None
    if outer["groups"] != 1 or inner["act"] or inner["layout"] != outer["layout"]:
        return None
    if not (w1.node.constant and w2.node.constant):
        return None
    groups = inner["groups"]
    weights = pool.make("compose_kernels", w1, w2, groups=groups, depth=w1.shape[1] * groups)
    bias = list(outer.inputs[2:])
    for b1 in inner.inputs[2:]:
        square = pool.make("reshape", w2, shape=w2.shape[:2])
        column = pool.make("reshape", b1, shape=(*b1.shape, 1))
        moved = pool.make("reshape", pool.make("matmul", square, column, act=""), shape=(w2.shape[0],))
        bias = [plus(pool, bias_of(outer), moved)]
    return pool.like(inner, inner.inputs[0], weights, *bias, groups=1, act=outer["act"])


_CONV, _A, _B = op("c", CONVOLUTIONS), op("a", CONVOLUTIONS), op("b", CONVOLUTIONS)

CONV_RULES = (
    exact("enlarge_kernel", "conv_kxl(x, w)", "conv_KxL(x, pad(w)), K and L to cover a sibling's window",
          (_A, _B), _enlarge, ordered=True, alike=_smaller),
    exact("fuse_convs", "conv(x, w1), conv(x, w2)", "split(conv(x, concat(w1, w2)))", (_A, _B), fuse,
          alike=merge_alike, fits=independent),
    exact("fuse_convs_enlarged", "conv_kxl(x, w1), conv_mxn(x, w2)", "split(conv(x, concat(pad(w1), pad(w2))))",
          (_A, _B), fuse_enlarged, alike=windows_differ),
    exact("fuse_conv_add", "add(conv(x, w), y)", "conv(concat(x, y), concat(w, identity))",
          (op("total", "add", _CONV, None),), _fuse_conv_add),
    exact("add_of_convs", "add(conv(x, w1), conv(y, w2))", "conv(concat(x, y), concat(w1, w2)), or conv(x, w1 + w2)",
          (op("total", "add", _A, _B),), _add_of_convs),
    exact("conv_of_concat", "conv(concat(x, y), w)", "add(conv(x, w[:, :c]), conv(y, w[:, c:]))",
          (op("c", CONVOLUTIONS, op("joined", "concat")),), _conv_of_concat, grows=True),
    Rule("fold_batch_norm", "batch_norm(conv(x, w, b))", "conv(x, w * s, b * s + t)",
         (op("bn", "batch_norm", _CONV),), _fold_norm, folds_weights=True, eager=True),
    Rule("batch_norm_to_affine", "batch_norm(x)", "x * s + t", (op("bn", "batch_norm"),), _norm_to_affine,
         folds_weights=True),
    exact("fold_bias", "add(conv(x, w, b), c)", "conv(x, w, b + c), c constant per channel",
          (op("total", "add", _CONV, None),), fold_bias, folds_weights=True, eager=True),
    Rule("fold_scale", "mul(conv(x, w, b), s)", "conv(x, w * s, b * s)", (op("product", "mul", _CONV, None),),
         fold_scale, folds_weights=True, eager=True),
    Rule("fold_scale_before", "conv(x * s, w)", "conv(x, w * s)", (op("c", CONVOLUTIONS, op("product", "mul")),),
         _fold_scale_before, folds_weights=True),
    Rule("compose_convs", "conv_1x1(conv(x, w1), w2), w1 dense, grouped or depthwise", "conv(x, w2 . w1)",
         (op("outer", CONVOLUTIONS, op("inner", CONVOLUTIONS)),), _compose, folds_weights=True),
)  # fmt: skip
