"""Substitution rules that merge matrix products with differing inputs: a mixture's experts, branches with equal shapes.

`sum_of_products` merges gated experts in a sum: a single product replaces all last products, with a reduction over all.
`batch_products` batches equal shapes: one kernel for all (a grouped product in MegaBlocks, Gale et al., MLSys 2023,
section 4, with equal groups). Both join distant operators, so they see the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref
from tvm_cascade.substitution.pattern import Rule, Target, exact, op, reaches

Readers = Mapping[Ref, list[Node]]


def _terms(dag: Dag, readers: Readers, total: Node) -> Iterator[Ref]:
    """Yield a sum's terms: operands of `total`, and of its nested sums with equal type and no other reader."""
    for operand in total.inputs:
        if operand.node.kind == "add" and operand.type == total.type and _only_read_once(dag, readers, operand):
            yield from _terms(dag, readers, operand.node)
        else:
            yield operand


def _only_read_once(dag: Dag, readers: Readers, ref: Ref) -> bool:
    return len(readers.get(ref, ())) == 1 and ref not in dag.outputs


def _factors(dag: Dag, readers: Readers, term: Ref) -> tuple[Ref, Ref] | None:
    """Return A and w for a term `A @ w`, or for `(A @ w) * g` with one g per row, as `A * g` and w; None for other
    terms.
    """
    if not _only_read_once(dag, readers, term):
        return None
    node, gate = term.node, None
    if node.kind == "mul" and len(set(node.inputs)) == 2:
        gates = [r for r in node.inputs if r.shape[-1:] == (1,)]
        if len(gates) != 1:
            return None
        (gate,) = gates
        (product,) = (r for r in node.inputs if r != gate)
        if product.type != term.type or not _only_read_once(dag, readers, product):
            return None
        node = product.node
    if node.kind != "matmul" or len(node.inputs) != 2 or node["act"] or not _is_weight(node.inputs[1]):
        return None
    rows, weights = node.inputs
    scaled = rows if gate is None else dag.pool.make("mul", rows, gate)
    return (scaled, weights) if scaled.type == rows.type else None


def _is_weight(ref: Ref) -> bool:
    return ref.node.constant and len(ref.shape) == 2


def _sum_of_products(dag: Dag, readers: Readers, total: Node) -> Target:
    above = readers.get(total.result, [])
    if len(above) == 1 and above[0].kind == "add" and above[0].type == total.type and total.result not in dag.outputs:
        return None  # a part of a longer sum
    terms = list(_terms(dag, readers, total))
    found = [
        (t, f) for t in dict.fromkeys(terms) if terms.count(t) == 1 and (f := _factors(dag, readers, t)) is not None
    ]
    found = [(t, f) for t, f in found if f[0].type.dtype == total.type.dtype and t.type == total.type]
    if len(found) < 2:
        return None
    pool, factors = dag.pool, [f for _, f in found]
    wide = pool.make("concat", *(a for a, _ in factors), axis=len(total.shape) - 1)
    whole = pool.make("matmul", wide, pool.make("concat", *(w for _, w in factors), axis=0), act="")
    joined = {t for t, _ in found}
    for term in terms:
        if term not in joined:
            whole = pool.make("add", whole, term)
    return whole if whole.type == total.type else None


def _batch_products(dag: Dag, readers: Readers, c: Node) -> Target:
    own = _class(c)
    alike = (n for n in dag.nodes if n.kind == "matmul" and _is_weight(n.inputs[1]) and _class(n) == own)
    if next(alike, None) is not c:
        return None
    chosen = [c]
    for n in alike:
        if not any(reaches(n.inputs[0], m) for m in chosen):
            chosen.append(n)
    if len({n.inputs[0] for n in chosen}) < 2:
        return None  # products of one input are merged by columns
    pool, rows = dag.pool, prod(c.shape[:-1])
    left = _stacked(pool, (n.inputs[0] for n in chosen), rows, c.inputs[0].shape[-1])
    right = _stacked(pool, (n.inputs[1] for n in chosen), *c.inputs[1].shape)
    whole = pool.make("matmul", left, right, act="")
    if len(c.inputs) > 2:
        whole = pool.make("add", whole, _stacked(pool, (n.inputs[2] for n in chosen), 1, c.shape[-1]))
    if c["act"]:
        whole = pool.make(str(c["act"]), whole)
    parts = pool.split(whole, 0, [1] * len(chosen))
    return {n.result: pool.make("reshape", part, shape=n.shape) for n, part in zip(chosen, parts, strict=True)}


def _class(product: Node) -> tuple[object, ...]:
    """Return the properties shared by products in one batch; biases are vectors with one element per column."""
    biases = tuple(r.shape == (product.shape[-1],) for r in product.inputs[2:])
    return (product.inputs[0].type, product.inputs[1].type, product.attrs, biases if all(biases) else product)


def _stacked(pool: Pool, refs: Iterator[Ref], *shape: int) -> Ref:
    """Return equally shaped tensors as a single batch of matrices with shape `shape`."""
    return pool.make("concat", *(pool.make("reshape", r, shape=(1, *shape)) for r in refs), axis=0)


PRODUCT_RULES = (
    Rule("sum_of_products", "a @ A + (b @ B) * g + ..., g one value a row", "concat(a, b * g, ...) @ [A; B; ...]",
         (op("total", "add"),), _sum_of_products, whole_graph=True, sees_readers=True),
    exact("batch_products", "a @ A, b @ B, ... of equal shapes", "parts of batch(a, b, ...) @ batch(A, B, ...)",
          (op("c", "matmul"),), _batch_products, whole_graph=True, sees_readers=True, grows=True),
)  # fmt: skip
