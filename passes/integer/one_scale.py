"""Operators of ONNX and PyTorch between tensors of unequal scales whose results are elements of their operands: choices,
maxima and minima.

Quantizing keeps the order of numbers, so `quantize(max(a, b))` is `max(quantize(a), quantize(b))`: every operand is
requantized to the output's scale first, a reduction afterwards. TFLite refuses such files, or compares what it should
not; only real operators come here.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.chains import quantized
from tvm_cascade.passes.integer.elementwise import lower_requantize
from tvm_cascade.passes.integer.expressions import NotLowered, constant_of, name_of, shape_of
from tvm_cascade.passes.integer.island import Island, Operand, Output, Quantized
from tvm_cascade.passes.integer.untyped import Value


def in_output_scale(island: Island, expr: Value) -> Operand:
    """An operand with the quantization of the island's output.

    Raises
    ------
    NotLowered
        For what is neither constant nor dequantized from integers.
    """
    core, out = island.reader.define(expr), island.output
    data, found = constant_of(core), island.reader.dequantized(expr)
    if found is not None and found.constant is not None and found.scale.size == 1:
        data = (found.constant.astype("int64") - found.zero_point).astype("float32") * found.step
    if data is not None and data.dtype == np.float32:
        return quantized(data.reshape(-1), out).reshape(data.shape).astype(out.dtype)
    if found is None or found.constant is not None:
        raise NotLowered(f"an operand of {name_of(island.core)} is not dequantized from integers")
    inner = Output.unbounded(shape_of(expr), out.dtype, out.scale, out.zero_point)
    return lower_requantize(island.writing(inner, core))


def in_scale_of(island: Island, x: Quantized) -> Island:
    """The island, its output in the quantization of its operand."""
    return island.writing(Output.unbounded(island.output.shape, x.dtype, x.step, x.zero_point))
