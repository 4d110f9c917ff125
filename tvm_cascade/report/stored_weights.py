"""Layers with weights in fewer bytes than int8 or float32: a sentence and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tvm_cascade.graph import Graph
from tvm_cascade.report.layers import Layer


def stored_weights(graph: Graph) -> str:
    """Return the forms of weights, the layers of each, and the bytes saved; "" if all weights are as they are."""
    layers = [op for op in graph.ops if op.storage]
    if not layers:
        return ""
    forms = Counter(op.storage for op in layers)
    told = ", ".join(f"{count} layer{'s' * (count != 1)} in {name}" for name, count in forms.items())
    return f"{told}: {sum(op.saved_bytes for op in layers)} bytes of flash fewer than as int8 or float32"


def storage_table(layers: Sequence[Layer]) -> str:
    """Format the layers with weights in fewer bytes, a line each."""
    rows = [x for x in layers if x.storage]
    width = max([9, *(len(x.storage) for x in rows)])
    lines = [f"{'flash bytes':>11} {'fewer':>11} {'stored as':<{width}}  layer"]
    lines += [f"{x.weight_bytes:>11} {x.saved_bytes:>11} {x.storage:<{width}}  {x.name}" for x in rows]
    return "\n".join(lines)
