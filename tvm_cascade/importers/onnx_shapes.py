"""Sizes that an ONNX graph computes from the shapes of its tensors, as constants, once the sizes of its inputs are known.

PyTorch's exporters write them for every size that was dynamic (`view(n, -1, h * w)`): Shape, arithmetic, Concat. The
importer knows some of their forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

_ROUNDS = 8  # of inference, each of which knows the shapes that the one before made constant
_LARGEST = 64  # elements of what is computed here: sizes, and never weights
_ARITHMETIC = frozenset(
    (
        *("Add", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor", "Gather", "Greater"),
        *("Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg", "Not", "ReduceProd", "Reshape", "Slice", "Squeeze"),
        *("Sub", "Unsqueeze", "Where"),
    )
)
_GROWING = ("ConstantOfShape", "Expand")  # to the shape that their last operand is


def copied(message: Any) -> Any:
    """A copy of a model or tensor."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def evaluated(nodes: Sequence[Any], name: str, constants: Sequence[Any], model: Any) -> np.ndarray:
    """The tensor `name` that nodes of `model` compute from constants."""
    result = helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None)
    part = helper.make_graph(nodes, "constant", [], [result], constants)
    whole = helper.make_model(part, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    evaluator: Any = ReferenceEvaluator(whole)
    return np.asarray(evaluator.run(None, {})[0])


def constant_tensor(node: Any) -> Any | None:
    """The tensor of a Constant node that is given as one; None for any other node."""
    given = node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value"
    return node.attribute[0].t if given else None


def fold_shapes(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """A copy of `model` without the arithmetic of sizes; `shapes` are those of its inputs."""
    if not any(n.op_type == "Shape" for n in model.graph.node):
        return model
    made = copied(model)
    for value in made.graph.input:
        if value.name in shapes:
            dims = [onnx.TensorShapeProto.Dimension(dim_value=int(d)) for d in shapes[value.name]]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    del made.graph.value_info[:]
    for _ in range(_ROUNDS):
        if not _folded(made):
            break
    return made


def _folded(model: Any) -> bool:
    """Whether a node of `model` became a constant."""
    graph = model.graph
    known = _shapes(model)
    tensors = {w.name: w for w in graph.initializer}
    tensors |= {n.output[0]: t for n in graph.node if (t := constant_tensor(n)) is not None}
    small = {name: t for name, t in tensors.items() if int(np.prod(t.dims, dtype="int64")) <= _LARGEST}
    kept = []
    for node in graph.node:
        data = _value(node, known, small, model)
        if data is None or data.size > _LARGEST or node.output[0] in {o.name for o in graph.output}:
            kept.append(node)
            continue
        small[node.output[0]] = numpy_helper.from_array(data, node.output[0])
        graph.initializer.append(small[node.output[0]])
    changed = len(kept) < len(graph.node)
    if changed:
        del graph.node[:]
        graph.node.extend(kept)
    return changed


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The static shapes that ONNX infers."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError:  # malformed: the importer says where
        return {}
    found = {w.name: tuple(int(d) for d in w.dims) for w in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            found[value.name] = tuple(int(d.dim_value) for d in kind.shape.dim)
    return found


def _value(node: Any, shapes: Mapping[str, tuple[int, ...]], small: Mapping[str, Any], model: Any) -> np.ndarray | None:
    """What a node computes from sizes alone; None for any other."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if node.op_type == "Shape":
        shape = shapes.get(node.input[0])
        at = {a.name: a.i for a in node.attribute}
        return None if shape is None else np.array(shape[at.get("start", 0) : at.get("end", len(shape))], "int64")
    given = [i for i in node.input if i]
    if node.op_type not in _ARITHMETIC or not given or any(i not in small for i in given):
        return None
    if node.op_type in _GROWING:
        target = numpy_helper.to_array(small[given[-1]]).astype("float64")
        if np.abs(target).prod() > _LARGEST:
            return None
    try:
        return evaluated([node], node.output[0], [_named(small[i], i) for i in dict.fromkeys(given)], model)
    except Exception:  # malformed: the importer says so
        return None


def _named(tensor: Any, name: str) -> Any:
    copy = copied(tensor)
    copy.name = name
    return copy
