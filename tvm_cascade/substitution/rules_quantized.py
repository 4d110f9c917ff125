"""Rules about quantized operators that stay exact bit for bit.

A `qconv2d` is what LiteRT runs as one operator: an integer convolution of stored values less their zero points, a bias, a
rescaling for every output channel, and an activation. Its operands are the input, weights (out, in / groups, height,
width), their scales (out,), and where there is one a bias (out,) with its scales. `qmatmul` is the same for a fully
connected layer, weights (in, out). Output channels do not see one another, so operators merge exactly as long as they
agree in everything that is not per channel: the quantization of input and output, the zero point of the weights, the
activation. Added taps must be zeros of the stored weights, so enlarging needs a zero point of 0; taps outside of the
image read the input's zero point and add nothing. (MetaFlow, SysML 2019, knows floats only.)

A `qadd` rescales both operands to a common scale, adds and rescales: value by value, so it commutes with every move of
stored values. What is not here is not exact: a rescaling rounds, so nothing moves across it (a sum into a convolution, a
1x1 convolution into a depthwise one, a convolution over the parts of a concatenation).

Moves of stored values (concat, split, transpose, reshape) are plain operators on integers: the rules of rules_layout.py
serve them as they are. Reading the parts of a concatenation in place is `passes.RewriteForMemory`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.operators.shapes import channel_axis
from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.pattern import Match, Rule, Target, op, reaches
from tvm_cascade.substitution.rules_conv import added_taps, result

_OUTPUTS = {"qconv2d": 0, "qmatmul": 1}  # axis of the weights along which outputs are numbered


def quantized_sum(pool: Pool, a: Ref, a_quantum: object, b: Ref, b_quantum: object, **attrs: object) -> Ref:
    """The operator `qadd`, its operands in the pool's order, so that commuting is no step."""
    pair = sorted([(a, a_quantum), (b, b_quantum)], key=lambda p: (p[0].node.index, p[0].port))
    return pool.make("qadd", pair[0][0], pair[1][0], quanta=(pair[0][1], pair[1][1]), **attrs)


def _again(pool: Pool, like: Node, a: Ref, b: Ref) -> Ref:
    """A sum of other operands with the quantizations of `like`, operand by operand."""
    left, right = like["quanta"]  # type: ignore[misc]
    rest = {k: v for k, v in like.attrs if k != "quanta"}
    return quantized_sum(pool, a, left, b, right, **rest)


def _mergeable(a: Node, b: Node) -> bool:
    """Whether two operators of one input agree in all but outputs, padding and window."""
    constants = all(r.node.constant for n in (a, b) for r in n.inputs[1:])  # an island's weights are
    same = {k: v for k, v in a.attrs if k != "padding"} == {k: v for k, v in b.attrs if k != "padding"}
    types = a.inputs[1].type.dtype == b.inputs[1].type.dtype and len(a.inputs) == len(b.inputs)
    return a.kind == b.kind and constants and same and types and a.get("groups", 1) == 1


def _enlarged(pool: Pool, node: Node, by: tuple[int, int, int, int]) -> Node:
    top, left, bottom, right = by
    if not any(by):
        return node
    weights = pool.make("pad", node.inputs[1], widths=((0, 0), (0, 0), (top, bottom), (left, right)))
    padding = tuple(p + d for p, d in zip(node["padding"], by, strict=True))  # type: ignore[arg-type]
    return pool.make(
        node.kind, node.inputs[0], weights, *node.inputs[2:], **{**dict(node.attrs), "padding": padding}
    ).node


def _merged(pool: Pool, a: Node, b: Node) -> tuple[Ref, Ref] | None:
    if a.attrs != b.attrs or a.inputs[1].shape[2:] != b.inputs[1].shape[2:]:
        return None
    outputs = _OUTPUTS[a.kind]
    axes = [outputs] + [0] * (len(a.inputs) - 2)
    pairs = zip(a.inputs[1:], b.inputs[1:], axes, strict=True)
    wide = pool.make(a.kind, a.inputs[0], *(pool.make("concat", p, q, axis=k) for p, q, k in pairs), **dict(a.attrs))
    axis = channel_axis(str(a["layout"])) if a.kind == "qconv2d" else 1
    sizes = (a.inputs[1].shape[outputs], b.inputs[1].shape[outputs])
    parts = pool.make("split", wide, axis=axis, sizes=sizes).node
    return Ref(parts, 0), Ref(parts, 1)


def _fuse(pool: Pool, m: Match) -> Target | None:
    a, b = m["a"], m["b"]
    made = _merged(pool, a, b) if _mergeable(a, b) else None
    return made and {result(a): made[0], result(b): made[1]}


def _fuse_enlarged(pool: Pool, m: Match) -> Target | None:
    a, b = m["a"], m["b"]
    by_a, by_b = added_taps(a, b), added_taps(b, a)
    if not _mergeable(a, b) or not (any(by_a) or any(by_b)) or a["w_zero"] or a["dilation"] != (1, 1):
        return None
    made = _merged(pool, _enlarged(pool, a, by_a), _enlarged(pool, b, by_b))
    return made and {result(a): made[0], result(b): made[1]}


