"""Operands of ONNX graphs as constants, and explicit pads folded into the convolutions that they feed.

A pad by zero of rows and columns is the convolution's own padding, exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tvm_cascade.importers.onnx_shapes import constant_tensor, copied, evaluated

_CONSTANT = frozenset(("Pad", "Clip", "Tile", "Pow", "Resize", "Upsample"))  # operands but the first are numbers
_MOST_NODES = 100  # that compute an operand
_SPATIAL_FROM = 2  # NCHW: batch and channels come first


def constant_operands(model: Any) -> Any:
    """A copy of `model` in which what constants alone compute for the operands in `_CONSTANT` (widths of a Pad as
    TorchScript spells them, a bound dequantized) is a constant, and what they quantize is stored: the importer reads
    nothing else."""
    made = copied(model)
    graph = made.graph
    producers = {name: node for node in graph.node for name in node.output}
    constants = {w.name: w for w in graph.initializer}
    wanted = [name for n in graph.node for name in n.input[1 if n.op_type in _CONSTANT else len(n.input) :]]
    for name in (*wanted, *(n.output[0] for n in graph.node if n.op_type == "QuantizeLinear")):
        nodes = _computation(name, producers, constants)
        if name and name not in constants and nodes:
            used = [constants[i] for i in {i for n in nodes for i in n.input} if i in constants]
            constants[name] = numpy_helper.from_array(evaluated(nodes, name, used, made), name)
            graph.initializer.append(constants[name])
            for i, output in enumerate(producers[name].output):
                producers[name].output[i] = f"{name}/computed" if output == name else output
    return made


def _computation(name: str, producers: dict[str, Any], constants: dict[str, Any]) -> list[Any]:
    """The nodes that compute `name` from constants, in order; none where an input of the model is needed."""
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


def fold_pads(model: Any) -> Any:
    """A copy of `model` without the pads that its convolutions can do themselves."""
    folded = copied(model)
    graph = folded.graph
    constants = {w.name: w for w in graph.initializer}
    constants |= {n.output[0]: t for n in graph.node if (t := constant_tensor(n)) is not None}
    kept = {o.name for o in graph.output}
    for pad in [n for n in graph.node if n.op_type == "Pad"]:
        widths = _widths(pad, constants)
        users = [n for n in graph.node if pad.output[0] in n.input]
        if widths is None or pad.output[0] in kept or not users or not all(_takes(n, pad) for n in users):
            continue
        for conv in users:
            _add(conv, widths)
            conv.input[0] = pad.input[0]
        graph.node.remove(pad)
    return folded


def _widths(pad: Any, constants: dict[str, Any]) -> list[int] | None:
    """Spatial padding as Conv spells it, all begins and then all ends; None for what no convolution does."""
    attrs = {a.name: a for a in pad.attribute}
    if "mode" in attrs and attrs["mode"].s != b"constant":
        return None
    if "pads" in attrs:
        widths, value = list(attrs["pads"].ints), attrs["value"].f if "value" in attrs else 0.0
    elif len(pad.input) > 1 and pad.input[1] in constants and len([i for i in pad.input[3:] if i]) == 0:
        widths = numpy_helper.to_array(constants[pad.input[1]]).reshape(-1).tolist()
        name = pad.input[2] if len(pad.input) > 2 else ""
        if name and name not in constants:
            return None
        value = float(np.asarray(numpy_helper.to_array(constants[name])).reshape(-1)[0]) if name else 0.0
    else:
        return None
    rank = len(widths) // 2
    outer = widths[:_SPATIAL_FROM] + widths[rank : rank + _SPATIAL_FROM]
    if value != 0.0 or any(outer) or min(widths, default=0) < 0 or rank <= _SPATIAL_FROM:
        return None
    return [*widths[_SPATIAL_FROM:rank], *widths[rank + _SPATIAL_FROM :]]


def _takes(node: Any, pad: Any) -> bool:
    """Whether `node` is a convolution of the padded tensor with padding that is spelled out."""
    explicit = all(a.s == b"NOTSET" for a in node.attribute if a.name == "auto_pad")
    return (
        node.op_type == "Conv" and node.input[0] == pad.output[0] and pad.output[0] not in node.input[1:] and explicit
    )


def _add(conv: Any, widths: list[int]) -> None:
    for attribute in conv.attribute:
        if attribute.name == "pads":
            attribute.ints[:] = [a + b for a, b in zip(attribute.ints, widths, strict=True)]
            return
    conv.attribute.append(onnx.helper.make_attribute("pads", widths))
