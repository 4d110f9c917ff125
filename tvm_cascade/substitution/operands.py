"""Helpers of rules: operands indexed by output channel, and merging operators by concatenating such operands.

Output channel o of a convolution reads row o of its weights, output o of a product column o; bias and scales are
indexed by o as well. So several operators on one input can be merged exactly by concatenating these operands (`fuse
conv ops` in Figure 4a of MetaFlow, SysML 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm_cascade.operators.record import Family
from tvm_cascade.operators.shapes import channel_axis
from tvm_cascade.operators.table import OPERATORS
from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.pattern import reaches


def bias_of(node: Node) -> Ref | None:
    """The bias of an unquantized convolution or product, if it has one."""
    return node.inputs[2] if len(node.inputs) > 2 else None


def plus(pool: Pool, a: Ref | None, b: Ref) -> Ref:
    """The sum of a bias, which may be missing, and a vector."""
    return pool.make("add", a, b) if a else b


def other_operand(node: Node, taken: Ref) -> Ref:
    """The operand of a binary operator that is not `taken`."""
    a, b = node.inputs
    return b if a == taken else a


def alike(refs: Iterable[Ref]) -> bool:
    """Whether the operators behind all references are of one kind and have the same attributes."""
    return len({(r.node.kind, r.node.attrs) for r in refs}) == 1


def is_convolution(node: Node) -> bool:
    """Whether the operator is a convolution, of floats or quantized."""
    return OPERATORS[node.kind].family is Family.CONVOLUTION


def weights_axis(node: Node) -> int:
    """The axis of output channels in a convolution's or product's weights."""
    return 0 if is_convolution(node) else len(node.inputs[1].shape) - 1


def output_axis(node: Node) -> int:
    """The axis of output channels in a convolution's or product's result."""
    return channel_axis(node["layout"]) if is_convolution(node) else len(node.shape) - 1


def per_channel(pool: Pool, value: Ref, whole: tuple[int, ...], axis: int) -> Ref | None:
    """A constant that broadcasts to shape `whole` and varies at most along `axis`, as a vector along it; else None."""
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
    """The operands indexed by output channel (weights, bias, scales), each as a tuple over `nodes`.

    A missing bias of an unquantized operator is zeros. None where only some quantized operators have a bias, or types differ.
    """
    if not _operands_agree(nodes):
        return None
    if _bias_may_miss(nodes):
        return [tuple(n.inputs[1] for n in nodes), tuple(bias_of(n) or _zeros(pool, n) for n in nodes)]
    return list(zip(*(n.inputs[1:] for n in nodes), strict=True))


def _operands_agree(nodes: Sequence[Node]) -> bool:
    """Whether `output_operands` has a result."""
    alike = len({len(n.inputs) for n in nodes}) == 1 and len({n.inputs[1].type.dtype for n in nodes}) == 1
    return alike or _bias_may_miss(nodes)


def _bias_may_miss(nodes: Sequence[Node]) -> bool:
    """Whether these are unquantized operators of which some have a bias: the others have zeros."""
    return not OPERATORS[nodes[0].kind].unquantized and any(bias_of(n) for n in nodes)


def mergeable(a: Node, b: Node) -> bool:
    """Whether two convolutions or products of one input are merged exactly into one (`merged_outputs`)."""
    return merge_alike(a, b) and independent(a, b)


def independent(a: Node, b: Node) -> bool:
    """Whether the weights of neither operator are computed from the other's result."""
    return not (reaches(a.inputs[1], b) or reaches(b.inputs[1], a))


def merge_alike(a: Node, b: Node) -> bool:
    """Whether two operators are `mergeable` if they are `independent`, which their signatures tell.

    Output channels are independent, so the operators have to agree only in properties that are not per channel: windows
    and attributes (of quantized ones the quantization of input and output, zero point of the weights, activation).
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
    """Merge two convolutions or products of one input, the outputs of `a` before those of `b`; None where that is not exact."""
    operands = output_operands(pool, (a, b)) if mergeable(a, b) else None
    if operands is None:
        return None
    axis = weights_axis(a)
    joined = [pool.make("concat", *refs, axis=0 if i else axis) for i, refs in enumerate(operands)]
    return pool.like(a, a.inputs[0], *joined)


def _vector_biases(*products: Node) -> bool:
    return all(len(r.shape) == 1 for n in products for r in n.inputs[2:])


def merged_rows(pool: Pool, products: Sequence[Node]) -> Ref | None:
    """Merge products with the same weights into one product of their stacked rows; None where that is not exact."""
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
    """Replacements of the results of `nodes` by the parts of `whole` along an axis."""
    parts = pool.split(whole, axis, (n.shape[axis] for n in nodes))
    return {n.result: part for n, part in zip(nodes, parts, strict=True)}
