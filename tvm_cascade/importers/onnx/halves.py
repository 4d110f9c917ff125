"""ONNX networks of 16-bit floats as networks of float32, which kernels compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import TensorProto, numpy_helper

from tvm_cascade.importers.onnx.folding import copied

_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_TYPES = ("to", "dtype")  # attributes that name an element type


def as_floats(model: Any) -> Any:
    """`model` with float32 in place of every type of 16-bit floats, its inputs' and outputs' included; itself without any."""
    made = copied(model)
    graphs = [made.graph, *made.functions]
    found = [_widen(inner) for graph in graphs for inner in _all_graphs(graph)]
    return made if any(found) else model


def _all_graphs(graph: Any) -> Iterator[Any]:
    """A graph or function, and the graphs inside of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _all_graphs(inner)


def _widen(graph: Any) -> bool:
    """Widen the types of one graph in place; returns whether any was of 16 bits."""
    found = False
    for value in (*getattr(graph, "input", ()), *getattr(graph, "output", ()), *graph.value_info):
        if not isinstance(value, str) and value.type.tensor_type.elem_type in _HALVES:
            value.type.tensor_type.elem_type, found = TensorProto.FLOAT, True
    tensors = list(getattr(graph, "initializer", ()))
    for attribute in (a for node in graph.node for a in node.attribute):
        tensors += [attribute.t] if attribute.HasField("t") else []
        if attribute.name in _TYPES and attribute.i in _HALVES:
            attribute.i, found = TensorProto.FLOAT, True
    for tensor in tensors:
        if tensor.data_type in _HALVES:
            data = numpy_helper.to_array(tensor).astype("float32")
            tensor.CopyFrom(numpy_helper.from_array(data, tensor.name))
            found = True
    return found
