"""Remove empty tensors from ONNX graphs: operator bodies split off a possibly empty rest, and concatenate it again.

So does torch's roll, by slices: of as many elements as an axis has, one is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm_cascade.importers.onnx.folding import static_shapes, with_input_shapes
from tvm_cascade.importers.onnx.graph import read_names


def without_empty(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Return `model` without empty tensors in Concats, with a copy in place of each Split into one non-empty tensor,
    and without unread nodes; `model` itself if unchanged.
    """
    joins = [n for n in model.graph.node if n.op_type == "Concat"]
    if not any(n.op_type in ("Slice", "Split") for n in model.graph.node) or not joins:
        return model
    made = with_input_shapes(model, shapes)
    empty = {name for name, shape in static_shapes(made).items() if prod(shape) == 0}
    joins = [n for n in made.graph.node if n.op_type == "Concat" and not empty.isdisjoint(n.input)]
    joins = [n for n in joins if not empty.issuperset(n.input)]
    if not joins:
        return model
    for node in joins:
        node.input[:] = [name for name in node.input if name not in empty]
    for node in made.graph.node:
        kept = [name for name in node.output if name not in empty]
        if node.op_type == "Split" and len(kept) == 1 < len(node.output):
            node.op_type, node.input[:], node.output[:] = "Identity", node.input[:1], kept
            del node.attribute[:]
    _drop_unread(made.graph)
    return made


def _drop_unread(graph: Any) -> None:
    """Remove nodes of which nothing reads an output, in place."""
    while True:
        read = {o.name for o in graph.output} | {name for n in graph.node for name in read_names(n)}
        unread = [n for n in graph.node if read.isdisjoint(n.output)]
        if not unread:
            return
        for node in unread:
            graph.node.remove(node)
