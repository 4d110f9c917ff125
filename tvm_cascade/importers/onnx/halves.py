"""Rewrite ONNX networks with 16-bit and 8-bit floats as float32 networks, for the kernels, and all as float64 ones, for
references.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from onnx import TensorProto, helper, numpy_helper

from tvm_cascade.importers.onnx.folding import copied

_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SINGLES = (*_HALVES, TensorProto.FLOAT)
_EIGHTS = {
    "FLOAT8E4M3FN": "float8_e4",
    "FLOAT8E4M3FNUZ": "float8_e4",
    "FLOAT8E5M2": "float8_e5",
    "FLOAT8E5M2FNUZ": "float8_e5",
}
_OF_EIGHT = {getattr(TensorProto, name): kind for name, kind in _EIGHTS.items() if hasattr(TensorProto, name)}
_KINDS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16", **_OF_EIGHT}
_TYPES = ("to", "dtype")  # attributes that name an element type


def small_kinds(model: Any) -> set[str]:
    """Return the kinds of small floats among a model's constants (`small_floats.KINDS`).

    Some 8-bit floats have no kind: NaN, and the largest number under the other bias, are in float16.
    """
    graphs = [inner for graph in (model.graph, *model.functions) for inner in _all_graphs(graph)]
    found = {_KINDS[t.data_type] for graph in graphs for t in _constants(graph) if t.data_type in _KINDS}
    return found | ({"float16"} if any("float8" in kind for kind in found) else set())


def as_floats(model: Any, eights: bool = False) -> Any:
    """Return `model` with float32 in place of all 16-bit floats, inputs and outputs included, and `eights` in place of
    8-bit constants, which is invalid ONNX; `model` itself if unchanged.
    """
    made = copied(model)
    graphs = [made.graph, *made.functions]
    found = [_widen(inner, _HALVES, TensorProto.FLOAT, eights) for graph in graphs for inner in _all_graphs(graph)]
    return made if any(found) else model


def as_doubles(model: Any) -> Any:
    """Copy `model` with float64 in place of all 16-bit and 32-bit floats, inputs and outputs included.

    Operators that ONNX has not for float64 make this invalid ONNX; an evaluator in Python may compute it.
    """
    made = copied(model)
    for graph in (made.graph, *made.functions):
        for inner in _all_graphs(graph):
            _widen(inner, _SINGLES, TensorProto.DOUBLE, False)
    return made


def _all_graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph or function, and its nodes' inner graphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _all_graphs(inner)


def _widen(graph: Any, small: Collection[int], wide: int, eights: bool) -> bool:
    """Widen the types `small` in a single graph to `wide` in place; return True if any changed."""
    found = False
    for value in (*getattr(graph, "input", ()), *getattr(graph, "output", ()), *graph.value_info):
        if not isinstance(value, str) and value.type.tensor_type.elem_type in small:
            value.type.tensor_type.elem_type, found = wide, True
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.name in _TYPES and attribute.i in small:
            attribute.i, found = wide, True
    quantizing = {name for node in graph.node if node.op_type == "QuantizeLinear" for name in node.input}
    for tensor in _constants(graph):
        eight = eights and tensor.data_type in _OF_EIGHT and tensor.name not in quantizing
        if tensor.data_type in small or eight:
            data = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(wide))
            tensor.CopyFrom(numpy_helper.from_array(data, tensor.name))
            found = True
    return found


def _constants(graph: Any) -> list[Any]:
    """Return the tensors that a graph or function holds."""
    inline = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    return [*getattr(graph, "initializer", ()), *inline]
