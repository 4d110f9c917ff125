"""Widen ONNX's 4-bit and 2-bit constants to 8 bits: equal values, for every kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from tvm_cascade.errors import LoadError
from tvm_cascade.importers.onnx.folding import constant_tensor, copied
from tvm_cascade.messages import printable

_WIDENED = {"INT4": "int8", "UINT4": "uint8", "INT2": "int8", "UINT2": "uint8"}
_SMALL = {getattr(TensorProto, name): wide for name, wide in _WIDENED.items() if hasattr(TensorProto, name)}
_BITS = {getattr(TensorProto, name): int(name[-1]) for name in _WIDENED if hasattr(TensorProto, name)}


def widened(path: Any, model: Any) -> Any:
    """Return `model` with 8-bit constants in place of 4-bit and 2-bit ones; `model` itself if unchanged.

    Raises `LoadError` for constants with a byte count against their shape, and for blocks in another number.
    """
    _check_blocks(path, model)
    tensors = [*model.graph.initializer, *(a.t for n in model.graph.node for a in n.attribute if a.HasField("t"))]
    if not any(t.data_type in _SMALL for t in tensors):
        return model
    made = copied(model)
    for tensor in (*made.graph.initializer, *(a.t for n in made.graph.node for a in n.attribute if a.HasField("t"))):
        if tensor.data_type in _SMALL:
            tensor.CopyFrom(numpy_helper.from_array(_values(path, tensor), tensor.name))
    return made


def _values(path: Any, tensor: Any) -> np.ndarray:
    """Return a 4-bit or 2-bit tensor's values, as int8 or uint8."""
    count, bits = int(np.prod(tensor.dims, dtype=np.int64)), _BITS[tensor.data_type]
    if tensor.HasField("raw_data") and len(tensor.raw_data) != -(-count * bits // 8):
        what = f"{len(tensor.raw_data)} bytes for {count} elements of {bits} bits"
        raise LoadError(path, f"constant {printable(tensor.name)} has {what}")
    return numpy_helper.to_array(tensor).astype(_SMALL[tensor.data_type])


def _check_blocks(path: Any, model: Any) -> None:
    """Raise `LoadError` for dequantized constants whose block count differs from their scale count."""
    from onnx import helper

    known = {t.name: tuple(t.dims) for t in model.graph.initializer}
    given_inline = ((n, constant_tensor(n)) for n in model.graph.node)
    known |= {n.output[0]: tuple(t.dims) for n, t in given_inline if t is not None}
    for node in model.graph.node:
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        size = given.get("block_size", 0)
        if node.op_type != "DequantizeLinear" or not size or any(name not in known for name in node.input[:2]):
            continue
        shape, scales = (known[name] for name in node.input[:2])
        axis = int(given.get("axis", 1)) % len(shape)
        if len(scales) != len(shape) or scales[axis] != -(-shape[axis] // size):
            what = f"blocks of {size} along axis {axis} of shape {list(shape)} have scales of shape {list(scales)}"
            raise LoadError(path, f"constant {printable(node.input[0])}: {what}")
