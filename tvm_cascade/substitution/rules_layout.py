"""Rules that move data: concatenations, splits, transposes, reshapes, and pools around activations. All are exact.

`exclusive_concat` is the published artifact's flag: a concatenation whose every operand is a kernel's result that
nothing else reads costs no copy, as the kernels can write into its parts. The graph stays the same but for the flag,
which the pool drops again as soon as an operand is no kernel's result any more.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_cascade.operators.table import ACTIVATIONS, BINARY, MOVABLE, UNARY, WRITERS
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref
from tvm_cascade.substitution.pattern import Match, Rule, Target, op
from tvm_cascade.substitution.rules_conv import result


def concat(pool: Pool, parts: list[Ref], axis: int) -> Ref:
    return parts[0] if len(parts) == 1 else pool.make("concat", *parts, axis=axis)


def _concat_of_split(pool: Pool, m: Match) -> Target | None:
    """Every full run of a split's outputs among the operands becomes the split's operand."""
    joined = m["joined"]
    parts: list[Ref] = []
    i = 0
    while i < len(joined.inputs):
        ref = joined.inputs[i]
        whole = [Ref(ref.node, p) for p in range(len(ref.node.types))]
        if ref.node.kind == "split" and ref.node["axis"] == joined["axis"] and (
            list(joined.inputs[i : i + len(whole)]) == whole
        ):  # fmt: skip
            parts.append(ref.node.inputs[0])
            i += len(whole)
        else:
            parts.append(ref)
            i += 1
    if len(parts) == len(joined.inputs):
        return None
    return {result(joined): concat(pool, parts, int(joined["axis"]))}  # type: ignore[call-overload]


def _split_of_concat(pool: Pool, m: Match) -> Target | None:
    """Cuts that fall between operands: each output is an operand, or a concatenation of some."""
    parts, joined = m["parts"], m["joined"]
    if parts["axis"] != joined["axis"]:
        return None
    axis = int(parts["axis"])  # type: ignore[call-overload]
    target: dict[Ref, Ref] = {}
    at = 0
    for port, size in enumerate(parts["sizes"]):  # type: ignore[arg-type]
        run: list[Ref] = []
        while at < len(joined.inputs) and sum(r.shape[axis] for r in run) < size:
            run.append(joined.inputs[at])
            at += 1
        if sum(r.shape[axis] for r in run) != size:
            return None
        target[Ref(parts, port)] = concat(pool, run, axis)
    return target


def _flatten_concat(pool: Pool, m: Match) -> Target | None:
    outer = m["outer"]
    parts: list[Ref] = []
    for ref in outer.inputs:
        nested = ref.node.kind == "concat" and ref.node["axis"] == outer["axis"] and not ref.node.constant
        parts += ref.node.inputs if nested else [ref]
    if len(parts) == len(outer.inputs):
        return None
    return {result(outer): concat(pool, parts, int(outer["axis"]))}  # type: ignore[call-overload]


def _flatten_split(pool: Pool, m: Match) -> Target | None:
    inner, outer = m["inner"], m["outer"]
    if inner["axis"] != outer["axis"]:
        return None
    cut = inner.inputs[0].port
    before: tuple[int, ...] = outer["sizes"]  # type: ignore[assignment]
    after: tuple[int, ...] = inner["sizes"]  # type: ignore[assignment]
    sizes = before[:cut] + after + before[cut + 1 :]
    flat = pool.make("split", outer.inputs[0], axis=outer["axis"], sizes=sizes).node
    target = {Ref(inner, p): Ref(flat, cut + p) for p in range(len(after))}
    for p in range(len(before)):
        if p != cut:
            target[Ref(outer, p)] = Ref(flat, p if p < cut else p + len(after) - 1)
    return target


def _exclusive_concat(dag: Dag, users: Mapping[Ref, list[Node]], node: Node, m: Match) -> Target | None:
    if node.get("in_place") or len(set(node.inputs)) != len(node.inputs):
        return None
    for ref in node.inputs:
        if ref.node.kind not in WRITERS or users.get(ref, []) != [node] or ref in dag.outputs:
            return None
    return {result(node): dag.pool.make("concat", *node.inputs, axis=node["axis"], in_place=True)}


def _compose_transposes(pool: Pool, m: Match) -> Target | None:
    outer, inner = m["outer"], m["inner"]
    perm = tuple(inner["perm"][i] for i in outer["perm"])  # type: ignore[index,union-attr]
    x = inner.inputs[0]
    return {result(outer): x if perm == tuple(range(len(perm))) else pool.make("transpose", x, perm=perm)}


def _drop_view(pool: Pool, m: Match) -> Target | None:
    node = m["n"]
    same = node["perm"] == tuple(range(len(node.shape))) if node.kind == "transpose" else (
        node.shape == node.inputs[0].shape
    )  # fmt: skip
    return {result(node): node.inputs[0]} if same else None


def _compose_reshapes(pool: Pool, m: Match) -> Target | None:
    return {result(m["outer"]): pool.make("reshape", m["inner"].inputs[0], shape=m["outer"]["shape"])}


def _unary_down(pool: Pool, m: Match) -> Target | None:
    f, view = m["f"], m["view"]
    moved = pool.make(f.kind, view.inputs[0], **dict(f.attrs))
    return {result(f): pool.make(view.kind, moved, **dict(view.attrs))}


def _unary_up(pool: Pool, m: Match) -> Target | None:
    view, f = m["view"], m["f"]
    moved = pool.make(view.kind, f.inputs[0], **dict(view.attrs))
    return {result(view): pool.make(f.kind, moved, **dict(f.attrs))}


def _binary_down(pool: Pool, m: Match) -> Target | None:
    f = m["f"]
    a, b = f.inputs
    view = a.node
    if b.node.kind != view.kind or a.node.attrs != b.node.attrs or a.shape != b.shape:
        return None
    if a.node.inputs[0].shape != b.node.inputs[0].shape:
        return None
    moved = pool.make(f.kind, a.node.inputs[0], b.node.inputs[0])
    return {result(f): pool.make(view.kind, moved, **dict(view.attrs))}


def _concat_transposes(pool: Pool, m: Match) -> Target | None:
    joined = m["joined"]
    first = joined.inputs[0].node
    if any(r.node.kind != "transpose" or r.node.attrs != first.attrs for r in joined.inputs):
        return None
    perm: tuple[int, ...] = first["perm"]  # type: ignore[assignment]
    moved = pool.make("concat", *[r.node.inputs[0] for r in joined.inputs], axis=perm[int(joined["axis"])])  # type: ignore
    return {result(joined): pool.make("transpose", moved, perm=perm)}


def _unary_of_concat(pool: Pool, m: Match) -> Target | None:
    f, joined = m["f"], m["joined"]
    parts = [pool.make(f.kind, r, **dict(f.attrs)) for r in joined.inputs]
    return {result(f): concat(pool, parts, int(joined["axis"]))}  # type: ignore[call-overload]


def _concat_of_unary(pool: Pool, m: Match) -> Target | None:
    joined = m["joined"]
    first = joined.inputs[0].node
    if first.kind not in MOVABLE or any(
        (r.node.kind, r.node.attrs) != (first.kind, first.attrs) for r in joined.inputs
    ):
        return None
    sources = [r.node.inputs[0].node for r in joined.inputs]
    if first.kind in ACTIVATIONS and any(n.kind in ("conv2d", "matmul") and not n["act"] for n in sources):
        return None  # a kernel applies it for nothing
    moved = concat(pool, [r.node.inputs[0] for r in joined.inputs], int(joined["axis"]))  # type: ignore[call-overload]
    return {result(joined): pool.make(first.kind, moved, **dict(first.attrs))}


def _reads_something(p: Node) -> bool:
    """Whether every window holds a real value; rounding the extent up can put one into the padding altogether."""
    kernel, strides, padding = p["kernel"], p["strides"], p["padding"]
    if any(a >= k for a, k in zip(padding, (*kernel, *kernel), strict=True)):  # type: ignore[call-overload,misc]
        return False
    return not p["ceil"] or (not any(padding) and all(s <= k for s, k in zip(strides, kernel, strict=True)))  # type: ignore


def _pool_up(pool: Pool, m: Match) -> Target | None:
    """A monotone function commutes with a maximum over real taps; both ways cost alike but open other rules."""
    f, p = m["f"], m["p"]
    if not _reads_something(p):
        return None
    return {result(f): pool.make(p.kind, pool.make(f.kind, p.inputs[0], **dict(f.attrs)), **dict(p.attrs))}


def _pool_down(pool: Pool, m: Match) -> Target | None:
    p, f = m["p"], m["f"]
    if not _reads_something(p):
        return None
    return {result(p): pool.make(f.kind, pool.make(p.kind, f.inputs[0], **dict(p.attrs)), **dict(f.attrs))}


def _never(pool: Pool, m: Match) -> Target | None:
    return None


_VIEWS = "transpose reshape"

LAYOUT_RULES = (
    Rule("concat_of_split", "concat(x0, x1), x0, x1 = split(x)", "x", (op("joined", "concat"),),
         _concat_of_split, integer_exact=True),
    Rule("split_of_concat", "split(concat(x, y))", "x, y", (op("parts", "split", op("joined", "concat")),),
         _split_of_concat, integer_exact=True),
    Rule("flatten_concat", "concat(concat(x, y), z)", "concat(x, y, z)", (op("outer", "concat"),), _flatten_concat,
         integer_exact=True),
    Rule("flatten_split", "split(x0), x0, x1 = split(x)", "split(x) into all parts",
         (op("inner", "split", op("outer", "split")),), _flatten_split, integer_exact=True),
    Rule("exclusive_concat", "concat of results that nothing else reads", "the same, written in place",
         (op("joined", "concat"),), _never, integer_exact=True, context=_exclusive_concat),
    Rule("compose_transposes", "transpose(transpose(x))", "transpose(x), or x",
         (op("outer", "transpose", op("inner", "transpose")),), _compose_transposes, integer_exact=True),
    Rule("compose_reshapes", "reshape(reshape(x))", "reshape(x)",
         (op("outer", "reshape", op("inner", "reshape")),), _compose_reshapes, integer_exact=True),
    Rule("drop_view", "a transpose or reshape that changes nothing", "x", (op("n", _VIEWS),), _drop_view,
         integer_exact=True),
    Rule("unary_before_view", "f(transpose(x)), f(reshape(x))", "transpose(f(x)), reshape(f(x))",
         (op("f", UNARY, op("view", _VIEWS)),), _unary_down, integer_exact=True),
    Rule("unary_after_view", "transpose(f(x)), reshape(f(x))", "f(transpose(x)), f(reshape(x))",
         (op("view", _VIEWS, op("f", UNARY)),), _unary_up, integer_exact=True),
    Rule("binary_before_view", "transpose(x) + transpose(y)", "transpose(x + y); all binary operators, reshapes too",
         (op("f", BINARY, op("view", _VIEWS), op("other", _VIEWS)),), _binary_down, integer_exact=True),
    Rule("concat_of_transposes", "concat(transpose(x), transpose(y))", "transpose(concat(x, y))",
         (op("joined", "concat", op("view", "transpose")),), _concat_transposes, integer_exact=True),
    Rule("unary_of_concat", "f(concat(x, y))", "concat(f(x), f(y))", (op("f", MOVABLE, op("joined", "concat")),),
         _unary_of_concat, integer_exact=True),
    Rule("concat_of_unary", "concat(f(x), f(y))", "f(concat(x, y))", (op("joined", "concat", op("f", MOVABLE)),),
         _concat_of_unary, integer_exact=True),
    Rule("activation_before_pool", "f(max_pool(x)), f monotone", "max_pool(f(x))",
         (op("f", MOVABLE, op("p", "max_pool2d")),), _pool_up, integer_exact=True),
    Rule("activation_after_pool", "max_pool(f(x)), f monotone", "f(max_pool(x))",
         (op("p", "max_pool2d", op("f", MOVABLE)),), _pool_down, integer_exact=True),
)  # fmt: skip
