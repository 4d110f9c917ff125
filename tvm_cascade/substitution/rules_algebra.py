"""Rules about element-wise operators and matrix products: sections 3 and 6 of MetaFlow (SysML 2019).

The simple recurrent unit's `x*y + (1-x)*z` needs three of them, the first of which makes the graph dearer:
`distribute` (4 operators to 5), `reorder_sum` (5 to 4, it drops the factor one), `factor` (4 to 3).
Commuting needs no rule: the pool keeps the operands of commutative operators in one order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_cascade.operators.elementwise import program_steps
from tvm_cascade.operators.table import ACTIVATIONS, FUSIBLE
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref
from tvm_cascade.substitution.pattern import Match, Rule, Target, op, reaches
from tvm_cascade.substitution.rules_conv import bias_of, both_biases, per_channel, result

MAX_PROGRAM = 24  # element-wise steps in one kernel
_LINEAR = ("conv2d", "matmul")


def is_full(ref: Ref, value: float) -> bool:
    return ref.node.kind == "full" and ref.node["value"] == value


def _others(node: Node, taken: Ref) -> Ref:
    """The operand of a binary operator that is not `taken`."""
    a, b = node.inputs
    return b if a == taken else a


def _fuse_activation(pool: Pool, m: Match) -> Target | None:
    act, c = m["act"], m["c"]
    if c["act"]:
        return None
    attrs = {**dict(c.attrs), "act": act.kind}
    return {result(act): pool.make(c.kind, *c.inputs, **attrs)}


def _unfuse_activation(pool: Pool, m: Match) -> Target | None:
    c = m["c"]
    if not c["act"]:
        return None
    return {result(c): pool.make(str(c["act"]), pool.make(c.kind, *c.inputs, **{**dict(c.attrs), "act": ""}))}


def _distribute(pool: Pool, m: Match) -> Target | None:
    product, total = m["product"], m["sum"]
    factor = _others(product, result(total))
    if factor == result(total) or factor.type.dtype != product.type.dtype or product.constant:
        return None
    terms = [pool.make("mul", factor, r) for r in total.inputs]
    made = pool.make(total.kind, *terms)
    return {result(product): made} if made.type == product.type else None


def _factor(pool: Pool, m: Match) -> Target | None:
    total, a, b = m["sum"], m["a"], m["b"]
    for common in a.inputs:
        if common not in b.inputs:
            continue
        inner = pool.make(total.kind, _others(a, common), _others(b, common))
        made = pool.make("mul", common, inner)
        if made.type == total.type:
            return {result(total): made}
    return None


def _reorder_sum(pool: Pool, m: Match) -> Target | None:
    """a + (b - c) as (a - c) + b; a factor one of b goes, as this is how the SRU's second step is printed."""
    total, difference = m["sum"], m["difference"]
    a = _others(total, result(difference))
    b, c = difference.inputs
    if b.node.kind == "mul":
        units = [r for r in b.node.inputs if is_full(r, 1)]
        rest = _others(b.node, units[0]) if units else b
        b = rest if rest.type == b.type else b
    if not (a.type == b.type == c.type == total.type):
        return None
    return {result(total): pool.make("add", pool.make("sub", a, c), b)}


def _regroup(m: Match) -> tuple[Ref, Ref, Ref] | None:
    """a, b, c of (a + b) + c, whichever the operator, where they may be added in another order."""
    outer, inner = m["outer"], m["inner"]
    if outer.kind != inner.kind:
        return None
    c = _others(outer, result(inner))
    a, b = inner.inputs
    return None if not (a.type == b.type == c.type) or c == result(inner) else (a, b, c)


def _associate(pool: Pool, m: Match) -> Target | None:
    terms, outer = _regroup(m), m["outer"]
    if terms is None:
        return None
    a, b, c = terms
    return {result(outer): pool.make(outer.kind, a, pool.make(outer.kind, b, c))}


def _associate_right(pool: Pool, m: Match) -> Target | None:
    terms, outer = _regroup(m), m["outer"]
    if terms is None:
        return None
    a, b, c = terms
    return {result(outer): pool.make(outer.kind, b, pool.make(outer.kind, a, c))}


def _drop_unit(pool: Pool, m: Match) -> Target | None:
    node = m["n"]
    unit = 1 if node.kind in ("mul", "div") else 0
    a, b = node.inputs
    if is_full(b, unit) and a.type == node.type:
        return {result(node): a}
    if node.kind in ("mul", "add") and is_full(a, unit) and b.type == node.type:
        return {result(node): b}
    return None


