"""Infer the shapes of ONNX graphs: by ONNX's rules, with two exceptions.

Pools with ceil_mode drop windows that begin in the end padding, as ONNX Runtime and PyTorch do; ONNX's inference counts
such windows before opset 22. Shapes that a file declares may be stale: they count only for tensors whose shape is not
inferred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper

Shapes = Mapping[str, Sequence[int]]  # -1 for a size that is not known
_POOLS = ("AveragePool", "LpPool", "MaxPool")


def inferred(model: Any) -> Any:
    """Return the graph of `model` with inferred types. Pools may have other attributes than in `model`, with equal shapes.

    Raises
    ------
    onnx.shape_inference.InferenceError
        For a malformed model.
    """
    made = type(model)()
    made.CopyFrom(model)
    declared = {
        v.name: v for v in (*model.graph.value_info, *model.graph.output) if v.type.tensor_type.HasField("shape")
    }
    del made.graph.value_info[:]
    for output in made.graph.output:
        if output.name in declared:
            output.type.tensor_type.ClearField("shape")
    while True:
        graph = _with_pools(made)
        missing = [declared.pop(name) for name in _missing(made, _shapes(graph), declared)]
        if not missing:
            return graph
        for value in missing:
            given = next((o for o in made.graph.output if o.name == value.name), None)
            (made.graph.value_info.add() if given is None else given).CopyFrom(value)


def _missing(model: Any, shapes: Shapes, declared: Mapping[str, Any]) -> list[str]:
    """Return declared tensors without an inferred shape: all results of operators that ONNX does not know, or else the first
    tensor, on which others may depend.
    """

    def is_missing(name: str) -> bool:
        if name not in declared:
            return False
        return name not in shapes or (-1 in shapes[name] and -1 not in _dims(declared[name]))

    found = [(n.domain in ("", "ai.onnx"), o) for n in model.graph.node for o in n.output if is_missing(o)]
    return [o for of_onnx, o in found if not of_onnx] or [o for _, o in found[:1]]


def _with_pools(model: Any) -> Any:
    """Infer the graph of `model`, and replace its pools with surplus windows, each after the pools that it reads."""
    while True:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        pools = [n for n in model.graph.node if n.op_type in _POOLS and _attributes(n).get("ceil_mode")]
        shapes = {} if not pools else _shapes(graph)
        if not any(_replaced(pool, shapes) for pool in pools):
            return graph


def _shapes(graph: Any) -> Shapes:
    values = (v for v in (*graph.input, *graph.value_info, *graph.output) if v.type.tensor_type.HasField("shape"))
    return {w.name: list(w.dims) for w in graph.initializer} | {v.name: _dims(v) for v in values}


def _dims(value: Any) -> list[int]:
    return [d.dim_value if d.HasField("dim_value") else -1 for d in value.type.tensor_type.shape.dim]


def _attributes(node: Any) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _replaced(pool: Any, shapes: Shapes) -> bool:
    """Replace the attributes of a pool with surplus windows by attributes without rounding that give as many windows as
    are kept. Return False for any other pool, which stays.
    """
    attributes, extents = _attributes(pool), shapes.get(pool.input[0], [])[2:]
    kernel = attributes.get("kernel_shape", [])
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or len(extents) != len(kernel) or min(extents, default=0) < 1:
        return False
    axes = len(kernel)
    strides, dilations = (attributes.get(name, [1] * axes) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * axes)
    if min(*strides, *kernel, *dilations) < 1 or not len(strides) == len(dilations) == axes == len(pads) // 2:
        return False
    reached = [n + pad for n, pad in zip(extents, pads, strict=False)]
    kept, surplus = [], False
    for n, end, k, step, dilation in zip(reached, pads[axes:], kernel, strides, dilations, strict=True):
        count = -(-(n + end - dilation * (k - 1) - 1) // step) + 1
        surplus |= (count - 1) * step >= n
        kept.append(count - ((count - 1) * step >= n))
    if not surplus or min(kept) < 1:
        return False
    whole = [n - (count - 1) * step for n, count, step in zip(reached, kept, strides, strict=True)]
    wanted = {"kernel_shape": whole, "strides": strides, "pads": [*pads[:axes], *[0] * axes], "ceil_mode": 0}
    others = {name: value for name, value in attributes.items() if name not in (*wanted, "dilations")}
    del pool.attribute[:]
    pool.attribute.extend(helper.make_attribute(name, value) for name, value in {**others, **wanted}.items())
    return True
