"""What a graph computes, in numpy: folds weights after a search and proves rules in tests. Slow and plain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvm_cascade.operators import table
from tvm_cascade.operators.record import Array
from tvm_cascade.substitution.dag import Dag, Node, Ref, postorder


def evaluate(refs: Iterable[Ref], values: Mapping[str, Array]) -> dict[Ref, Array]:
    """Arrays of `refs`; `values` holds those of inputs and weights by name.

    Raises
    ------
    KeyError
        An input or weight is missing.
    NotImplementedError
        An opaque operator is reached.
    """
    refs = tuple(refs)
    made: dict[Ref, Array] = {}
    for node in postorder(refs):
        outputs = apply(node, [made[r] for r in node.inputs], values)
        for port, value in enumerate(outputs):
            made[Ref(node, port)] = value
    return {r: made[r] for r in refs}


def run(dag: Dag, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """The graph's outputs."""
    made = evaluate(dag.outputs, values)
    return tuple(made[r] for r in dag.outputs)


def apply(node: Node, read: list[Array], values: Mapping[str, Array]) -> tuple[Array, ...]:
    """Outputs of one operator from its operands."""
    if node.kind in ("input", "weight"):
        return (values[str(node["name"])],)
    return table.evaluate(node.kind, dict(node.attrs), read)
