"""Numpy interpreter of substitution graphs, for folding weights after a search and for checking rules in tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvm_cascade.operators import table
from tvm_cascade.operators.record import Array
from tvm_cascade.substitution.dag import Dag, Node, Ref, postorder


def evaluate(refs: Iterable[Ref], values: Mapping[str, Array]) -> dict[Ref, Array]:
    """Compute the arrays for `refs`; `values` holds inputs and weights by name.

    Raises
    ------
    KeyError
        An input or weight is missing.
    NotImplementedError
        An operator without numpy semantics is reached, such as an opaque one.
    """
    refs = tuple(refs)
    arrays: dict[Ref, Array] = {}
    for node in postorder(refs):
        outputs = apply(node, [arrays[r] for r in node.inputs], values)
        for port, value in enumerate(outputs):
            arrays[Ref(node, port)] = value
    return {r: arrays[r] for r in refs}


def run(dag: Dag, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """Return the graph's output arrays, given inputs and weights by name."""
    arrays = evaluate(dag.outputs, values)
    return tuple(arrays[r] for r in dag.outputs)


def apply(node: Node, read: list[Array], values: Mapping[str, Array]) -> tuple[Array, ...]:
    """Return a single operator's output arrays, from its operands' (`read`)."""
    if node.kind in ("input", "weight"):
        return (values[str(node["name"])],)
    return table.evaluate(node.kind, dict(node.attrs), read)