def _merge_rows(pool: Pool, m: Match) -> Target | None:
    a, b = m["a"], m["b"]
    xa, xb = a.inputs[0], b.inputs[0]
    if a.attrs != b.attrs or a.inputs[1:] != b.inputs[1:] or xa == xb or xa.type.dtype != xb.type.dtype:
        return None
    if reaches(xa, b) or reaches(xb, a):
        return None
    wide = pool.make("qmatmul", pool.make("concat", xa, xb, axis=0), *a.inputs[1:], **dict(a.attrs))
    parts = pool.make("split", wide, axis=0, sizes=(a.shape[0], b.shape[0])).node
    return {result(a): Ref(parts, 0), result(b): Ref(parts, 1)}


def _fuse_clip(pool: Pool, m: Match) -> Target | None:
    clip, c = m["clip"], m["c"]
    low, high = c["range"]  # type: ignore[misc]
    bounds = max(low, int(clip["low"])), min(high, int(clip["high"]))  # type: ignore[call-overload]
    if bounds[0] > bounds[1]:
        return None
    return {result(clip): pool.make(c.kind, *c.inputs, **{**dict(c.attrs), "range": bounds})}


def _sum_before_view(pool: Pool, m: Match) -> Target | None:
    total = m["sum"]
    views = [r.node for r in total.inputs]
    if any((v.kind, v.attrs) != (views[0].kind, views[0].attrs) for v in views):
        return None
    a, b = (v.inputs[0] for v in views)
    if a.shape != b.shape:
        return None
    return {result(total): pool.make(views[0].kind, _again(pool, total, a, b), **dict(views[0].attrs))}


def _sum_of_concats(pool: Pool, m: Match) -> Target | None:
    total = m["sum"]
    a, b = (r.node for r in total.inputs)
    if a.kind != "concat" or b.kind != "concat" or a["axis"] != b["axis"]:
        return None
    if [r.shape for r in a.inputs] != [r.shape for r in b.inputs]:
        return None
    parts = [_again(pool, total, p, q) for p, q in zip(a.inputs, b.inputs, strict=True)]
    return {result(total): pool.make("concat", *parts, axis=a["axis"])}


def _concat_of_sums(pool: Pool, m: Match) -> Target | None:
    joined = m["joined"]
    sums = [r.node for r in joined.inputs]
    first = sums[0]
    alike = {k: v for k, v in first.attrs if k != "quanta"}
    if any(n.kind != "qadd" or {k: v for k, v in n.attrs if k != "quanta"} != alike for n in sums):
        return None
    sides = [_sides(n, first["quanta"]) for n in sums]  # type: ignore[arg-type]
    found = [s for s in sides if s is not None]
    if len(found) != len(sides) or len({r.type.dtype for s in found for r in s}) != 1:
        return None
    a, b = (pool.make("concat", *(s[k] for s in found), axis=joined["axis"]) for k in (0, 1))
    return {result(joined): _again(pool, first, a, b)}


def _sides(node: Node, quanta: Sequence[object]) -> tuple[Ref, Ref] | None:
    """Operands of a sum in the order of `quanta`; None where it has others."""
    a, b = node.inputs
    if node["quanta"] == quanta:
        return a, b
    return (b, a) if node["quanta"] == tuple(reversed(quanta)) else None


def _common(node: Node) -> Ref:
    return node.inputs[0]


def _weights(node: Node) -> Ref:
    return node.inputs[1]


_A, _B = op("a", "qconv2d"), op("b", "qconv2d")
_DENSE_A, _DENSE_B = op("a", "qmatmul"), op("b", "qmatmul")
_VIEWS = "transpose reshape"

QUANTIZED_RULES = (
    Rule("fuse_quantized_convs", "qconv(x, w1), qconv(x, w2), outputs of one quantization",
         "split(qconv(x, concat(w1, w2)))", (_A, _B), _fuse, _common, integer_exact=True, folds_weights=True),
    Rule("fuse_quantized_convs_enlarged", "qconv_kxl(x, w1), qconv_mxn(x, w2), outputs of one quantization",
         "split(qconv(x, concat(pad(w1), pad(w2))))", (_A, _B), _fuse_enlarged, _common, integer_exact=True,
         folds_weights=True),
    Rule("merge_quantized_matmuls", "qmatmul(x, A), qmatmul(x, B), outputs of one quantization",
         "split(qmatmul(x, [A B]))", (_DENSE_A, _DENSE_B), _fuse, _common, integer_exact=True, folds_weights=True),
    Rule("merge_quantized_rows", "qmatmul(x, w), qmatmul(y, w) of equal quantizations",
         "split(qmatmul([x; y], w))", (_DENSE_A, _DENSE_B), _merge_rows, _weights, integer_exact=True),
    Rule("fuse_quantized_clip", "clip(q(x, w)) on stored values, q a qconv, qmatmul or qadd", "q(x, w) with the range",
         (op("clip", "clip", op("c", "qconv2d qmatmul qadd")),), _fuse_clip, integer_exact=True),
    Rule("quantized_sum_before_view", "qadd(view(x), view(y)), a transpose or reshape", "view(qadd(x, y))",
         (op("sum", "qadd", op("view", _VIEWS), op("other", _VIEWS)),), _sum_before_view, integer_exact=True),
    Rule("quantized_sum_of_concats", "qadd(concat(a, b), concat(c, d))", "concat(qadd(a, c), qadd(b, d))",
         (op("sum", "qadd", op("left", "concat"), op("right", "concat")),), _sum_of_concats, integer_exact=True),
    Rule("concat_of_quantized_sums", "concat(qadd(a, c), qadd(b, d)) of equal quantizations",
         "qadd(concat(a, b), concat(c, d))", (op("joined", "concat", op("sum", "qadd")),), _concat_of_sums,
         integer_exact=True),
)  # fmt: skip
