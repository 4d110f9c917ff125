"""Expand ONNX operators by function bodies, from ONNX itself or from the file.

An operator is expanded if the importer has no converter, or only one for a namesake (`_OF_OTHERS`). The body becomes a
model function, and ONNX's inliner replaces the operator. Bodies that depend on input types need inferred types: the
model's input shapes must be known.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import defs, inliner

from tvm_cascade.errors import LoadError
from tvm_cascade.importers.onnx.folding import copied, with_input_shapes
from tvm_cascade.importers.onnx.inference import inferred
from tvm_cascade.messages import printable

_ROUNDS = 4  # bodies whose operators have bodies
_DOMAIN = "tvm_cascade.function"
_OWN = ("", "ai.onnx")  # ONNX's own domain
_OF_OTHERS = ("Attention",)  # operators that the importer reads as those of com.microsoft
_RANDOM = "RandomUniformLike"  # in bodies of operators that draw numbers, which are refused under their own names


# attributes that split inputs of rank 3, whose bodies compute shapes that are never known where they are left out
_SPLITTING = {"Attention": ("q_num_heads", "kv_num_heads"), "RotaryEmbedding": ("num_heads",)}


def expand_functions(path: Path, model: Any, shapes: Mapping[str, Sequence[int]], known: Container[str]) -> Any:
    """Copy `model` without functions, and with bodies in place of operators not `known`; `shapes` are its
    input shapes. Operators without a body stay.

    Raises
    ------
    LoadError
        Naming an operator that lacks an attribute of `_SPLITTING`.
    """
    if model.functions:
        model = _without_functions(with_input_shapes(model, shapes))
    for _ in range(_ROUNDS):
        opset = max((o.version for o in model.opset_import if o.domain in _OWN), default=1)
        found = [(i, n) for i, n in enumerate(model.graph.node) if _is_expanded(n, known)]
        types = _types(model, shapes) if found else {}
        for _, node in found:
            _check_splitting(path, node, types)
        bodies = {i: body for i, n in found if (body := _body(n, opset, types)) is not None}
        if not bodies:
            return model
        model = _inlined(model, bodies)
    return model


def _is_expanded(node: Any, known: Container[str]) -> bool:
    return node.domain in _OWN and (node.op_type not in known or node.op_type in _OF_OTHERS)


def _check_splitting(path: Path, node: Any, types: Mapping[str, Any]) -> None:
    given = types.get(node.input[0]) if node.input else None
    if given is None or len(given.tensor_type.shape.dim) != 3:
        return
    for name in _SPLITTING.get(node.op_type, ()):
        if not any(a.name == name and a.i > 0 for a in node.attribute):
            named = printable(f"{node.op_type} {node.name}".strip())
            raise LoadError(
                path,
                f"operator {named} of an input of rank 3 without {name} is not supported",
                f"set {name}",
                [node.op_type],
            )


def _types(model: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return the tensor types inferred by ONNX, and the weights' types."""
    try:
        graph = inferred(with_input_shapes(model, shapes))
    except onnx.shape_inference.InferenceError:  # malformed: the importer says where
        return {}
    found = {w.name: onnx.helper.make_tensor_type_proto(w.data_type, list(w.dims)) for w in graph.initializer}
    return found | {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}


def _body(node: Any, opset: int, types: Mapping[str, Any]) -> Any | None:
    """Return the function that computes `node` at an opset, with attribute defaults; None if ONNX has none."""
    if not defs.has(node.op_type, ""):
        return None
    schema: Any = defs.get_schema(node.op_type, opset, "")
    made: bytes = b""
    if schema.has_context_dependent_function and all(i in types for i in node.input if i):
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        given = [types[i].SerializeToString() if i else b"" for i in node.input]
        if versions:
            ask = schema.get_context_dependent_function_with_opset_version
            made = ask(max(versions), node.SerializeToString(), given)
    elif schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        made = schema.get_function_with_opset_version(max(versions)) if versions else b""
    if not made:
        return None
    body = onnx.FunctionProto.FromString(made)
    if any(inner.op_type == _RANDOM for inner in body.node):
        return None
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    required = [name for name in body.attribute if name not in defaults]
    body.attribute_proto.extend(defaults[name] for name in body.attribute if name in defaults)
    del body.attribute[:]
    body.attribute.extend(required)
    return body


def _inlined(model: Any, bodies: Mapping[int, Any]) -> Any:
    """Copy `model` with functions in place of the nodes at the indices in `bodies`."""
    called = copied(model)
    called.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    for at, body in bodies.items():
        node = called.graph.node[at]
        node.domain = body.domain = _DOMAIN
        node.op_type = body.name = f"{node.op_type}_{at}"
        del body.opset_import[:]
        body.opset_import.extend(o for o in model.opset_import)
        called.functions.append(body)
    made = _without_functions(called)
    kept = [o for o in made.opset_import if o.domain != _DOMAIN]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    return made


def _without_functions(model: Any) -> Any:
    """Return `model` with function bodies in place of calls. Missing call attributes get the function's defaults, since
    ONNX's inliner drops references to absent attributes. Changes `model`.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    while nodes:
        node = nodes.pop()
        nodes += [n for a in node.attribute for graph in (a.g, *a.graphs) for n in graph.node]
        if called := functions.get((node.domain, node.op_type, node.overload)):
            given = {a.name for a in node.attribute}
            node.attribute.extend(a for a in called.attribute_proto if a.name not in given)
    return inliner.inline_local_functions(model)
