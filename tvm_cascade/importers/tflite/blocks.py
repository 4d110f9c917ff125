"""Weights with a scale for each block of a row, as ai-edge-quantizer writes them (`BlockwiseQuantization`).

LiteRT's reference kernels give zeros for such layers, and XNNPACK stores the activations as int8 first. Here they
stay floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flatbuffers import number_types

from tvm_cascade.importers.tflite.network import Network
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm, listed
from tvm_cascade.passes.main_rewriting import Value, relax

_SCALES, _ZERO_POINTS, _SIZE = 4, 6, 8  # places of fields in the table


def blocked_reals(net: Network, weights: Any) -> Value:
    """Return a matrix expression [units, depth] with scales for blocks in each row, as float32."""
    data, (scales, zero_points, size) = np.asarray(net.get_tensor_value(weights)), _fields(weights.tensor)
    units, depth = data.shape
    if zero_points >= 0:
        raise UnsupportedForm("weights with a zero point for each block")
    if size < 1 or depth % size:
        raise InvalidForm(f"blocks of {size} weights do not divide rows of {depth}")
    if not 0 <= scales < net.subgraph.TensorsLength():
        raise InvalidForm(f"the scales of its weights are tensor {scales} of {net.subgraph.TensorsLength()}")
    (held,) = net.get_tensors([scales])
    given = None if net.has_expr(scales) else np.asarray(net.get_tensor_value(held))
    if given is None or given.dtype.kind != "f" or given.size != units * depth // size:
        raise InvalidForm(
            f"its weights need {units * depth // size} scales, tensor {scales} has the shape {listed(net.shape(held))}"
        )
    wide = np.repeat(given.astype("float32").reshape(units, -1), size, 1)
    real = net.bb.emit(relax.op.astype(relax.const(data, "int8"), "float32"))
    return net.bb.emit(relax.op.multiply(real, relax.const(wide, "float32")))


def _fields(tensor: Any) -> tuple[int, int, int]:
    """Return the scales' tensor, that of zero points (-1 for none), and the weights of a block."""
    table = tensor.Quantization().Details()

    def read(field: int) -> int:
        at = table.Offset(field)
        return int(table.Get(number_types.Int32Flags, at + table.Pos)) if at else 0

    return read(_SCALES), read(_ZERO_POINTS), read(_SIZE)
