"""Cuts of ONNX graphs: the nodes, inputs, outputs and weights that are left between named values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import onnx

from tvm_cascade.errors import UsageError
from tvm_cascade.importers.cut import CutOut, FileGraph, Node, Remedy, behind, cut_out, until_in_front
from tvm_cascade.importers.onnx.folding import copied
from tvm_cascade.importers.onnx.graph import read_names
from tvm_cascade.importers.onnx.inference import inferred
from tvm_cascade.importers.onnx.qoperators import spell_out
from tvm_cascade.messages import printable
from tvm_cascade.tensor_spec import Cut


def cut_onnx(model: Any, cut: Cut) -> Any:
    """Copy `model` with its graph cut. Raises `UsageError` for unknown values."""
    kept = cut_out(graph_of(model), cut)
    made = copied(model)
    nodes = [copied(made.graph.node[i]) for i in kept.nodes]
    _replace(made.graph.node, nodes)
    read = {name for node in nodes for name in read_names(node)} | {*kept.outputs}
    _replace(made.graph.initializer, [copied(w) for w in made.graph.initializer if w.name in read])
    weights = {w.name for w in made.graph.initializer}
    types = _types(model)
    listed = [copied(i) for i in made.graph.input if i.name in weights]
    _replace(made.graph.input, [*_inputs(kept, types), *listed])
    _replace(made.graph.output, [_output(name, types) for name in kept.outputs])
    return made


def graph_of(model: Any) -> FileGraph:
    """Return a model's graph: its nodes in order, with the values read by each node or its inner graphs."""
    weights = {w.name for w in model.graph.initializer}
    given = tuple(i.name for i in model.graph.input if i.name not in weights)
    active = {*given, *(o for n in model.graph.node for o in n.output)}
    nodes = [
        Node(tuple(sorted(read_names(n) & active)), tuple(o for o in n.output if o), n.op_type)
        for n in model.graph.node
    ]
    return FileGraph(tuple(nodes), given, tuple(o.name for o in model.graph.output))


def until_before(given: Any, model: Any, refused: Collection[int]) -> Remedy:
    """Return the remedy that cuts the file's network `given` before these `model` nodes, which the importer made
    from `given`.
    """
    graph = graph_of(given)
    return until_in_front(graph, behind(graph_of(model), refused))


def _types(model: Any) -> dict[str, Any]:
    """Return the known value types, declared in the file or inferred by ONNX."""
    try:
        found = inferred(spell_out(model))
    except Exception:  # of many types: malformed models are refused where they are read
        found = model.graph
    return {v.name: v for graph in (model.graph, found) for v in (*graph.input, *graph.value_info, *graph.output)}


def _inputs(kept: CutOut, types: dict[str, Any]) -> Iterator[Any]:
    for name in kept.inputs:
        if name not in types or not types[name].type.tensor_type.HasField("shape"):
            raise UsageError(
                f"--from {printable(name)}: neither the file nor ONNX knows its type; name a value in front of it"
            )
        yield copied(types[name])


def _output(name: str, types: dict[str, Any]) -> Any:
    return copied(types[name]) if name in types else onnx.ValueInfoProto(name=name)


def _replace(field: Any, values: Iterable[Any]) -> None:
    del field[:]
    field.extend(values)
