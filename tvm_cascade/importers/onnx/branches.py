"""ONNX's If without branches at run time: the branch of a known condition, or both and a choice between their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import helper, numpy_helper

from tvm_cascade.importers.onnx.folding import (
    constant_tensor,
    copied,
    static_shapes,
    with_input_shapes,
)
from tvm_cascade.importers.onnx.inlined import inlined


def chosen(model: Any, shapes: Mapping[str, Sequence[int]], at: int) -> Any | None:
    """Copy `model` with the If at `at` replaced by the branch of a known condition, or by both branches and
    a choice between their outputs; None if impossible.
    """
    made = copied(model)
    node = made.graph.node[at]
    branches = {a.name.removesuffix("_branch"): a.g for a in node.attribute if a.HasField("g")}
    condition = _known(model, node.input[0])
    if condition is not None:
        branch = branches.get("then" if condition else "else")
        if branch is None:
            return None
        nodes, results = inlined(made, branch, node.output[0])
        nodes += [helper.make_node("Identity", [r], [o]) for r, o in zip(results, node.output, strict=True)]
    else:
        if len(branches) != 2:
            return None
        parts = {name: inlined(made, graph, f"{node.output[0]}/{name}") for name, graph in branches.items()}
        nodes = [n for inner, _ in parts.values() for n in inner]
        sides = list(zip(parts["then"][1], parts["else"][1], strict=True))
        nodes += [helper.make_node("Where", [node.input[0], *s], [o]) for s, o in zip(sides, node.output, strict=True)]
    rest = [copied(n) for n in made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend([*rest[:at], *nodes, *rest[at + 1 :]])
    if condition is None:
        found = static_shapes(with_input_shapes(made, shapes))
        if any(found.get(a) is None or found[a] != found.get(b) for a, b in sides):
            return None
    return made


def _known(model: Any, name: str) -> bool | None:
    """Return the value of a constant condition."""
    held = {w.name: w for w in model.graph.initializer}
    held |= {n.output[0]: t for n in model.graph.node if (t := constant_tensor(n)) is not None}
    return bool(numpy_helper.to_array(held[name]).any()) if name in held else None
