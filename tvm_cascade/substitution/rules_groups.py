"""Substitution rules for depthwise and grouped convolutions, mostly quantized ones too (rules_quantized.py).

Output channel o in a convolution with g groups reads only group `o // (out / g)`, and its weights, bias and scales are
indexed by o. So operators merge and split by concatenating and splitting operands.
"""

from __future__ import annotations

from tvm_cascade.operators.record import Family
from tvm_cascade.operators.table import CONVOLUTIONS, kinds_where
from tvm_cascade.substitution.dag import Node, Pool
from tvm_cascade.substitution.operands import output_axis, output_operands
from tvm_cascade.substitution.pattern import Target, exact, op


def _depthwise_of_concat(pool: Pool, c: Node, joined: Node) -> Target:
    axis = output_axis(c)
    depth = c.inputs[0].shape[axis]
    if c["groups"] != depth or joined["axis"] != axis:
        return None
    depths = [r.shape[axis] for r in joined.inputs]
    times = c.inputs[1].shape[0] // depth
    cut = [pool.split(r, 0, (n * times for n in depths)) for r in c.inputs[1:]]
    parts = [pool.like(c, *operands, groups=n) for *operands, n in zip(joined.inputs, *cut, depths, strict=True)]
    return pool.make("concat", *parts, axis=axis)


def _concat_of_depthwise(pool: Pool, joined: Node, c: Node) -> Target:
    convs = [r.node for r in joined.inputs]
    axis = output_axis(c)
    if len(convs) < 2 or joined["axis"] != axis or any(n.kind != c.kind for n in convs):
        return None
    depths = [n.inputs[0].shape[axis] for n in convs]
    times = c.inputs[1].shape[0] // depths[0]
    like = _without_groups(c)
    for n, depth in zip(convs, depths, strict=True):
        if _without_groups(n) != like or n.type.dtype != c.type.dtype or n["groups"] != depth:
            return None
        if n.inputs[1].shape != (times * depth, *c.inputs[1].shape[1:]):
            return None
    operands = output_operands(pool, convs)
    if operands is None or len({n.inputs[0].type.dtype for n in convs}) != 1:
        return None
    x = pool.make("concat", *(n.inputs[0] for n in convs), axis=axis)
    stacked = [pool.make("concat", *refs, axis=0) for refs in operands]
    return pool.like(c, x, *stacked, groups=sum(depths))


def _without_groups(node: Node) -> dict[str, object]:
    return {k: v for k, v in node.attrs if k != "groups"}


def _fuse_grouped(pool: Pool, a: Node, b: Node) -> Target:
    """Merge two grouped convolutions; the merged outputs are ordered by group, so each original one is a slice per group."""
    groups, axis = a["groups"], output_axis(a)
    if groups == 1 or a.kind != b.kind or a.attrs != b.attrs or a.inputs[1].shape[1:] != b.inputs[1].shape[1:]:
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
    wide = pool.like(a, a.inputs[0], *merged)
    shape = (*wide.shape[:axis], groups, sum(sizes), *wide.shape[axis + 1 :])
    parts = pool.split(pool.make("reshape", wide, shape=shape), axis + 1, sizes)
    return {n.result: pool.make("reshape", part, shape=n.shape) for n, part in zip((a, b), parts, strict=True)}


def _merge_groups(pool: Pool, c: Node) -> Target:
    groups = c["groups"]
    if groups == 1 or groups % 2 or not c.inputs[1].node.constant:
        return None
    weights = pool.make("block_diagonal", c.inputs[1], merge=2, groups=groups)
    return pool.like(c, c.inputs[0], weights, *c.inputs[2:], groups=groups // 2)


def _group_convs(pool: Pool, joined: Node) -> Target:
    convs = [r.node for r in joined.inputs]
    first = convs[0]
    if len(convs) < 2 or any(n.kind not in CONVOLUTIONS for n in convs):
        return None
    parts, axis = first.inputs[0].node, output_axis(first)
    if parts.kind != "split" or parts["axis"] != axis or joined["axis"] != axis:
        return None
    if tuple(n.inputs[0] for n in convs) != parts.outputs:
        return None
    if any(n.attrs != first.attrs or n.inputs[1].shape != first.inputs[1].shape for n in convs):
        return None
    operands = output_operands(pool, convs)
    if operands is None:
        return None
    stacked = [pool.make("concat", *refs, axis=0) for refs in operands]
    return pool.like(first, parts.inputs[0], *stacked, groups=first["groups"] * len(convs))


_CONVS = kinds_where(lambda o: o.family is Family.CONVOLUTION and o.infer is not None)

GROUP_RULES = (
    exact("depthwise_of_concat", "depthwise(concat(x, y), w)", "concat(depthwise(x, w[:c]), depthwise(y, w[c:]))",
          (op("c", _CONVS, op("joined", "concat")),), _depthwise_of_concat, grows=True),
    exact("concat_of_depthwise", "concat(depthwise(x, v), depthwise(y, w)), as many outputs a channel",
          "depthwise(concat(x, y), concat(v, w))", (op("joined", "concat", op("c", _CONVS)),), _concat_of_depthwise),
    exact("fuse_grouped_convs", "conv(x, w1), conv(x, w2) of g groups each, depthwise ones too",
          "split of conv of g groups (x, concat(w1, w2) group by group)", (op("a", _CONVS), op("b", _CONVS)), _fuse_grouped,
          grows=True),
    exact("merge_groups", "conv of 2g groups", "conv of g groups, weights block-diagonal", (op("c", CONVOLUTIONS),),
          _merge_groups, folds_weights=True),
    exact("group_convs", "concat(conv(x0, w0), conv(x1, w1)), x0, x1 = split(x)", "conv of 2 groups (x, concat(w0, w1))",
          (op("joined", "concat"),), _group_convs),
)  # fmt: skip