def _split_product(pool: Pool, a: Node, b: Node, wide: Ref, axis: int) -> Target:
    sizes = (a.shape[axis], b.shape[axis])
    parts = pool.make("split", wide, axis=axis, sizes=sizes).node
    return {result(a): Ref(parts, 0), result(b): Ref(parts, 1)}


def _merge_columns(pool: Pool, m: Match) -> Target | None:
    """x @ A and x @ B as one product by [A B]; where the biases differ in rank nothing is merged."""
    a, b = m["a"], m["b"]
    wa, wb = a.inputs[1], b.inputs[1]
    if a["act"] != b["act"] or wa.shape[:-1] != wb.shape[:-1] or wa.type.dtype != wb.type.dtype:
        return None
    biases = both_biases(pool, a, b)
    if (biases and any(len(r.shape) != 1 for r in biases)) or wa.shape[:-2] not in ((), a.shape[:-2]):
        return None
    if any(reaches(r, n) for r, n in ((wa, b), (wb, a))):
        return None
    operands = [a.inputs[0], pool.make("concat", wa, wb, axis=len(wa.shape) - 1)]
    if biases:
        operands.append(pool.make("concat", *biases, axis=0))
    wide = pool.make("matmul", *operands, act=a["act"])
    return _split_product(pool, a, b, wide, len(a.shape) - 1)


def _merge_rows(pool: Pool, m: Match) -> Target | None:
    """A @ w and B @ w as one product of stacked rows."""
    a, b = m["a"], m["b"]
    xa, xb = a.inputs[0], b.inputs[0]
    if a["act"] != b["act"] or bias_of(a) != bias_of(b) or len(xa.shape) != 2 or len(xb.shape) != 2:
        return None
    if len(a.inputs[1].shape) != 2 or xa.type.dtype != xb.type.dtype or xa == xb:
        return None
    if bias_of(a) is not None and len(bias_of(a).shape) != 1:  # type: ignore[union-attr]
        return None
    if reaches(xa, b) or reaches(xb, a):
        return None
    wide = pool.make("matmul", pool.make("concat", xa, xb, axis=0), *a.inputs[1:], act=a["act"])
    return _split_product(pool, a, b, wide, 0)


def _merge_all_rows(dag: Dag, users: Mapping[Ref, list[Node]], node: Node, m: Match) -> Target | None:
    """All products of one weight that do not depend on each other, from the first on: a recurrent layer's steps."""
    weight = node.inputs[1]
    if len(weight.shape) != 2 or (bias_of(node) is not None and len(bias_of(node).shape) != 1):  # type: ignore[union-attr]
        return None
    alike = [
        n
        for n in users.get(weight, [])
        if n.kind == "matmul" and n.inputs[1:] == node.inputs[1:] and n.attrs == node.attrs and len(n.shape) == 2
    ]
    if len(alike) < 3 or alike[0] is not node:
        return None
    chosen: list[Node] = []
    for n in alike:
        if n.inputs[0] != weight and not any(reaches(n.inputs[0], c) for c in chosen):
            chosen.append(n)
    rows = dict.fromkeys(n.inputs[0] for n in chosen)
    if len(rows) < 3 or len(rows) != len(chosen):
        return None
    wide = dag.pool.make("matmul", dag.pool.make("concat", *rows, axis=0), *node.inputs[1:], act=node["act"])
    parts = dag.pool.make("split", wide, axis=0, sizes=tuple(n.shape[0] for n in chosen)).node
    return {result(n): Ref(parts, i) for i, n in enumerate(chosen)}


def _matmul_bias(pool: Pool, m: Match) -> Target | None:
    total, c = m["sum"], m["c"]
    other = _others(total, result(c))
    if c["act"] or total.shape != c.shape or other.type.dtype != c.type.dtype:
        return None
    vector = per_channel(pool, other, len(c.shape), len(c.shape) - 1, c.shape[-1])
    if vector is None:
        return None
    bias = bias_of(c)
    return {
        result(total): pool.make("matmul", *c.inputs[:2], pool.make("add", bias, vector) if bias else vector, act="")
    }


