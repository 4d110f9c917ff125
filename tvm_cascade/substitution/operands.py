"""Helpers for rules: operands indexed by output channel, and operator merges by concatenated operands.

Output channel o in a convolution reads row o of its weights, in a product column o; bias and scales are indexed alike.
So several operators on one input merge exactly by concatenation (`fuse conv ops` in Figure 4a in MetaFlow, SysML 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm_cascade.operators.record import Family
from tvm_cascade.operators.shapes import channel_axis
from tvm_cascade.operators.table import OPERATORS
from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.pattern import reaches


def bias_of(node: Node) -> Ref | None:
    """Return an unquantized convolution's or product's bias, if present."""
    return node.inputs[2] if len(node.inputs) > 2 else None


def plus(pool: Pool, a: Ref | None, b: Ref) -> Ref:
    """Return the sum of an optional bias and a vector."""
    return pool.make("add", a, b) if a else b


def other_operand(node: Node, taken: Ref) -> Ref:
    """Return a binary operator's operand besides `taken`."""
    a, b = node.inputs
    return b if a == taken else a


def alike(refs: Iterable[Ref]) -> bool:
    """Return True if all references come from operators with equal kind and attributes."""
    return len({(r.node.kind, r.node.attrs) for r in refs}) == 1


def is_convolution(node: Node) -> bool:
    """Return True for a convolution, float or quantized."""
    return OPERATORS[node.kind].family is Family.CONVOLUTION


def weights_axis(node: Node) -> int:
    """Return the output-channel axis in a convolution's or product's weights."""
    return 0 if is_convolution(node) else len(node.inputs[1].shape) - 1


def output_axis(node: Node) -> int:
    """Return the output-channel axis in a convolution's or product's result."""
    return channel_axis(node["layout"]) if is_convolution(node) else len(node.shape) - 1


def per_channel(pool: Pool, value: Ref, whole: tuple[int, ...], axis: int) -> Ref | None:
    """Return a constant that broadcasts to shape `whole` and varies at most along `axis`, as a vector; else None."""
    shape = (1,) * (len(whole) - len(value.shape)) + value.shape
    if not value.node.constant or len(shape) != len(whole) or any(n != 1 for i, n in enumerate(shape) if i != axis):
        return None
    flat = pool.make("reshape", value, shape=(shape[axis],))
    if shape[axis] == whole[axis]:
        return flat
    ones = pool.make("full", types=(((whole[axis],), value.type.dtype),), value=1)
    return pool.make("mul", flat, ones) if shape[axis] == 1 else None


def _zeros(pool: Pool, node: Node) -> Ref:
    return pool.make("full", types=(((node.shape[output_axis(node)],), node.type.dtype),), value=0)


def output_operands(pool: Pool, nodes: Sequence[Node]) -> list[tuple[Ref, ...]] | None:
    """Return the operands indexed by output channel (weights, bias, scales), each as a tuple over `nodes`.

    A missing bias on an unquantized operator becomes zeros. Return None if only some quantized operators have a bias,
    or types differ.
    """
    if not _operands_agree(nodes):
        return None
    if _bias_may_miss(nodes):
        return [tuple(n.inputs[1] for n in nodes), tuple(bias_of(n) or _zeros(pool, n) for n in nodes)]
    return list(zip(*(n.inputs[1:] for n in nodes), strict=True))


def _operands_agree(nodes: Sequence[Node]) -> bool:
    """Return True if `output_operands` has a result."""
    alike = len({len(n.inputs) for n in nodes}) == 1 and len({n.inputs[1].type.dtype for n in nodes}) == 1
    return alike or _bias_may_miss(nodes)


def _bias_may_miss(nodes: Sequence[Node]) -> bool:
    """Return True for unquantized operators of which some have a bias: the rest get zeros."""
    return not OPERATORS[nodes[0].kind].unquantized and any(bias_of(n) for n in nodes)


def mergeable(a: Node, b: Node) -> bool:
    """Return True if two convolutions or products on a single input merge exactly (`merged_outputs`)."""
    return merge_alike(a, b) and independent(a, b)


def independent(a: Node, b: Node) -> bool:
    """Return True if neither operator's weights depend on the other's result."""
    return not (reaches(a.inputs[1], b) or reaches(b.inputs[1], a))


def merge_alike(a: Node, b: Node) -> bool:
    """Return True if two operators are `mergeable` once `independent`, judged by signature.

    Output channels are independent, so operators have to agree only in properties not per channel: windows and
    attributes (for quantized ones input and output quantization, weight zero point, activation).
    """
    wa, wb, axis = a.inputs[1], b.inputs[1], weights_axis(a)
    if a.attrs != b.attrs or a.get("groups", 1) != 1 or wa.type.dtype != wb.type.dtype:
        return False
    if wa.shape[:axis] + wa.shape[axis + 1 :] != wb.shape[:axis] + wb.shape[axis + 1 :]:
        return False
    if OPERATORS[a.kind].unquantized and not all(r.node.constant for n in (a, b) for r in n.inputs[1:]):
        return False
    if a.kind == "matmul" and (wa.shape[:-2] not in ((), a.shape[:-2]) or not _vector_biases(a, b)):
        return False
    return _operands_agree((a, b))


def merged_outputs(pool: Pool, a: Node, b: Node) -> Ref | None:
    """Merge two convolutions or products on a single input, the outputs of `a` first; None if inexact."""
    operands = output_operands(pool, (a, b)) if mergeable(a, b) else None
    if operands is None:
        return None
    axis = weights_axis(a)
    joined = [pool.make("concat", *refs, axis=0 if i else axis) for i, refs in enumerate(operands)]
    return pool.like(a, a.inputs[0], *joined)


def _vector_biases(*products: Node) -> bool:
    return all(len(r.shape) == 1 for n in products for r in n.inputs[2:])


def merged_rows(pool: Pool, products: Sequence[Node]) -> Ref | None:
    """Merge products with equal weights into a single product of stacked rows; None if inexact."""
    first = products[0]
    rows = dict.fromkeys(n.inputs[0] for n in products)
    if any(n.attrs != first.attrs or n.inputs[1:] != first.inputs[1:] for n in products) or len(rows) != len(products):
        return None
    if any(len(r.shape) != 2 for r in (*rows, first.inputs[1])) or len({r.type.dtype for r in rows}) != 1:
        return None
    if not _vector_biases(first) or any(reaches(n.inputs[0], m) for n in products for m in products if n is not m):
        return None
    return pool.like(first, pool.make("concat", *rows, axis=0), *first.inputs[1:])


def parts_for(pool: Pool, whole: Ref, axis: int, nodes: Sequence[Node]) -> dict[Ref, Ref]:
    """Return replacements for `nodes`' results: `whole`'s parts along an axis."""
    parts = pool.split(whole, axis, (n.shape[axis] for n in nodes))
    return {n.result: part for n, part in zip(nodes, parts, strict=True)}
