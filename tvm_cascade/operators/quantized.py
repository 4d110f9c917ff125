"""Quantized operators on stored integers: real = scale * (stored - zero point).

A pair (scale, zero point) is called a quantum. Attributes: the real operator's; `x_quantum` and `y_quantum` of the
input and output, `quanta` of a sum's two inputs, `w_zero` of the weights; `act` ('', 'relu' or a pair of real bounds),
`range` of the stored result, `dtype`. Operands of convolutions and products: stored values, weights, a scale for every
output channel, and optionally a bias with scales. Results are rounded half to even. Engines round differently, but in
the same way for every output channel, so rules that move channels around remain exact.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.errors import GraphError
from tvm_cascade.operators import convolutions, products
from tvm_cascade.operators.record import Array, Attributes, Family, Operator, TensorType, Types, steps_of_products


def _convolution_type(read: Types, attrs: Attributes) -> Types:
    (made,) = convolutions.infer(read[:2], attrs)
    if any(t.shape != (read[1].shape[0],) for t in read[2:]):
        raise GraphError(
            f"scales and biases {[t.shape for t in read[2:]]} of a convolution to {read[1].shape[0]} channels"
        )
    return (TensorType(made.shape, attrs["dtype"]),)


def _product_type(read: Types, attrs: Attributes) -> Types:
    (rows, depth), (inner, out) = read[0].shape, read[1].shape
    if depth != inner or any(t.shape != (out,) for t in read[2:]):
        raise GraphError(f"product of {read[0].shape} and {read[1].shape}, per output {[t.shape for t in read[2:]]}")
    return (TensorType((rows, out), attrs["dtype"]),)


def _sum_type(read: Types, attrs: Attributes) -> Types:
    if read[0].shape != read[1].shape:
        raise GraphError(f"quantized sum of {read[0].shape} and {read[1].shape}")
    return (TensorType(read[0].shape, attrs["dtype"]),)


def _convolution(
    attrs: Attributes, x: Array, w: Array, scales: Array, bias: Array | None = None, _: Array | None = None
) -> Array:
    plain = {**attrs, "act": ""}
    total = convolutions.evaluate(plain, x.astype("int64") - attrs["x_quantum"][1], w.astype("int64") - attrs["w_zero"])
    return _requantized(attrs, total, scales, bias, (-1, 1, 1) if attrs["layout"] == "NCHW" else (-1,))


def _product(
    attrs: Attributes, x: Array, w: Array, scales: Array, bias: Array | None = None, _: Array | None = None
) -> Array:
    total = (x.astype("int64") - attrs["x_quantum"][1]) @ (w.astype("int64") - attrs["w_zero"])
    return _requantized(attrs, total, scales, bias, (-1,))


def _sum(attrs: Attributes, *read: Array) -> Array:
    a, b = ((x.astype("int64") - zero) * step for x, (step, zero) in zip(read, attrs["quanta"], strict=True))
    return _stored(attrs, a + b)


def _requantized(attrs: Attributes, total: Array, scales: Array, bias: Array | None, shape: tuple[int, ...]) -> Array:
    if bias is not None:
        total = total + bias.reshape(shape)
    return _stored(attrs, total * (attrs["x_quantum"][0] * scales.astype("float64").reshape(shape)))


def _stored(attrs: Attributes, real: Array) -> Array:
    step, zero = attrs["y_quantum"]
    if attrs["act"]:
        low, high = (0.0, None) if attrs["act"] == "relu" else attrs["act"]
        real = np.clip(real, low, high)
    return np.clip(np.rint(real / step) + zero, *attrs["range"]).astype(attrs["dtype"])


OPERATORS = (
    Operator(
        "qconv2d", Family.CONVOLUTION, _convolution_type, _convolution, convolutions.macs,
        steps_of_products(convolutions.macs), convolutions.windows, unquantized="conv2d",
    ),
    Operator(
        "qmatmul", Family.PRODUCT, _product_type, _product, products.macs, steps_of_products(products.macs),
        unquantized="matmul",
    ),
    Operator("qadd", Family.BINARY, _sum_type, _sum, unquantized="add"),
)  # fmt: skip
