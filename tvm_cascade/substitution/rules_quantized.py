"""Substitution rules for quantized operators; all are exact bit for bit.

A `qconv2d` is a single operator of LiteRT: an integer convolution of stored values less their zero points, a bias, a
rescaling for every output channel, and an activation. Its operands are the input, weights (out, in / groups, height,
width), their scales (out,), and optionally a bias (out,) with its scales. `qmatmul` is the same for a fully
connected layer, weights (in, out). Output channels are independent, so operators can be merged exactly if they
agree in all properties that are not per channel (`operands.merged_outputs`). Added taps must be stored as 0, so
enlarging a kernel needs weights of zero point 0; taps outside the image read the input's zero point and add nothing.
(MetaFlow, SysML 2019, covers floats only.)

A `qadd` rescales both operands to a common scale, adds and rescales, element by element, so it commutes with data
movement. There are no rules that move an operator across a rescaling, since that rounds (a sum into a convolution, a
1x1 convolution into a depthwise one, a convolution over the parts of a concatenation).

Data movement of stored values (concat, split, transpose, reshape) uses the plain operators, so the rules of
rules_layout.py apply to it. Reading the parts of a concatenation in place is `passes.RewriteForMemory`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.operands import alike, independent, merge_alike
from tvm_cascade.substitution.pattern import Target, exact, op
from tvm_cascade.substitution.rules_algebra import merge_rows
from tvm_cascade.substitution.rules_conv import fuse, fuse_enlarged, windows_differ


def quantized_sum(pool: Pool, a: Ref, a_quantum: object, b: Ref, b_quantum: object, **attrs: object) -> Ref:
    """Return the `qadd` of two operands with quanta (scale, zero point), sorted so that a + b is b + a."""
    pair = sorted([(a, a_quantum), (b, b_quantum)], key=lambda p: (p[0].node.index, p[0].port))
    return pool.make("qadd", pair[0][0], pair[1][0], quanta=(pair[0][1], pair[1][1]), **attrs)


def _sum_like(pool: Pool, node: Node, a: Ref, b: Ref) -> Ref:
    """Return a `qadd` on operands a and b with `node`'s attributes."""
    left, right = node["quanta"]
    return quantized_sum(pool, a, left, b, right, **_without_quanta(node))


def _without_quanta(node: Node) -> dict[str, object]:
    return {k: v for k, v in node.attrs if k != "quanta"}


def _fuse_clip(pool: Pool, clip: Node, c: Node) -> Target:
    low, high = max(c["range"][0], int(clip["low"])), min(c["range"][1], int(clip["high"]))
    return pool.like(c, *c.inputs, range=(low, high)) if low <= high else None


def _sum_before_view(pool: Pool, total: Node, view: Node, other: Node) -> Target:
    a, b = (r.node.inputs[0] for r in total.inputs)
    return pool.like(view, _sum_like(pool, total, a, b)) if alike(total.inputs) and a.shape == b.shape else None


def _sum_of_concats(pool: Pool, total: Node, left: Node, right: Node) -> Target:
    a, b = (r.node for r in total.inputs)
    if a["axis"] != b["axis"] or [r.shape for r in a.inputs] != [r.shape for r in b.inputs]:
        return None
    parts = [_sum_like(pool, total, p, q) for p, q in zip(a.inputs, b.inputs, strict=True)]
    return pool.make("concat", *parts, axis=a["axis"])


def _concat_of_sums(pool: Pool, joined: Node, total: Node) -> Target:
    sums = [r.node for r in joined.inputs]
    if any(n.kind != "qadd" or _without_quanta(n) != _without_quanta(total) for n in sums):
        return None
    sides = [s for n in sums if (s := _operands_by(n, total["quanta"])) is not None]
    if len(sides) != len(sums) or len({r.type.dtype for s in sides for r in s}) != 1:
        return None
    a, b = (pool.make("concat", *(s[k] for s in sides), axis=joined["axis"]) for k in (0, 1))
    return _sum_like(pool, total, a, b)


def _operands_by(node: Node, quanta: Sequence[object]) -> tuple[Ref, Ref] | None:
    """Return a `qadd`'s operands in the order of `quanta`; None for other quanta."""
    a, b = node.inputs
    if node["quanta"] == quanta:
        return a, b
    return (b, a) if node["quanta"] == tuple(reversed(quanta)) else None


_A, _B = op("a", "qconv2d"), op("b", "qconv2d")
_DENSE_A, _DENSE_B = op("a", "qmatmul"), op("b", "qmatmul")
_VIEWS = "transpose reshape"

QUANTIZED_RULES = (
    exact("fuse_quantized_convs", "qconv(x, w1), qconv(x, w2), outputs of one quantization",
          "split(qconv(x, concat(w1, w2)))", (_A, _B), fuse, folds_weights=True, alike=merge_alike, fits=independent),
    exact("fuse_quantized_convs_enlarged", "qconv_kxl(x, w1), qconv_mxn(x, w2), outputs of one quantization",
          "split(qconv(x, concat(pad(w1), pad(w2))))", (_A, _B), fuse_enlarged, folds_weights=True,
          alike=windows_differ),
    exact("merge_quantized_matmuls", "qmatmul(x, A), qmatmul(x, B), outputs of one quantization",
          "split(qmatmul(x, [A B]))", (_DENSE_A, _DENSE_B), fuse, folds_weights=True, alike=merge_alike, fits=independent),
    exact("merge_quantized_rows", "qmatmul(x, w), qmatmul(y, w) of equal quantizations",
          "split(qmatmul([x; y], w))", (_DENSE_A, _DENSE_B), merge_rows, shared=1),
    exact("fuse_quantized_clip", "clip(q(x, w)) on stored values, q a qconv, qmatmul or qadd", "q(x, w) with the range",
          (op("clip", "clip", op("c", "qconv2d qmatmul qadd")),), _fuse_clip, eager=True),
    exact("quantized_sum_before_view", "qadd(view(x), view(y)), a transpose or reshape", "view(qadd(x, y))",
          (op("total", "qadd", op("view", _VIEWS), op("other", _VIEWS)),), _sum_before_view),
    exact("quantized_sum_of_concats", "qadd(concat(a, b), concat(c, d))", "concat(qadd(a, c), qadd(b, d))",
          (op("total", "qadd", op("left", "concat"), op("right", "concat")),), _sum_of_concats),
    exact("concat_of_quantized_sums", "concat(qadd(a, c), qadd(b, d)) of equal quantizations",
          "qadd(concat(a, b), concat(c, d))", (op("joined", "concat", op("total", "qadd")),), _concat_of_sums),
)  # fmt: skip
