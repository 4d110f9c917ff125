"""Substitution rules for data movement: concat, split, transpose, reshape, and activations across max pools.

`exclusive_concat` is from the published artifact. It flags a concatenation whose operands are all kernel results
without other readers: kernels can write into its parts, without a copy. The pool drops the flag if an operand is
replaced by a value without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_cascade.operators.table import ACTIVATIONS, BINARY, MOVABLE, PRODUCTS, UNARY, WRITERS
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref
from tvm_cascade.substitution.operands import alike
from tvm_cascade.substitution.pattern import Target, exact, op


def _concat(pool: Pool, parts: list[Ref], axis: int) -> Ref:
    return parts[0] if len(parts) == 1 else pool.make("concat", *parts, axis=axis)


def _concat_of_split(pool: Pool, joined: Node) -> Target:
    """Replace a split's outputs, if they are consecutive operands, by its input."""
    parts: list[Ref] = []
    i = 0
    while i < len(joined.inputs):
        ref, whole = joined.inputs[i], joined.inputs[i].node.outputs
        along = ref.node.kind == "split" and ref.node["axis"] == joined["axis"]
        whole_split = along and joined.inputs[i : i + len(whole)] == whole
        parts.append(ref.node.inputs[0] if whole_split else ref)
        i += len(whole) if whole_split else 1
    return _concat(pool, parts, joined["axis"]) if len(parts) < len(joined.inputs) else None


def _split_of_concat(pool: Pool, parts: Node, joined: Node) -> Target:
    """Replace each output by an operand, or a concatenation of several, if every cut falls between two operands."""
    axis = parts["axis"]
    if axis != joined["axis"]:
        return None
    target: dict[Ref, Ref] = {}
    rest = list(joined.inputs)
    for part, size in zip(parts.outputs, parts["sizes"], strict=True):
        run: list[Ref] = []
        while rest and sum(r.shape[axis] for r in run) < size:
            run.append(rest.pop(0))
        if sum(r.shape[axis] for r in run) != size:
            return None
        target[part] = _concat(pool, run, axis)
    return target


def _flatten_concat(pool: Pool, outer: Node) -> Target:
    parts: list[Ref] = []
    for ref in outer.inputs:
        nested = ref.node.kind == "concat" and ref.node["axis"] == outer["axis"] and not ref.node.constant
        parts += ref.node.inputs if nested else [ref]
    return None if len(parts) == len(outer.inputs) else _concat(pool, parts, outer["axis"])


def _flatten_split(pool: Pool, inner: Node, outer: Node) -> Target:
    if inner["axis"] != outer["axis"]:
        return None
    cut, sizes = inner.inputs[0].port, outer["sizes"]
    flat = pool.split(outer.inputs[0], outer["axis"], sizes[:cut] + inner["sizes"] + sizes[cut + 1 :])
    after = cut + len(inner.outputs)
    old = (*inner.outputs, *outer.outputs[:cut], *outer.outputs[cut + 1 :])
    return dict(zip(old, (*flat[cut:after], *flat[:cut], *flat[after:]), strict=True))


def _exclusive_concat(dag: Dag, readers: Mapping[Ref, list[Node]], joined: Node) -> Target:
    if joined.get("in_place") or len(set(joined.inputs)) != len(joined.inputs):
        return None
    for ref in joined.inputs:
        if ref.node.kind not in WRITERS or readers.get(ref, []) != [joined] or ref in dag.outputs:
            return None
    return dag.pool.like(joined, *joined.inputs, in_place=True)


def _compose_transposes(pool: Pool, outer: Node, inner: Node) -> Target:
    perm = tuple(inner["perm"][i] for i in outer["perm"])
    x = inner.inputs[0]
    return x if perm == tuple(range(len(perm))) else pool.make("transpose", x, perm=perm)


def _drop_view(pool: Pool, view: Node) -> Target:
    x, moves = view.inputs[0], view.get("perm", ()) != tuple(range(len(view.shape)))
    return x if x.shape == view.shape and (view.kind == "reshape" or not moves) else None


def _compose_reshapes(pool: Pool, outer: Node, inner: Node) -> Target:
    return pool.like(outer, inner.inputs[0])


def _swap(pool: Pool, outer: Node, inner: Node) -> Target:
    """Rewrite outer(inner(x)) as inner(outer(x)), both on a single operand."""
    return pool.like(inner, pool.like(outer, inner.inputs[0]))


def _swap_pool(pool: Pool, outer: Node, inner: Node) -> Target:
    """Swap a monotone function and a max pool; the cost is about the same, but other rules may then apply."""
    return _swap(pool, outer, inner) if _reads_something(outer if "kernel" in dict(outer.attrs) else inner) else None


