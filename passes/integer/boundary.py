"""Where a model's own float tensors meet stored integers: quantize and dequantize as the reference computes them."""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.island import Emitter, Output, Quantized
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.schedules.kernels.spec import Attributes


def lower_quantize(source: Value, output: Output, emitter: Emitter) -> Value:
    """float32 to stored integers: `clamp(rha(x / s) + z)`, the quotient in float32."""
    info = np.iinfo(output.dtype)

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            quotient = a[index] / tirx.const(float(output.scale), "float32")
            # far outside of the stored range every quotient saturates: bound it before it must fit an integer
            bounded = tirx.max(tirx.min(quotient, tirx.const(1 << 20, "float32")), tirx.const(-(1 << 20), "float32"))
            whole = tirx.trunc(bounded)
            rest = bounded - whole
            half = tirx.const(0.5, "float32")
            up = tirx.Select(rest >= half, tirx.const(1, "int32"), tirx.const(0, "int32"))
            down = tirx.Select(rest <= -half, tirx.const(1, "int32"), tirx.const(0, "int32"))
            stored = whole.astype("int32") + up - down + tirx.const(output.zero_point, "int32")
            return tirx.max(tirx.min(stored, tirx.const(output.hi, "int32")), tirx.const(output.lo, "int32")).astype(
                output.dtype
            )

        return te.compute(output.shape, at, name="quantize")

    attributes = Attributes(output_zero_point=output.zero_point, clamp=(max(output.lo, int(info.min)), output.hi))
    return emitter.call("quantize", compute, [source], attributes=attributes)


def lower_dequantize(x: Quantized, emitter: Emitter) -> Value:
    """Stored integers to float32: `s * (x - z)`."""

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            difference = a[index].astype("int32") - tirx.const(x.zero_point, "int32")
            return difference.astype("float32") * tirx.const(float(x.step), "float32")

        return te.compute(x.shape, at, name="dequantize")

    return emitter.call("dequantize", compute, [x.value], attributes=Attributes(input_zero_point=x.zero_point))
