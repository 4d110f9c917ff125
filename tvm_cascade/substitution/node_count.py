"""Count an exported graph's nodes after an ONNX runtime's fusions."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_cascade.operators.elementwise import program_steps
from tvm_cascade.operators.table import ACTIVATIONS, CONVOLUTIONS
from tvm_cascade.substitution.dag import Dag, Node, Ref

_FOLDED = frozenset({"add", "mul", "batch_norm"})  # into the weights of the convolution before, where constant
_ACTIVATIONS = ACTIVATIONS | {"clip"}


def runtime_nodes(dag: Dag) -> int:
    """Count nodes after ONNX Runtime's extended level, for convolutions: biases, scales and activations are fused.

    Each step in an elementwise kernel is a node there, and so is a view.
    """
    readers = dag.users()
    fused: set[Node] = set()
    count = 0
    for node in dag.nodes:
        if _is_fused(dag, readers, node, fused):
            fused.add(node)
        else:
            count += program_steps(node["program"]) if node.kind == "fused" else 1
    return count


def _is_fused(dag: Dag, readers: Mapping[Ref, list[Node]], node: Node, fused: set[Node]) -> bool:
    """Return True if a runtime fuses an operator with its convolution, or with a fused operator behind one."""
    if node.kind not in _FOLDED | _ACTIVATIONS:
        return False
    read = [r for r in node.inputs if not r.node.constant]
    if len(read) != 1 or len(readers[read[0]]) != 1 or read[0] in dag.outputs:
        return False
    before = read[0].node
    return before in fused or (before.kind in CONVOLUTIONS and not before["act"])
