"""Fold constants in ONNX graphs: computed sizes and operands become constants.

Sizes follow from tensor shapes, once the input shapes are known. PyTorch's exporters compute every dynamic size in the
graph (`view(n, -1, h * w)`) by Shape, arithmetic and Concat, partly in forms without importer support.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvm_cascade.importers.onnx.inference import inferred
from tvm_cascade.tensor_spec import free_name

_ROUNDS = 256  # of shape inference, most: each can use the sizes that the one before made constant, block after block
_LARGEST = 64  # elements of a folded value: sizes, never weights
_ARITHMETIC = frozenset(
    (
        *("Add", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor", "Gather", "Greater"),
        *("Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Range", "ReduceProd", "Reshape", "Slice"),
        *("Squeeze", "Sub", "Transpose", "Unsqueeze", "Where"),
    )
)
_COUNTED_OTHERWISE = ("AveragePool", "ConvTranspose", "LpPool", "MaxPool", "Resize", "Upsample")
_GROWING = ("ConstantOfShape", "Expand")  # operators whose last operand is their output's shape
_CONSTANT = frozenset(  # must have constant later operands
    ("Pad", "Clip", "Tile", "Pow", "Resize", "Upsample", "QuantizeLinear", "DequantizeLinear")
)
_STORED = ("QuantizeLinear", "DynamicQuantizeLinear")  # of weights, must be constant
_MOST_NODES = 100  # nodes that may compute one operand


def copied(message: Any) -> Any:
    """Copy a model or tensor."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def tensor_names(graph: Any) -> Iterator[str]:
    """Yield all tensor names in a graph and its inner graphs."""
    yield from (value.name for values in (graph.input, graph.initializer) for value in values)
    for node in graph.node:
        yield from node.output
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from tensor_names(inner)


