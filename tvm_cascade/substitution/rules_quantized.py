"""Rules about quantized convolutions that stay exact bit for bit.

A `qconv2d` is what LiteRT runs as one operator: an integer convolution of stored values less their zero points, a bias, a
rescaling for every output channel, and an activation. Its operands are the input, weights (out, in, height, width), their
scales (out,), and where there is one a bias (out,) with its scales. Output channels do not see one another, so operators
merge exactly as long as they agree in everything that is not per channel: the quantization of input and output, the zero
point of the weights, the activation. Added taps must be zeros of the stored weights, so enlarging needs a zero point of 0;
taps outside of the image read the input's zero point and add nothing. (MetaFlow, SysML 2019, knows floats only.)

Moves of stored values (concat, split, transpose, reshape) are plain operators on integers: the rules of rules_layout.py
serve them as they are. Reading the parts of a concatenation in place is `passes.RewriteForMemory`.
"""

from __future__ import annotations

from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.ops import channel_axis
from tvm_cascade.substitution.pattern import Match, Rule, Target, op
from tvm_cascade.substitution.rules_conv import added_taps, result

_ALIKE = ("strides", "dilation", "groups", "layout", "x_quantum", "w_zero", "y_quantum", "act", "range", "dtype")


def _mergeable(a: Node, b: Node) -> bool:
    wa, wb = a.inputs[1], b.inputs[1]
    if not all(r.node.constant for r in (*a.inputs[1:], *b.inputs[1:])):
        return False  # an island's weights are constants
    return a["groups"] == 1 and len(a.inputs) == len(b.inputs) and wa.type.dtype == wb.type.dtype and (
        all(a[k] == b[k] for k in _ALIKE)
    )  # fmt: skip


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
    if a["padding"] != b["padding"] or a.inputs[1].shape[2:] != b.inputs[1].shape[2:]:
        return None
    operands = [pool.make("concat", ra, rb, axis=0) for ra, rb in zip(a.inputs[1:], b.inputs[1:], strict=True)]
    wide = pool.make("qconv2d", a.inputs[0], *operands, **dict(a.attrs))
    sizes = (a.inputs[1].shape[0], b.inputs[1].shape[0])
    parts = pool.make("split", wide, axis=channel_axis(str(a["layout"])), sizes=sizes).node
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


def _fuse_clip(pool: Pool, m: Match) -> Target | None:
    clip, c = m["clip"], m["c"]
    low, high = c["range"]  # type: ignore[misc]
    bounds = max(low, int(clip["low"])), min(high, int(clip["high"]))  # type: ignore[call-overload]
    if bounds[0] > bounds[1]:
        return None
    return {result(clip): pool.make(c.kind, *c.inputs, **{**dict(c.attrs), "range": bounds})}


def _common(node: Node) -> Ref:
    return node.inputs[0]


_A, _B = op("a", "qconv2d"), op("b", "qconv2d")

QUANTIZED_RULES = (
    Rule("fuse_quantized_convs", "qconv(x, w1), qconv(x, w2), outputs of one quantization",
         "split(qconv(x, concat(w1, w2)))", (_A, _B), _fuse, _common, integer_exact=True, folds_weights=True),
    Rule("fuse_quantized_convs_enlarged", "qconv_kxl(x, w1), qconv_mxn(x, w2), outputs of one quantization",
         "split(qconv(x, concat(pad(w1), pad(w2))))", (_A, _B), _fuse_enlarged, _common, integer_exact=True,
         folds_weights=True),
    Rule("fuse_quantized_clip", "clip(qconv(x, w)) on stored values", "qconv(x, w) with the range",
         (op("clip", "clip", op("c", "qconv2d")),), _fuse_clip, integer_exact=True),
)  # fmt: skip
