"""Inline graphs inside ONNX nodes (branches, loop bodies) into the model's graph, under fresh names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from tvm_cascade.importers.onnx.folding import constant_tensor, copied, tensor_names
from tvm_cascade.tensor_spec import free_name


def inlined(
    model: Any,
    graph: Any,
    prefix: str,
    given: Mapping[str, str] = MappingProxyType({}),
    taken: Collection[str] | None = None,
) -> tuple[list[Any], list[str]]:
    """Return an inner graph's nodes under fresh names, and its output names; the weights become the model's. `given`
    are the model's tensors for its inputs, `taken` the model's names with the same prefix.
    """
    inner, taken = copied(graph), set(tensor_names(model.graph)) if taken is None else taken
    names = {name for n in inner.node for name in n.output if name} | {w.name for w in inner.initializer}
    while any(f"{prefix}/{name}" in taken for name in names):
        prefix += "_"
    new = {**given, **{name: f"{prefix}/{name}" for name in names}}
    for weight in inner.initializer:
        weight.name = new[weight.name]
        model.graph.initializer.append(weight)
    for node in inner.node:
        _rename(node, new)
    return list(inner.node), [str(new.get(o.name, o.name)) for o in inner.output]


def without_weights(model: Any, graph: Any, prefix: str) -> Any:
    """Copy a graph with its weights moved to the model, once for all inlined copies."""
    inner, taken, new = copied(graph), set(tensor_names(model.graph)), dict[str, str]()
    held = {n.output[0]: t for n in inner.node if (t := constant_tensor(n)) is not None}
    for name, tensor in [*((w.name, w) for w in inner.initializer), *held.items()]:
        new[name] = free_name(f"{prefix}/{name}", taken)
        taken.add(new[name])
        model.graph.initializer.append(tensor)
        model.graph.initializer[-1].name = new[name]
    kept = [copied(n) for n in inner.node if n.output[0] not in held]
    del inner.initializer[:], inner.node[:]
    inner.node.extend(kept)
    for node in inner.node:
        _rename(node, new)
    for value in inner.output:
        value.name = new.get(value.name, value.name)
    return inner


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