def evaluated(nodes: Sequence[Any], name: str, constants: Sequence[Any], model: Any) -> np.ndarray:
    """Evaluate the tensor `name`, which `nodes` of `model` compute from `constants` (initializers)."""
    result = helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None)
    part = helper.make_graph(nodes, "constant", [], [result], constants)
    whole = helper.make_model(part, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    evaluator: Any = ReferenceEvaluator(whole)
    return np.asarray(evaluator.run(None, {})[0])


def constant_tensor(node: Any) -> Any | None:
    """Return the tensor in a Constant node's attribute `value`; None for other nodes and attributes."""
    given = node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value"
    return node.attribute[0].t if given else None


def fold_shapes(
    model: Any, shapes: Mapping[str, Sequence[int]], computed: Mapping[str, tuple[int, ...]] | None = None
) -> Any:
    """Copy `model` with computed sizes folded to constants; `shapes` are its input shapes, `computed` shapes of
    tensors in place of those inferred.
    """
    held = {w.name for w in model.graph.initializer} | {
        n.output[0] for n in model.graph.node if constant_tensor(n) is not None
    }
    if not any(
        n.op_type in ("Shape", "Size") or (n.op_type in _ARITHMETIC and held.issuperset(n.input))
        for n in model.graph.node
    ):
        return model
    made = with_input_shapes(model, shapes)
    for _ in range(_ROUNDS):
        if not _folded(made, computed or {}):
            break
    return made


def with_input_shapes(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Copy `model` with these input shapes, and without shapes for inner tensors."""
    made = copied(model)
    for value in made.graph.input:
        if value.name in shapes:
            dims = [onnx.TensorShapeProto.Dimension(dim_value=int(d)) for d in shapes[value.name]]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    del made.graph.value_info[:]
    return made


def sized_tensors(model: Any, folded: Any) -> list[str]:
    """Return the tensors of Shape and Size nodes in `model` that are constants in `folded`."""
    kept = {o for n in folded.graph.node for o in n.output}
    nodes = [n for n in model.graph.node if n.op_type in ("Shape", "Size") and n.input]
    return [n.input[0] for n in nodes if kept.isdisjoint(n.output)]


def computed_shape(model: Any, shapes: Mapping[str, Sequence[int]]) -> tuple[int, str] | None:
    """Return the position of the first operator with an output shape that depends on values, and a sentence about it;
    None if ONNX infers every shape from the input shapes `shapes`.
    """
    known = static_shapes(with_input_shapes(model, shapes))
    for at, node in enumerate(model.graph.node):
        if node.output[0] not in known and node.op_type != "Constant":
            of_onnx = node.domain in ("", "ai.onnx")
            return (at, f"operator {node.op_type} has an output whose shape depends on values") if of_onnx else None
    return None


def counted_otherwise(model: Any) -> list[str]:
    """Return the results of operators whose extents ONNX's inference counts otherwise than ONNX Runtime: in other precision,
    or with other padding.
    """
    return [o for n in model.graph.node if n.op_type in _COUNTED_OTHERWISE for o in n.output if o]


def inferred_output(
    model: Any, shapes: Mapping[str, Sequence[int]], name: str, computed: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """Return an output's shape, inferred by ONNX from the input shapes `shapes` and the types of `computed` tensors,
    regardless of the declared shape; None if it depends on values.
    """
    made = with_input_shapes(model, shapes)
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    nodes = [n for n in made.graph.node if not any(o in computed for o in n.output)]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.input.extend(computed.values())
    return static_shapes(made).get(name)


def _folded(model: Any, computed: Mapping[str, tuple[int, ...]]) -> bool:
    """Fold nodes in `model` in place, in a single pass; return True if any became a constant."""
    graph = model.graph
    known = static_shapes(model) | dict(computed)
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


def static_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the static shapes, inferred as in `inference`."""
    try:
        graph = inferred(model)
    except onnx.shape_inference.InferenceError:  # malformed: the importer says where
        return {}
    found = {w.name: tuple(int(d) for d in w.dims) for w in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            found[value.name] = tuple(int(d.dim_value) for d in kind.shape.dim)
    return found


def _value(node: Any, shapes: Mapping[str, tuple[int, ...]], small: Mapping[str, Any], model: Any) -> np.ndarray | None:
    """Return the value of a node computed from known sizes alone; None for any other node."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if node.op_type in ("Shape", "Size"):
        shape = shapes.get(node.input[0])
        if shape is not None and node.op_type == "Size":
            return np.array(prod(shape), "int64")
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
        return evaluated([node], node.output[0], [named(small[i], i) for i in dict.fromkeys(given)], model)
    except Exception:  # malformed: the importer says so
        return None


def named(tensor: Any, name: str) -> Any:
    copy = copied(tensor)
    copy.name = name
    return copy


def constant_operands(model: Any) -> Any:
    """Copy `model` with folded operands where the importer requires constants: operands in `_CONSTANT`
    (such as Pad widths computed by TorchScript, or a dequantized bound), and quantized weights (`_STORED`).
    """
    made = copied(model)
    graph = made.graph
    producers = {name: node for node in graph.node for name in node.output}
    constants = {w.name: w for w in graph.initializer}
    taken = set(tensor_names(graph))
    wanted = [name for n in graph.node for name in n.input[1 if n.op_type in _CONSTANT else len(n.input) :]]
    for name in (*wanted, *(o for n in graph.node if n.op_type in _STORED for o in n.output)):
        nodes = computation(name, producers, constants)
        if name and name not in constants and nodes:
            used = [constants[i] for i in {i for n in nodes for i in n.input} if i in constants]
            constants[name] = numpy_helper.from_array(evaluated(nodes, name, used, made), name)
            graph.initializer.append(constants[name])
            aside = free_name(f"{name}/computed", taken)
            taken.add(aside)
            producers[name].output[:] = [aside if output == name else output for output in producers[name].output]
    return made


def computation(name: str, producers: dict[str, Any], constants: dict[str, Any]) -> list[Any]:
    """Return the nodes that compute `name` from constants, in order; empty if `name` depends on a model input."""
    found: list[Any] = []
    waiting = [name]
    while waiting:
        node = producers.get(waiting[-1])
        if node is None or node.domain not in ("", "ai.onnx") or len(found) + len(waiting) > _MOST_NODES:
            return []
        needed = [i for i in node.input if i and i not in constants and producers.get(i) not in found]
        if needed:
            waiting.append(needed[0])
            continue
        waiting.pop()
        if node not in found:
            found.append(node)
    return found
