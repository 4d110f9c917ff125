"""Substitution rules for elementwise operators and matrix products: sections 3 and 6 in MetaFlow (SysML 2019).

The simple recurrent unit's (SRU) `x*y + (1-x)*z` needs three; the first raises the cost: `distribute` (4 operators to
5), `reorder_sum` (5 to 4, dropping the factor one), `factor` (4 to 3). Commutativity needs no rule: the pool sorts
commutative operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tvm_cascade.operators.elementwise import program_steps
from tvm_cascade.operators.table import ACTIVATIONS, FUSIBLE, PRODUCTS
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref
from tvm_cascade.substitution.operands import independent, merge_alike, merged_rows, other_operand, parts_for, plus
from tvm_cascade.substitution.pattern import Rule, Target, exact, op, reaches
from tvm_cascade.substitution.rules_conv import fold_bias, fold_scale, fuse

MAX_PROGRAM = 24  # element-wise steps in one kernel


def is_full(ref: Ref, value: float) -> bool:
    """Return True if every element in a constant is `value`."""
    return ref.node.kind == "full" and ref.node["value"] == value


def _fuse_activation(pool: Pool, act: Node, c: Node) -> Target:
    return None if c["act"] else pool.like(c, *c.inputs, act=act.kind)


def _unfuse_activation(pool: Pool, c: Node) -> Target:
    return pool.make(c["act"], pool.like(c, *c.inputs, act="")) if c["act"] else None


def _distribute(pool: Pool, product: Node, total: Node) -> Target:
    factor = other_operand(product, total.result)
    if factor == total.result or factor.type.dtype != product.type.dtype or product.constant:
        return None
    distributed = pool.make(total.kind, *[pool.make("mul", factor, r) for r in total.inputs])
    return distributed if distributed.type == product.type else None


def _factor(pool: Pool, total: Node, a: Node, b: Node) -> Target:
    for common in a.inputs:
        if common not in b.inputs:
            continue
        factored = pool.make("mul", common, pool.make(total.kind, other_operand(a, common), other_operand(b, common)))
        if factored.type == total.type:
            return factored
    return None


def _reorder_sum(pool: Pool, total: Node, difference: Node) -> Target:
    """Rewrite a + (b - c) as (a - c) + b, without a factor one in b, like the SRU's second step in the paper."""
    a = other_operand(total, difference.result)
    b, c = difference.inputs
    if b.node.kind == "mul":
        units = [r for r in b.node.inputs if is_full(r, 1)]
        rest = other_operand(b.node, units[0]) if units else b
        b = rest if rest.type == b.type else b
    return pool.make("add", pool.make("sub", a, c), b) if a.type == b.type == c.type == total.type else None


def _associate(pool: Pool, outer: Node, inner: Node, first: int = 0) -> Target:
    """Rewrite (a + b) + c as a + (b + c), or with `first` 1 as b + (a + c), for equal types; likewise for *."""
    a, b, c = inner.inputs[first], inner.inputs[1 - first], other_operand(outer, inner.result)
    if outer.kind != inner.kind or not (a.type == b.type == c.type) or c == inner.result:
        return None
    return pool.make(outer.kind, a, pool.make(outer.kind, b, c))


def _drop_unit(pool: Pool, n: Node) -> Target:
    unit = 1 if n.kind in ("mul", "div") else 0
    a, b = n.inputs
    if is_full(b, unit) and a.type == n.type:
        return a
    return b if n.kind in ("mul", "add") and is_full(a, unit) and b.type == n.type else None


def merge_rows(pool: Pool, a: Node, b: Node) -> Target:
    """Merge A @ w and B @ w into a single product of stacked rows, float or quantized."""
    whole = merged_rows(pool, (a, b))
    return whole and parts_for(pool, whole, 0, (a, b))