def _matmul_scale(pool: Pool, m: Match) -> Target | None:
    product, c = m["product"], m["c"]
    if c["act"] or product.shape != c.shape or not c.inputs[1].node.constant:
        return None
    vector = per_channel(pool, _others(product, result(c)), len(c.shape), len(c.shape) - 1, c.shape[-1])
    if vector is None:
        return None
    scaled = [pool.make("mul", r, vector) for r in c.inputs[1:]]
    return {result(product): pool.make("matmul", c.inputs[0], *scaled, act="")}


def _compose_matmuls(pool: Pool, m: Match) -> Target | None:
    """x @ w1 @ w2 with a bias on the inner product: it goes through the outer weights as well."""
    outer, inner = m["outer"], m["inner"]
    w1, w2 = inner.inputs[1], outer.inputs[1]
    if inner["act"] or not (w1.node.constant and w2.node.constant) or len(w1.shape) != 2 or len(w2.shape) != 2:
        return None
    biases = list(outer.inputs[2:])
    inner_bias = bias_of(inner)
    if inner_bias is not None:
        if inner_bias.shape != (w1.shape[1],) or not inner_bias.node.constant:
            return None
        row = pool.make("matmul", pool.make("reshape", inner_bias, shape=(1, w1.shape[1])), w2, act="")
        moved = pool.make("reshape", row, shape=(w2.shape[1],))
        biases = [pool.make("add", moved, biases[0]) if biases else moved]
    product = pool.make("matmul", w1, w2, act="")
    return {result(outer): pool.make("matmul", inner.inputs[0], product, *biases, act=outer["act"])}


def program_of(node: Node) -> tuple[Any, int]:
    """An element-wise operator's program over its operands' places, and its number of steps."""
    if node.kind == "fused":
        return node["program"], program_steps(node["program"])
    return (node.kind, node.attrs, tuple(range(len(node.inputs)))), 1


def _substitute(term: Any, places: Mapping[int, Any]) -> Any:
    if isinstance(term, int):
        return places[term]
    return (term[0], term[1], tuple(_substitute(t, places) for t in term[2]))


def inline(pool: Pool, consumer: Node, producer: Node) -> Ref | None:
    """One kernel for `consumer` with `producer` computed inside of it, None where the program grows too long."""
    operands = list(dict.fromkeys([*producer.inputs, *(r for r in consumer.inputs if r.node is not producer)]))
    place = {r: i for i, r in enumerate(operands)}
    inner = _substitute(program_of(producer)[0], {i: place[r] for i, r in enumerate(producer.inputs)})
    outer = {i: inner if r.node is producer else place[r] for i, r in enumerate(consumer.inputs)}
    program = _substitute(program_of(consumer)[0], outer)
    if program_steps(program) > MAX_PROGRAM:
        return None
    return pool.make("fused", *operands, program=program)


def _fuse_elementwise(dag: Dag, users: Mapping[Ref, list[Node]], node: Node, m: Match) -> Target | None:
    """The producer moves into every operator that reads it, if all are element-wise and nothing else reads it."""
    ref = result(node)
    readers = users.get(ref, [])
    if node.kind in ACTIVATIONS and node.inputs[0].node.kind in _LINEAR and not node.inputs[0].node["act"]:
        return None  # `fuse_activation` puts it into the kernel before
    if not readers or ref in dag.outputs or any(r.kind not in FUSIBLE or r.shape != node.shape for r in readers):
        return None
    target: dict[Ref, Ref] = {}
    moved: dict[Ref, Ref] = {}
    for reader in readers:  # topological, so that a reader of another reader sees the new one
        made = inline(dag.pool, reader, node)
        if made is None:
            return None
        operands = tuple(moved.get(r, r) for r in made.node.inputs)
        if operands != made.node.inputs:
            made = Ref(dag.pool.node("fused", operands, made.node.attrs), 0)
        if made.type != reader.type:
            return None
        target[result(reader)] = moved[result(reader)] = made
    # A reader reached through other operators than the readers themselves would keep the old one alive.
    if len(readers) > 1 and any(_indirect(b, a, readers) for a in readers for b in readers if a is not b):
        return None
    return target


def _indirect(later: Node, earlier: Node, readers: list[Node]) -> bool:
    return any(r.node not in readers and reaches(r, earlier) for r in later.inputs if r.node.inputs)


