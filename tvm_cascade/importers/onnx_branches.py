"""ONNX's If without branches at run time: the branch of a known condition, or both and a choice between their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import helper, numpy_helper

from tvm_cascade.importers.onnx_folding import (
    constant_tensor,
    copied,
    fold_shapes,
    static_shapes,
    tensor_names,
    with_input_shapes,
)

_MOST = 100  # Ifs, of which branches may hold others


def without_branches(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """A copy of `model` without If; `shapes` are those of its inputs. An If stays where its branches' outputs have unknown
    or different shapes and its condition is computed."""
    for _ in range(_MOST):
        if not any(n.op_type == "If" for n in model.graph.node):
            return model
        model = fold_shapes(model, shapes)
        made = next(
            (m for at, n in enumerate(model.graph.node) if n.op_type == "If" and (m := _without(model, shapes, at))),
            None,
        )
        if made is None:
            return model
        model = made
    return model


def _without(model: Any, shapes: Mapping[str, Sequence[int]], at: int) -> Any | None:
    """A copy of `model` with its node at `at`, an If, written out; None where that cannot be."""
    made = copied(model)
    node = made.graph.node[at]
    branches = {a.name.removesuffix("_branch"): a.g for a in node.attribute if a.HasField("g")}
    condition = _known(model, node.input[0])
    if condition is not None:
        chosen = branches.get("then" if condition else "else")
        if chosen is None:
            return None
        nodes, results = _inlined(made, chosen, node.output[0])
        nodes += [helper.make_node("Identity", [r], [o]) for r, o in zip(results, node.output, strict=True)]
    else:
        if len(branches) != 2:
            return None
        parts = {name: _inlined(made, graph, f"{node.output[0]}/{name}") for name, graph in branches.items()}
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
    """The value of a condition that is a constant."""
    held = {w.name: w for w in model.graph.initializer}
    held |= {n.output[0]: t for n in model.graph.node if (t := constant_tensor(n)) is not None}
    return bool(numpy_helper.to_array(held[name]).any()) if name in held else None


def _inlined(model: Any, graph: Any, prefix: str) -> tuple[list[Any], list[str]]:
    """The nodes of a branch with names of their own, and the names of its outputs; its weights become the model's."""
    inner, taken = copied(graph), set(tensor_names(model.graph))
    names = {name for n in inner.node for name in n.output if name} | {w.name for w in inner.initializer}
    while any(f"{prefix}/{name}" in taken for name in names):
        prefix += "_"
    new = {name: f"{prefix}/{name}" for name in names}
    for weight in inner.initializer:
        weight.name = new[weight.name]
        model.graph.initializer.append(weight)
    for node in inner.node:
        _rename(node, new)
    return list(inner.node), [str(new.get(o.name, o.name)) for o in inner.output]


def _rename(node: Any, new: Mapping[str, str]) -> None:
    node.input[:] = [new.get(i, i) for i in node.input]
    node.output[:] = [new.get(o, o) for o in node.output]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {i.name for i in graph.input} | {w.name for w in graph.initializer}
            own |= {o for n in graph.node for o in n.output}
            outer = {a: b for a, b in new.items() if a not in own}
            for inner in graph.node:
                _rename(inner, outer)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)
