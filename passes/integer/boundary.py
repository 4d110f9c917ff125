"""Where a model's own float tensors meet stored integers: quantize and dequantize as the reference computes them."""

from __future__ import annotations

from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.island import Emitter, Output, Quantized
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx


def lower_quantize(source: Value, output: Output, emitter: Emitter) -> Value:
    """float32 to stored integers: `clamp(rha(x / s) + z)`, the quotient in float32."""

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            quotient = a[index] / tirx.const(float(output.scale), "float32")
            # far outside of the stored range every quotient saturates: bound it before it must fit an integer
            bounded = tirx.max(tirx.min(quotient, tirx.const(1 << 20, "float32")), tirx.const(-(1 << 20), "float32"))
            whole, half = tirx.trunc(bounded), tirx.const(0.5, "float32")
            up = tirx.Select(bounded - whole >= half, i32(1), i32(0))
            down = tirx.Select(bounded - whole <= -half, i32(1), i32(0))
            return output.stored(whole.astype("int32") + up - down)

        return te.compute(output.shape, at, name="quantize")

    return emitter.call("quantize", compute, [source], **output.described)


def lower_dequantize(x: Quantized, emitter: Emitter) -> Value:
    """Stored integers to float32: `s * (x - z)`."""

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            return x.centred(a[index]).astype("float32") * tirx.const(float(x.step), "float32")

        return te.compute(x.shape, at, name="dequantize")

    return emitter.call("dequantize", compute, [x.value], input_zero_point=x.zero_point)
