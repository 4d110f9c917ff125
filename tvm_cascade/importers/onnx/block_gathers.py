"""Rewrite ONNX Runtime's GatherBlockQuantized as DequantizeLinear with blocks and Gather.

Source: the operator's definition in ONNX Runtime 1.32, domain com.microsoft.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tvm_cascade.errors import LoadError
from tvm_cascade.importers.onnx.folding import constant_tensor, copied, tensor_names
from tvm_cascade.messages import printable
from tvm_cascade.tensor_spec import free_name

_KIND = "GatherBlockQuantized"
_SIGNED = (TensorProto.INT4, TensorProto.INT8)


def with_gathers(path: Any, model: Any) -> Any:
    """Return `model` with two operators in place of each GatherBlockQuantized; `model` itself without any.

    Raises `LoadError` for tables, scales or zero points that are computed, or of shapes that do not belong together.
    """
    if all(node.op_type != _KIND for node in model.graph.node):
        return model
    made = copied(model)
    held = {tensor.name: tensor for tensor in made.graph.initializer}
    held |= {node.output[0]: tensor for node in made.graph.node if (tensor := constant_tensor(node)) is not None}
    taken = set(tensor_names(made.graph))
    nodes: list[Any] = []
    for node in made.graph.node:
        if node.op_type == _KIND:
            nodes += _plain(path, node, held, made.graph, taken)
        else:
            nodes.append(node)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _plain(path: Any, node: Any, held: dict[str, Any], graph: Any, taken: set[str]) -> list[Any]:
    """Return the two nodes for one; the unpacked table, and zero points, become initializers of the graph."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    bits, size = int(given.get("bits", 4)), int(given.get("block_size", 128))
    data, indices, scales, *zeros = node.input
    names = [data, scales, *(name for name in zeros if name)]
    if any(name not in held for name in names):
        lost = next(name for name in names if name not in held)
        what = f"operator {_KIND} reads {printable(lost)}, which the network computes: it must be constant"
        raise LoadError(path, what, "", [_KIND])
    if bits not in (4, 8) or size < 1:
        what = f"operator {_KIND} has blocks of {size} numbers of {bits} bits, and 4 or 8 bits are known"
        raise LoadError(path, what, "", [_KIND])
    packed = held[data].data_type == TensorProto.UINT8
    table = _numbers(held[data], bits)
    factors = tuple(held[scales].dims)
    along = int(given.get("quantize_axis", 1)) % table.ndim
    blocks = tuple(-(-n // size) if axis == along else n for axis, n in enumerate(table.shape))
    if factors != blocks:
        what = f"blocks of {size} along axis {along} of shape {list(table.shape)} have scales of shape {list(factors)}"
        raise LoadError(path, f"constant {printable(data)}: {what}")
    points = _numbers(held[names[2]], bits, blocks[-1]) if len(names) == 3 else None
    if points is None:
        points = np.full(blocks, 1 << (bits - 1) if packed else 0, table.dtype)
    if points.shape != blocks:
        what = f"blocks of shape {list(blocks)} have zero points of shape {list(points.shape)}"
        raise LoadError(path, f"constant {printable(data)}: {what}")
    added = [free_name(f"{data}_{part}", taken) for part in ("numbers", "zeros", "real")]
    taken |= set(added)
    for name, values in zip(added, (table, points), strict=False):
        graph.initializer.append(numpy_helper.from_array(values, name))
    real = helper.make_node("DequantizeLinear", [added[0], scales, added[1]], added[2:], axis=along, block_size=size)
    axis = int(given.get("gather_axis", 0))
    return [real, helper.make_node("Gather", [added[2], indices], list(node.output), node.name, axis=axis)]


def _numbers(tensor: Any, bits: int, last: int | None = None) -> np.ndarray:
    """Read numbers as int8 or uint8; of uint8 constants several lie in a byte, low bits first along the last axis with
    `last` elements.
    """
    stored = numpy_helper.to_array(tensor)
    if tensor.data_type != TensorProto.UINT8:
        return stored.astype("int8" if tensor.data_type in _SIGNED else "uint8")
    parts = (stored[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    return np.ascontiguousarray(parts.reshape(*stored.shape[:-1], -1)[..., :last])