def _reads_something(p: Node) -> bool:
    """Return True if every pool window has a tap outside the padding; with `ceil` the last may have none."""
    kernel, strides, padding = p["kernel"], p["strides"], p["padding"]
    if any(a >= k for a, k in zip(padding, (*kernel, *kernel), strict=True)):
        return False
    return not p["ceil"] or (not any(padding) and all(s <= k for s, k in zip(strides, kernel, strict=True)))


def _binary_before_view(pool: Pool, f: Node, view: Node, other: Node) -> Target:
    a, b = (r.node.inputs[0] for r in f.inputs)
    return pool.like(f.inputs[0].node, pool.like(f, a, b)) if alike(f.inputs) and a.shape == b.shape else None


def _concat_of_transposes(pool: Pool, joined: Node, view: Node) -> Target:
    if not alike(joined.inputs):
        return None
    axis = view["perm"][joined["axis"]]
    return pool.like(view, pool.make("concat", *[r.node.inputs[0] for r in joined.inputs], axis=axis))


def _unary_of_concat(pool: Pool, f: Node, joined: Node) -> Target:
    return _concat(pool, [pool.like(f, r) for r in joined.inputs], joined["axis"])


def _concat_of_unary(pool: Pool, joined: Node, f: Node) -> Target:
    if not alike(joined.inputs):
        return None
    sources = [r.node.inputs[0] for r in joined.inputs]
    if f.kind in ACTIVATIONS and any(r.node.kind in PRODUCTS and not r.node["act"] for r in sources):
        return None  # it can be fused into its producer at no cost
    return pool.like(f, _concat(pool, sources, joined["axis"]))


_VIEWS = "transpose reshape"

LAYOUT_RULES = (
    exact("concat_of_split", "concat(x0, x1), x0, x1 = split(x)", "x", (op("joined", "concat"),), _concat_of_split,
          eager=True),
    exact("split_of_concat", "split(concat(x, y))", "x, y", (op("parts", "split", op("joined", "concat")),),
          _split_of_concat, eager=True),
    exact("flatten_concat", "concat(concat(x, y), z)", "concat(x, y, z)", (op("outer", "concat"),), _flatten_concat,
          eager=True),
    exact("flatten_split", "split(x0), x0, x1 = split(x)", "split(x) into all parts",
          (op("inner", "split", op("outer", "split")),), _flatten_split, eager=True),
    exact("exclusive_concat", "concat of results that nothing else reads", "the same, written in place",
          (op("joined", "concat"),), _exclusive_concat, sees_readers=True),
    exact("compose_transposes", "transpose(transpose(x))", "transpose(x), or x",
          (op("outer", "transpose", op("inner", "transpose")),), _compose_transposes, eager=True),
    exact("compose_reshapes", "reshape(reshape(x))", "reshape(x)",
          (op("outer", "reshape", op("inner", "reshape")),), _compose_reshapes, eager=True),
    exact("drop_view", "a transpose or reshape that changes nothing", "x", (op("view", _VIEWS),), _drop_view, eager=True),
    exact("unary_before_view", "f(transpose(x)), f(reshape(x))", "transpose(f(x)), reshape(f(x))",
          (op("outer", UNARY, op("inner", _VIEWS)),), _swap),
    exact("unary_after_view", "transpose(f(x)), reshape(f(x))", "f(transpose(x)), f(reshape(x))",
          (op("outer", _VIEWS, op("inner", UNARY)),), _swap),
    exact("binary_before_view", "transpose(x) + transpose(y)", "transpose(x + y); all binary operators, reshapes too",
          (op("f", BINARY, op("view", _VIEWS), op("other", _VIEWS)),), _binary_before_view),
    exact("concat_of_transposes", "concat(transpose(x), transpose(y))", "transpose(concat(x, y))",
          (op("joined", "concat", op("view", "transpose")),), _concat_of_transposes),
    exact("unary_of_concat", "f(concat(x, y))", "concat(f(x), f(y))", (op("f", MOVABLE, op("joined", "concat")),),
          _unary_of_concat),
    exact("concat_of_unary", "concat(f(x), f(y))", "f(concat(x, y))", (op("joined", "concat", op("f", MOVABLE)),),
          _concat_of_unary),
    exact("activation_before_pool", "f(max_pool(x)), f monotone", "max_pool(f(x))",
          (op("outer", MOVABLE, op("inner", "max_pool2d")),), _swap_pool),
    exact("activation_after_pool", "max_pool(f(x)), f monotone", "f(max_pool(x))",
          (op("outer", "max_pool2d", op("inner", MOVABLE)),), _swap_pool),
)  # fmt: skip
