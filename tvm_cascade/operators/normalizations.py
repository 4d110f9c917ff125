"""Reductions over axes and normalizations: mean, softmax, batch normalization.

Attributes: `axes` and `keepdims` of a mean, `axis` of a softmax, `axis` and `eps` of a batch normalization, with the
operands activations, scale, offset, mean and variance.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.operators.elementwise import same_type
from tvm_cascade.operators.record import Array, Attributes, Family, Operator, TensorType, Types, one_step_a_value


def _mean_type(read: Types, attrs: Attributes) -> Types:
    axes = attrs["axes"]
    kept = [(1 if i in axes else n) for i, n in enumerate(read[0].shape) if attrs["keepdims"] or i not in axes]
    return (TensorType(tuple(kept), read[0].dtype),)


def _mean(attrs: Attributes, x: Array) -> Array:
    return x.mean(axis=attrs["axes"], keepdims=attrs["keepdims"])


def _softmax(attrs: Attributes, x: Array) -> Array:
    e = np.exp(x - x.max(attrs["axis"], keepdims=True))
    return e / e.sum(attrs["axis"], keepdims=True)


def _batch_norm(attrs: Attributes, x: Array, gamma: Array, beta: Array, mean: Array, var: Array) -> Array:
    shape = [1] * x.ndim
    shape[attrs["axis"]] = -1
    scale = (gamma / np.sqrt(var + attrs["eps"])).reshape(shape)
    return ((x - mean.reshape(shape)) * scale + beta.reshape(shape)).astype(x.dtype)


def _two_steps_a_value(read: Types, made: Types, attrs: Attributes) -> int:
    return 2 * one_step_a_value(read, made, attrs)


OPERATORS = (
    Operator("mean", Family.NORMALIZATION, _mean_type, _mean),
    Operator("softmax", Family.NORMALIZATION, same_type, _softmax),
    Operator("batch_norm", Family.NORMALIZATION, same_type, _batch_norm, steps=_two_steps_a_value, elementwise=True),
)
