"""Attention as one scheduling unit: `softmax(f(q @ k)) @ v`, f being element-wise operators such as a scale and a mask.

As three kernels, attention writes and reads the scores several times, one value per pair of positions; as one kernel,
attention keeps some rows of scores (Dao et al., FlashAttention, NeurIPS 2022, tiles the columns as well; here whole
rows are kept, so their length is limited). Operators put around the products by exporters ride along: transpositions of
q, k, v and the result, scales of q and k, parts of a product that makes all three, repetitions of the heads of k and v,
and views of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvm_cascade.graph import Graph, Op
from tvm_cascade.operators.table import ELEMENTWISE

MOST_COLUMNS = (
    4096  # of a row of scores: rows are kept in 16 KiB, of which a kernel for a GPU has three in shared memory
)
_PART = "strided_slice"  # of a product that makes queries, keys and values
_TRANSPOSITION = "permute_dims"
_NUMBER_BYTES = 4
_REPETITION = "repeat"  # of the keys' and values' heads, for several heads of queries each


def attention_chains(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Find the operators of each attention, by index, ascending: only the last operator's result is read from outside."""
    taken: set[int] = set()
    chains = []
    for op in graph.ops:
        chain = _chain(graph, op) if op.kind == "softmax" else None
        if chain is not None and not taken & chain:
            taken |= chain
            chains.append(tuple(sorted(chain)))
    return tuple(chains)


def _chain(graph: Graph, softmax: Op) -> set[int] | None:
    """Find the attention around a softmax; None if there is none."""
    scores = graph.tensors[softmax.inputs[0]]
    if softmax.attrs.get("axis") != len(scores.shape) - 1 or scores.shape[-1] > MOST_COLUMNS:
        return None
    before = _first_product(graph, softmax)
    behind = _second_product(graph, softmax)
    if before is None or behind is None or scores.dtype != "float32":
        return None
    chain = {softmax.index, *(op.index for op in (*before, *behind))}
    first, second = before[-1], behind[-1]
    if not (_one_for_each(graph, first) and _one_for_each(graph, second)):
        return None
    for t, fits in ((first.inputs[0], _is_elementwise), (first.inputs[1], _is_scale), (second.inputs[1], _is_none)):
        chain |= {op.index for op in _leading(graph, t, fits)}
    last = _reader(graph, second)
    return chain | {last.index} if last is not None and last.kind == _TRANSPOSITION else chain


def _one_for_each(graph: Graph, product: Op) -> bool:
    """Test that a product has a right operand for each left operand: neither is repeated along the leading axes."""
    a, b = (graph.tensors[t].shape for t in product.inputs)
    return len(a) == len(b) and a[:-2] == b[:-2]


def _first_product(graph: Graph, softmax: Op) -> list[Op] | None:
    """Find the operators from a softmax back to the product that computes the scores."""

    def path_to_product(at: Op) -> list[Op]:
        if at.kind == "matmul":
            return [at] if len(set(at.inputs)) == 2 else []
        size = graph.tensors[at.outputs[0]].bytes
        whole = (t for t in dict.fromkeys(at.inputs) if graph.tensors[t].bytes == size)
        inner = (op for t in whole if (op := _inner(graph, t)) is not None)
        path = next((p for op in inner if (p := path_to_product(op))), [])
        return [at, *path] if path else []

    return path_to_product(softmax) or None


def _inner(graph: Graph, t: int) -> Op | None:
    """Return a tensor's producer, if the tensor has a single reader and the producer may stand between an attention's
    products.
    """
    producer = graph.producer[t]
    if producer is None:
        return None
    op = graph.ops[producer]
    fits = op.kind in ELEMENTWISE or op.kind == "matmul" or (op.view and len(op.outputs) == 1)
    return op if fits and _reader(graph, op) is not None else None


def _second_product(graph: Graph, softmax: Op) -> list[Op] | None:
    """Find the operators after a softmax up to the product with the softmax's result as left operand."""
    path, at = [], softmax
    while (reader := _reader(graph, at)) is not None:
        path.append(reader)
        if reader.kind == "matmul":
            fits = reader.inputs[0] == at.outputs[0] and len(set(reader.inputs)) == 2
            return path if fits else None
        if not reader.view or len(reader.outputs) != 1:
            return None
        at = reader
    return None


def _leading(graph: Graph, t: int, fits: Callable[[Op], bool]) -> Iterator[Op]:
    """Yield an operand's transpositions, parts, repetitions, views between them, and operators that fit, from the product back.

    All read the operand alone. Operators otherwise fused with the preceding kernel stay there.
    """
    kept: list[Op] = []
    while (producer := graph.producer[t]) is not None:
        op = graph.ops[producer]
        alone = len(op.inputs) == 1 and _reader(graph, op) is not None
        if not alone or not (_moves(op) or op.view or fits(op)):
            break
        kept.append(op)
        t = op.inputs[0]
    while kept and not _moves(kept[-1]) and (kept[-1].view or _is_epilogue(graph, kept[-1])):
        kept.pop()
    yield from kept


def _moves(op: Op) -> bool:
    return op.kind in (_TRANSPOSITION, _REPETITION, _PART)


def _is_elementwise(op: Op) -> bool:
    return op.kind in ELEMENTWISE


def _is_scale(op: Op) -> bool:
    """Test whether an operator multiplies by a number: keys are packed once for a head, or read by every tile of rows."""
    return op.kind in ("mul", "divide") and op.weight_bytes <= _NUMBER_BYTES


def _is_none(_: Op) -> bool:
    return False


def _is_epilogue(graph: Graph, op: Op) -> bool:
    """Test whether an element-wise operator with a single input is fused with the preceding kernel."""
    producer = graph.producer[op.inputs[0]]
    head = None if producer is None else graph.ops[producer]
    return head is not None and not head.view and _reader(graph, head) is op


def _reader(graph: Graph, op: Op) -> Op | None:
    """Return the only reader of the only result of `op`; None if there are more, or the network returns the result."""
    if len(op.outputs) != 1 or op.outputs[0] in graph.outputs or len(graph.successors[op.index]) != 1:
        return None
    return graph.ops[graph.successors[op.index][0]]