def _merge_all_rows(dag: Dag, readers: Mapping[Ref, list[Node]], c: Node) -> Target:
    """Merge all independent products with a single weight, such as a recurrent layer's steps."""
    weight = c.inputs[1]
    same = [n for n in readers[weight] if (n.kind, n.inputs[1:], n.attrs) == (c.kind, c.inputs[1:], c.attrs)]
    same = [n for n in same if len(n.shape) == 2]
    if len(same) < 3 or same[0] is not c:
        return None
    chosen: list[Node] = []
    for n in same:
        if n.inputs[0] != weight and not any(reaches(n.inputs[0], m) for m in chosen):
            chosen.append(n)
    whole = merged_rows(dag.pool, chosen) if len(chosen) > 2 else None
    return whole and parts_for(dag.pool, whole, 0, chosen)


def _compose_matmuls(pool: Pool, outer: Node, inner: Node) -> Target:
    """Rewrite x @ w1 @ w2 as x @ (w1 @ w2); multiply an inner bias by w2 as well."""
    w1, w2 = inner.inputs[1], outer.inputs[1]
    if inner["act"] or not (w1.node.constant and w2.node.constant) or len(w1.shape) != 2 or len(w2.shape) != 2:
        return None
    biases = outer.inputs[2:]
    for bias in inner.inputs[2:]:
        if bias.shape != (w1.shape[1],) or not bias.node.constant:
            return None
        row = pool.make("matmul", pool.make("reshape", bias, shape=(1, w1.shape[1])), w2, act="")
        moved = pool.make("reshape", row, shape=(w2.shape[1],))
        biases = (plus(pool, biases[0] if biases else None, moved),)
    return pool.like(outer, inner.inputs[0], pool.make("matmul", w1, w2, act=""), *biases)


def program_of(node: Node) -> Any:
    """Return an elementwise operator as a program (`operators.elementwise`) over operand indices."""
    return node["program"] if node.kind == "fused" else (node.kind, node.attrs, tuple(range(len(node.inputs))))


def _substitute(term: Any, values: Mapping[int, Any]) -> Any:
    if isinstance(term, int):
        return values[term]
    return (term[0], term[1], tuple(_substitute(t, values) for t in term[2]))


def inline(pool: Pool, consumer: Node, producer: Node) -> Ref | None:
    """Fuse `consumer` and its `producer` into a single operator; None for a program beyond `MAX_PROGRAM` steps."""
    operands = list(dict.fromkeys([*producer.inputs, *(r for r in consumer.inputs if r.node is not producer)]))
    position = {r: i for i, r in enumerate(operands)}
    inner = _substitute(program_of(producer), {i: position[r] for i, r in enumerate(producer.inputs)})
    outer = {i: inner if r.node is producer else position[r] for i, r in enumerate(consumer.inputs)}
    program = _substitute(program_of(consumer), outer)
    if program_steps(program) > MAX_PROGRAM:
        return None
    return pool.make("fused", *operands, program=program)


def _fuse_elementwise(dag: Dag, readers: Mapping[Ref, list[Node]], p: Node) -> Target:
    """Fuse an elementwise producer into each reader, if all are elementwise in its shape."""
    reading = readers.get(p.result, [])
    if p.kind in ACTIVATIONS and p.inputs[0].node.kind in PRODUCTS and not p.inputs[0].node["act"]:
        return None  # `fuse_activation` fuses it into its producer
    if not reading or p.result in dag.outputs or any(r.kind not in FUSIBLE or r.shape != p.shape for r in reading):
        return None
    target: dict[Ref, Ref] = {}
    for reader in reading:  # topological, so that a reader of another reader sees the new one
        fused = inline(dag.pool, reader, p)
        if fused is None:
            return None
        fused = dag.pool.like(fused.node, *(target.get(r, r) for r in fused.node.inputs))
        if fused.type != reader.type:
            return None
        target[reader.result] = fused
    # A path from one reader to another through an operator that is no reader would keep the old reader alive.
    if any(_indirect(b, a, reading) for a in reading for b in reading if a is not b):
        return None
    return target


def _indirect(later: Node, earlier: Node, readers: Sequence[Node]) -> bool:
    return any(r.node not in readers and reaches(r, earlier) for r in later.inputs if r.node.inputs)


