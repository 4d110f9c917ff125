"""Rewrite valid ONNX graph forms beyond the importer: unordered nodes, constants without a tensor, computed operands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from tvm_cascade.errors import LoadError
from tvm_cascade.importers.onnx.folding import copied, tensor_names
from tvm_cascade.messages import printable
from tvm_cascade.tensor_spec import free_name

_NUMBERS = {"value_float": ("f", "float32"), "value_int": ("i", "int64")}
_NUMBERS |= {"value_floats": ("floats", "float32"), "value_ints": ("ints", "int64")}
_SLICE = {1: "starts", 2: "ends", 3: "axes", 4: "steps"}
_SIZES = {"Reshape": "shape", "Expand": "shape", "Tile": "repeats", "TopK": "k", "OneHot": "depth", "Split": "split"}
_OPERANDS = {"Slice": _SLICE, "Pad": {1: "pads", 2: "constant_value", 3: "axes"}, "Resize": {2: "scales", 3: "sizes"}}
_OPERANDS |= {name: {1: operand} for name, operand in _SIZES.items()}  # on which the shape of the output depends
_OPERANDS |= {"Range": {0: "start", 1: "limit", 2: "delta"}}
_WINDOWS: dict[str, dict[int, str]] = {f"{name}Window": {0: "size"} for name in ("Blackman", "Hamming", "Hann")}


def computed_window(given: Any, model: Any) -> tuple[int, str] | None:
    """Return the position and the sentence of `computed_operand` for windows in the file `given`, which expand before
    operands fold in `model`.
    """
    return _computed(given, _WINDOWS, model)


def computed_operand(model: Any) -> tuple[int, str] | None:
    """Return the position of the first operator with a computed operand that has to be constant, and a sentence about
    it; None without one.
    """
    return _computed(model, _OPERANDS, model)


def _computed(model: Any, operands: Mapping[str, Mapping[int, str]], folded: Any) -> tuple[int, str] | None:
    constants = {w.name for graph in (model.graph, folded.graph) for w in graph.initializer}
    constants |= {o for n in model.graph.node if n.op_type == "Constant" for o in n.output}
    for at, node in enumerate(model.graph.node):
        for index, operand in operands.get(node.op_type, {}).items():
            if len(node.input) > index and node.input[index] and node.input[index] not in constants:
                return at, f"operator {_named(node)} with {operand} that the network computes is not supported"
    return None


_INDICES = {"Gather": 1, "GatherElements": 1, "OneHot": 0}  # operators that take indices of 32 bits too, and where


def narrow_indices(model: Any) -> Any:
    """Copy `model` with int64 index inputs, such as token ids, as int32 for kernels. Other readers get a
    cast back to int64; an index into an axis fits 32 bits.
    """
    made = copied(model)
    used = defaultdict(list)
    for node in made.graph.node:
        for k, name in enumerate(node.input):
            used[name].append((node, k))
    inner = {name for node in made.graph.node for name in read_names(node) - set(node.input)}
    kept, taken = inner | {o.name for o in made.graph.output}, set(tensor_names(made.graph))
    for value in made.graph.input:
        own = used.get(value.name, [])
        others = [(node, k) for node, k in own if _INDICES.get(node.op_type) != k]
        if value.type.tensor_type.elem_type != TensorProto.INT64 or value.name in kept or (own and others == own):
            continue
        value.type.tensor_type.elem_type = TensorProto.INT32
        if others:
            wide = free_name(f"{value.name}/int64", taken)
            made.graph.node.insert(0, helper.make_node("Cast", [value.name], [wide], to=TensorProto.INT64))
            for node, k in others:
                node.input[k] = wide
    return made


def wide_inputs(path: Path) -> frozenset[str]:
    """Return the names of a file's int64 inputs, possibly changed by `narrow_indices`."""
    graph = onnx.load(str(path), load_external_data=False).graph
    return frozenset(i.name for i in graph.input if i.type.tensor_type.elem_type == TensorProto.INT64)


def in_order(path: Path, model: Any) -> Any:
    """Copy `model` with nodes in topological order, and a tensor in every Constant.

    Raises
    ------
    LoadError
        For nodes in a cycle, a tensor that nothing computes, a Constant whose value is no tensor of numbers, and an empty
        name among inputs of any number.
    """
    made = copied(model)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    for node in made.graph.node:
        if node.op_type == "Constant":
            _set_tensor(path, node)
        if "" in _listed(node, opset):
            what = f"operator {_named(node)} leaves out one of the inputs that it takes any number of"
            raise LoadError(path, what, "", [node.op_type])
    ordered = list(_ordered(path, made.graph))
    if any(a is not b for a, b in zip(ordered, made.graph.node, strict=True)):
        ordered = [copied(n) for n in ordered]
        del made.graph.node[:]
        made.graph.node.extend(ordered)
    return made


def _ordered(path: Path, graph: Any) -> Iterator[Any]:
    """Yield the nodes in computable order: each as soon as its inputs are known, else as given."""
    known = {"", *(i.name for i in graph.input), *(w.name for w in graph.initializer)}
    known |= {w.values.name for w in graph.sparse_initializer}
    made = known | {o for n in graph.node for o in n.output}
    waiting = list(graph.node)
    for node in waiting:
        for name in read_names(node):
            if name not in made:
                what = f"operator {_named(node)} reads {printable(name)}, which nothing computes"
                raise LoadError(path, what, "", [node.op_type])
    while waiting:
        later = []
        for node in waiting:
            if known.issuperset(read_names(node)):
                known.update(node.output)
                yield node
            else:
                later.append(node)
        if len(later) == len(waiting):
            names = ", ".join(_named(n) for n in later[:4])
            kinds = dict.fromkeys(n.op_type for n in later)
            raise LoadError(path, f"its operators form a cycle, in which each waits for another: {names}", "", [*kinds])
        waiting = later


def _listed(node: Any, opset: int) -> list[str]:
    """Return a node's variadic inputs."""
    if node.domain not in ("", "ai.onnx") or not defs.has(node.op_type, opset):
        return []
    formal = defs.get_schema(node.op_type, opset, "").inputs
    variadic = bool(formal) and formal[-1].option == defs.OpSchema.FormalParameterOption.Variadic
    return list(node.input[len(formal) - 1 :]) if variadic else []


def read_names(node: Any) -> set[str]:
    """Return the outside tensors read by a node or its inner graphs."""
    names = set(node.input)
    for graph in (g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)):
        own = {i.name for i in graph.input} | {w.name for w in graph.initializer}
        own |= {o for n in graph.node for o in n.output}
        names |= {name for n in graph.node for name in read_names(n)} - own
    return names


def _set_tensor(path: Path, node: Any) -> None:
    """Give a Constant of numbers the attribute `value`, in place."""
    held = node.attribute[0] if len(node.attribute) == 1 else None
    if held is not None and held.name == "value":
        return
    if held is None or held.name not in _NUMBERS:
        what = held.name if held is not None else "no value"
        raise LoadError(
            path, f"operator {_named(node)} with {printable(what)} is not supported", "give it a tensor", [node.op_type]
        )
    field, dtype = _NUMBERS[held.name]
    held = helper.make_attribute("value", numpy_helper.from_array(np.array(getattr(held, field), dtype)))
    del node.attribute[:]
    node.attribute.append(held)


def _named(node: Any) -> str:
    return printable(f"{node.op_type} {node.name}".strip())
