"""Rules about depthwise and grouped convolutions, of floats and of stored values (rules_quantized.py) alike.

Output channel o of a convolution of g groups reads group `o // (out / g)` alone, and all that belongs to it (weights, bias,
scales) is numbered by o. So operators merge and come apart by moving those along.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.operators.shapes import channel_axis
from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.pattern import Match, Rule, Target, op
from tvm_cascade.substitution.rules_conv import bias_of, conv, first_operand, outputs_of, result, zeros


def _partial_depthwise(pool: Pool, m: Match) -> Target | None:
    c, joined = m["c"], m["joined"]
    axis = channel_axis(str(c["layout"]))
    depth = c.inputs[0].shape[axis]
    if c["groups"] != depth or joined["axis"] != axis:
        return None
    times = c.inputs[1].shape[0] // depth
    sizes = tuple(r.shape[axis] * times for r in joined.inputs)
    cut = [pool.make("split", r, axis=0, sizes=sizes).node for r in c.inputs[1:]]
    parts = [
        pool.make(c.kind, x, *(Ref(n, i) for n in cut), **{**dict(c.attrs), "groups": x.shape[axis]})
        for i, x in enumerate(joined.inputs)
    ]
    return {result(c): pool.make("concat", *parts, axis=axis)}


def _joint_depthwise(pool: Pool, m: Match) -> Target | None:
    joined = m["joined"]
    convs = [r.node for r in joined.inputs]
    first = convs[0]
    axis = channel_axis(str(first["layout"]))
    if len(convs) < 2 or joined["axis"] != axis or any(n.kind != first.kind for n in convs):
        return None
    depths = [n.inputs[0].shape[axis] for n in convs]
    times = first.inputs[1].shape[0] // depths[0]
    like = {k: v for k, v in first.attrs if k != "groups"}
    for n, depth in zip(convs, depths, strict=True):
        alike = {k: v for k, v in n.attrs if k != "groups"} == like and n.type.dtype == first.type.dtype
        if not alike or n["groups"] != depth or n.inputs[1].shape != (times * depth, *first.inputs[1].shape[1:]):
            return None
    operands = output_operands(pool, convs)
    if operands is None or len({n.inputs[0].type.dtype for n in convs}) != 1:
        return None
    x = pool.make("concat", *(n.inputs[0] for n in convs), axis=axis)
    stacked = [pool.make("concat", *refs, axis=0) for refs in operands]
    return {result(joined): pool.make(first.kind, x, *stacked, **like, groups=sum(depths))}


def output_operands(pool: Pool, convs: Sequence[Node]) -> list[tuple[Ref, ...]] | None:
    """Operands that are numbered by output channel, operator by operator: weights, and zeros for a missing bias.

    Those of quantized convolutions are scales and biases too; None where some have a bias and some have none.
    """
    if convs[0].kind == "conv2d" and any(bias_of(n) for n in convs):
        biases = tuple(bias_of(n) or zeros(pool, outputs_of(n), n.type.dtype) for n in convs)
        return [tuple(n.inputs[1] for n in convs), biases]
    if len({len(n.inputs) for n in convs}) != 1 or len({n.inputs[1].type.dtype for n in convs}) != 1:
        return None
    return list(zip(*(n.inputs[1:] for n in convs), strict=True))


def _fuse_grouped(pool: Pool, m: Match) -> Target | None:
    """Outputs of a merged grouped convolution lie group by group, so the parts are strided slices of every group."""
    a, b = m["a"], m["b"]
    groups, windows = int(a["groups"]), a.inputs[1].shape[1:] == b.inputs[1].shape[1:]  # type: ignore[call-overload]
    if groups == 1 or a.kind != b.kind or a.attrs != b.attrs or not windows:
        return None
    operands = output_operands(pool, (a, b))
    if operands is None:
        return None
    sizes = tuple(n.inputs[1].shape[0] // groups for n in (a, b))
    merged = []
    for pair in operands:
        cut = [pool.make("reshape", r, shape=(groups, n, *r.shape[1:])) for r, n in zip(pair, sizes, strict=True)]
        shape = (groups * sum(sizes), *pair[0].shape[1:])
        merged.append(pool.make("reshape", pool.make("concat", *cut, axis=1), shape=shape))
    wide = pool.make(a.kind, a.inputs[0], *merged, **dict(a.attrs))
    axis = channel_axis(str(a["layout"]))
    shape = (*wide.shape[:axis], groups, sum(sizes), *wide.shape[axis + 1 :])
    parts = pool.make("split", pool.make("reshape", wide, shape=shape), axis=axis + 1, sizes=sizes).node
    return {result(n): pool.make("reshape", Ref(parts, i), shape=n.shape) for i, n in enumerate((a, b))}


def _merge_groups(pool: Pool, m: Match) -> Target | None:
    c = m["c"]
    groups = int(c["groups"])  # type: ignore[call-overload]
    if groups == 1 or groups % 2 or not c.inputs[1].node.constant:
        return None
    weights = pool.make("block_diagonal", c.inputs[1], merge=2, groups=groups)
    return {result(c): conv(pool, c, c.inputs[0], weights, bias_of(c), groups=groups // 2)}


def _group_convs(pool: Pool, m: Match) -> Target | None:
    joined = m["joined"]
    convs = [r.node for r in joined.inputs]
    first = convs[0]
    if len(convs) < 2 or any(n.kind != "conv2d" for n in convs):
        return None
    parts = first.inputs[0].node
    axis = channel_axis(str(first["layout"]))
    whole = [n.inputs[0] for n in convs] == [Ref(parts, i) for i in range(len(parts.types))]
    if parts.kind != "split" or not whole or parts["axis"] != axis or joined["axis"] != axis:
        return None
    if any(n.attrs != first.attrs or n.inputs[1].shape != first.inputs[1].shape for n in convs):
        return None
    weights = pool.make("concat", *[n.inputs[1] for n in convs], axis=0)
    bias = None
    if any(bias_of(n) for n in convs):
        dtype = first.type.dtype
        bias = pool.make("concat", *[bias_of(n) or zeros(pool, outputs_of(n), dtype) for n in convs], axis=0)
    groups = int(first["groups"]) * len(convs)  # type: ignore[call-overload]
    return {result(joined): conv(pool, first, parts.inputs[0], weights, bias, groups=groups)}


_CONVS = "conv2d qconv2d"

GROUP_RULES = (
    Rule("depthwise_of_concat", "depthwise(concat(x, y), w)", "concat(depthwise(x, w[:c]), depthwise(y, w[c:]))",
         (op("c", _CONVS, op("joined", "concat")),), _partial_depthwise, integer_exact=True),
    Rule("concat_of_depthwise", "concat(depthwise(x, v), depthwise(y, w)), as many outputs a channel",
         "depthwise(concat(x, y), concat(v, w))", (op("joined", "concat", op("c", _CONVS)),), _joint_depthwise,
         integer_exact=True),
    Rule("fuse_grouped_convs", "conv(x, w1), conv(x, w2) of g groups each, depthwise ones too",
         "split of conv of g groups (x, concat(w1, w2) group by group)",
         (op("a", _CONVS), op("b", _CONVS)), _fuse_grouped, first_operand, integer_exact=True),
    Rule("merge_groups", "conv of 2g groups", "conv of g groups, weights block-diagonal", (op("c", "conv2d"),), _merge_groups,
         integer_exact=True, folds_weights=True),
    Rule("group_convs", "concat(conv(x0, w0), conv(x1, w1)), x0, x1 = split(x)", "conv of 2 groups (x, concat(w0, w1))",
         (op("joined", "concat"),), _group_convs, integer_exact=True),
)  # fmt: skip