def _batch_unary(dag: Dag, readers: Mapping[Ref, list[Node]], s: Node) -> Target:
    """Move the same unary operator on every output of a split before the split."""
    reading = [readers.get(part, []) for part in s.outputs]
    if any(len(r) != 1 for r in reading) or any(part in dag.outputs for part in s.outputs):
        return None
    first = reading[0][0]
    if first.kind not in ACTIVATIONS | {"clip"} or any(
        (r.kind, r.attrs) != (first.kind, first.attrs) for [r] in reading
    ):
        return None
    parts = dag.pool.like(s, dag.pool.like(first, s.inputs[0])).node.outputs
    return {r.result: part for [r], part in zip(reading, parts, strict=True)}


_SUMS = "add sub"
_KERNEL = op("c", PRODUCTS)
_MATMUL_A, _MATMUL_B, _MATMUL = op("a", "matmul"), op("b", "matmul"), op("c", "matmul")

ALGEBRA_RULES = (
    exact("fuse_activation", "act(conv(x, w))", "conv(x, w) with act; the same for matmul",
          (op("act", ACTIVATIONS, _KERNEL),), _fuse_activation),
    exact("unfuse_activation", "conv(x, w) with act", "act(conv(x, w)); the same for matmul", (_KERNEL,),
          _unfuse_activation),
    exact("distribute", "a * (b + c)", "a * b + a * c; the same for -", (op("product", "mul", op("total", _SUMS), None),),
          _distribute, grows=True),
    exact("reorder_sum", "a + (1 * b - c)", "(a - c) + b, also without the factor one",
          (op("total", "add", op("difference", "sub"), None),), _reorder_sum),
    exact("factor", "a * b + a * c", "a * (b + c); the same for -", (op("total", _SUMS, op("a", "mul"), op("b", "mul")),),
          _factor),
    exact("associate", "(a + b) + c", "a + (b + c); the same for *",
          (op("outer", "add mul", op("inner", "add mul"), None),), _associate),
    exact("associate_right", "(a + b) + c", "b + (a + c); the same for *",
          (op("outer", "add mul", op("inner", "add mul"), None),), partial(_associate, first=1)),
    exact("drop_unit", "x * 1, x / 1, x + 0, x - 0", "x", (op("n", "mul div add sub"),), _drop_unit),
    exact("merge_matmuls", "x @ A, x @ B", "split(x @ [A B])", (_MATMUL_A, _MATMUL_B), fuse,
          alike=merge_alike, fits=independent),
    exact("merge_matmul_rows", "A @ w, B @ w", "split([A; B] @ w)", (_MATMUL_A, _MATMUL_B), merge_rows, shared=1, grows=True),
    exact("merge_all_rows", "A @ w, B @ w, C @ w, ...", "split([A; B; C; ...] @ w)", (_MATMUL,), _merge_all_rows,
          whole_graph=True, sees_readers=True, grows=True),
    exact("matmul_bias", "x @ w + c", "matmul(x, w, c), c constant per column", (op("total", "add", _MATMUL, None),),
          fold_bias, folds_weights=True, eager=True),
    Rule("matmul_scale", "(x @ w) * s", "x @ (w * s), s constant per column", (op("product", "mul", _MATMUL, None),),
         fold_scale, folds_weights=True, eager=True),
    Rule("compose_matmuls", "(x @ v) @ w", "x @ (v @ w), both constant",
         (op("outer", "matmul", op("inner", "matmul")),), _compose_matmuls, folds_weights=True),
    exact("fuse_elementwise", "g(f(x), y), every reader of f(x) element-wise", "one kernel per reader",
          (op("p", FUSIBLE),), _fuse_elementwise, sees_readers=True),
    exact("batch_unary", "f(x0), f(x1), x0, x1 = split(x)", "split(f(x))", (op("s", "split"),), _batch_unary,
          sees_readers=True),
)  # fmt: skip