def _batch_unary(dag: Dag, users: Mapping[Ref, list[Node]], node: Node, m: Match) -> Target | None:
    """The same unary operator on every output of a split moves before the split."""
    kind: str | None = None
    attrs: tuple = ()
    target: dict[Ref, Ref] = {}
    for port in range(len(node.types)):
        readers = users.get(Ref(node, port), [])
        if len(readers) != 1 or len(readers[0].inputs) != 1 or readers[0].kind not in ACTIVATIONS | {"clip"}:
            return None
        if kind is None:
            kind, attrs = readers[0].kind, readers[0].attrs
        if (readers[0].kind, readers[0].attrs) != (kind, attrs) or Ref(node, port) in dag.outputs:
            return None
        target[result(readers[0])] = Ref(node, port)
    assert kind is not None
    moved = dag.pool.make(kind, node.inputs[0], **dict(attrs))
    parts = dag.pool.make("split", moved, **dict(node.attrs)).node
    return {old: Ref(parts, ref.port) for old, ref in target.items()}


def _never(pool: Pool, m: Match) -> Target | None:
    return None


def _left(node: Node) -> Ref:
    return node.inputs[0]


def _right(node: Node) -> Ref:
    return node.inputs[1]


_SUMS = "add sub"
_KERNEL = op("c", frozenset(_LINEAR))
_MATMUL_A, _MATMUL_B, _MATMUL = op("a", "matmul"), op("b", "matmul"), op("c", "matmul")

ALGEBRA_RULES = (
    Rule("fuse_activation", "act(conv(x, w))", "conv(x, w) with act; the same for matmul",
         (op("act", ACTIVATIONS, _KERNEL),), _fuse_activation, integer_exact=True),
    Rule("unfuse_activation", "conv(x, w) with act", "act(conv(x, w)); the same for matmul", (_KERNEL,),
         _unfuse_activation, integer_exact=True),
    Rule("distribute", "a * (b + c)", "a * b + a * c; the same for -", (op("product", "mul", op("sum", _SUMS), None),),
         _distribute, integer_exact=True),
    Rule("reorder_sum", "a + (1 * b - c)", "(a - c) + b, also without the factor one",
         (op("sum", "add", op("difference", "sub"), None),), _reorder_sum, integer_exact=True),
    Rule("factor", "a * b + a * c", "a * (b + c); the same for -", (op("sum", _SUMS, op("a", "mul"), op("b", "mul")),),
         _factor, integer_exact=True),
    Rule("associate", "(a + b) + c", "a + (b + c); the same for *",
         (op("outer", "add mul", op("inner", "add mul"), None),), _associate, integer_exact=True),
    Rule("associate_right", "(a + b) + c", "b + (a + c); the same for *",
         (op("outer", "add mul", op("inner", "add mul"), None),), _associate_right, integer_exact=True),
    Rule("drop_unit", "x * 1, x / 1, x + 0, x - 0", "x", (op("n", "mul div add sub"),), _drop_unit, integer_exact=True),
    Rule("merge_matmuls", "x @ A, x @ B", "split(x @ [A B])", (_MATMUL_A, _MATMUL_B), _merge_columns, _left,
         integer_exact=True),
    Rule("merge_matmul_rows", "A @ w, B @ w", "split([A; B] @ w)", (_MATMUL_A, _MATMUL_B), _merge_rows, _right,
         integer_exact=True),
    Rule("merge_all_rows", "A @ w, B @ w, C @ w, ...", "split([A; B; C; ...] @ w)", (_MATMUL,), _never,
         integer_exact=True, whole_graph=True, context=_merge_all_rows),
    Rule("matmul_bias", "x @ w + c", "matmul(x, w, c), c constant per column", (op("sum", "add", _MATMUL, None),),
         _matmul_bias, integer_exact=True, folds_weights=True),
    Rule("matmul_scale", "(x @ w) * s", "x @ (w * s), s constant per column", (op("product", "mul", _MATMUL, None),),
         _matmul_scale, folds_weights=True),
    Rule("compose_matmuls", "(x @ v) @ w", "x @ (v @ w), both constant",
         (op("outer", "matmul", op("inner", "matmul")),), _compose_matmuls, folds_weights=True),
    Rule("fuse_elementwise", "g(f(x), y), every reader of f(x) element-wise", "one kernel per reader",
         (op("p", FUSIBLE),), _never, integer_exact=True, context=_fuse_elementwise),
    Rule("batch_unary", "f(x0), f(x1), x0, x1 = split(x)", "split(f(x))", (op("s", "split"),), _never,
         integer_exact=True, context=_batch_unary),
)  # fmt: skip
