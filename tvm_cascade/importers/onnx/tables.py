"""Convert ONNX's window functions and mel filters with constant sizes to constants."""

from __future__ import annotations

from typing import Any

from onnx import numpy_helper

from tvm_cascade.importers.onnx.folding import constant_tensor, copied, evaluated, named

_TABLES = ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix")


def with_tables(model: Any) -> Any:
    """Copy `model` with constants for windows and mel filters whose operands are constants."""
    if not any(n.op_type in _TABLES for n in model.graph.node):
        return model
    made = copied(model)
    held = {w.name: w for w in made.graph.initializer}
    for node in made.graph.node:
        if (tensor := constant_tensor(node)) is not None:
            held[node.output[0]] = named(tensor, node.output[0])
    kept: list[Any] = []
    for node in made.graph.node:
        if node.op_type in _TABLES and held.keys() >= set(node.input):
            table = evaluated([node], node.output[0], [held[name] for name in dict.fromkeys(node.input)], made)
            made.graph.initializer.append(numpy_helper.from_array(table, node.output[0]))
        else:
            kept.append(copied(node))
    del made.graph.node[:]
    made.graph.node.extend(kept)
    return made
