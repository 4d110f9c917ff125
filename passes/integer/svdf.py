"""Lowering of the int8 SVDF: a fully connected layer of low rank over the steps of a sequence, in TFLite's arithmetic.

Every filter f has a feature `a_f = sat(MBQM(sum_i W_fi (x_i - z)) + z_s)`, which enters the filter's state, stored in int16 or
int8 with zero point `z_s`. A unit adds the products of its filters' states and time weights, `T_fm`, over all steps m:

    y_u = sat8(MBQM(b_u + sum_f sum_m T_fm (state_fm - z_s)) + z_y)

Where states start at zero in every call, only the last column of the time weights counts, and the sum over m is one product.
A state lies step by step, [steps, batch, filters], so that the steps that are still needed move up together. With one of int8
the features are a convolution of one pixel, and the sums one over time where every unit has one filter: the importer writes
these as such (`importers/tflite/svdf.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.task import Output, bounded_multiplier
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te
from tvm_cascade.program.quant import NotLowered


@dataclass(frozen=True, slots=True)
class Filters:
    """Weights and scales for an SVDF with `filters = rank * units`.

    `features` int8 [filters, depth]; `times`, int8 or int16 [steps, filters]; `bias` int32 [units].
    """

    features: np.ndarray
    times: np.ndarray
    bias: np.ndarray
    input_zero: int
    state: Output  # shape [batch, filters], of one step; int8 or int16
    feature_scale: float  # real multiplier from sums of products to units of the state
    output_scale: float  # real multiplier from sums of products to units of the output


def lower_features(emitter: Emitter, x: Value, filters: Filters) -> Value:
    """Emit the features for one step of `x`, int8 [batch, depth], in state units."""
    weights, state, depth = filters.features, filters.state, filters.features.shape[1]
    m, s = bounded_multiplier(filters.feature_scale)
    reach = max(127 - filters.input_zero, filters.input_zero + 128)
    bound = int(np.abs(weights.astype("int64")).sum(1).max()) * reach
    if bound > fp.INT32_MAX:
        raise NotLowered("a product whose sum exceeds 32 bits")

    def compute(a: Tensor, w: Tensor) -> Tensor:
        rc = te.reduce_axis((0, depth), "rc")

        def product(n: Index, f: Index) -> Scalar:
            centred = a[n, rc].astype("int32") - i32(filters.input_zero)
            return te.sum(centred * w[f, rc].astype("int32"), axis=[rc])

        acc = te.compute(state.shape, product, name="svdf_features_acc")
        return te.compute(
            state.shape, lambda n, f: state.stored(fp.te_rescale(acc[n, f], m, s, bound)), name="svdf_features"
        )

    return emitter.call("svdf_features", compute, [x, weights], input_zero_point=filters.input_zero, **state.described)


def float_sums(emitter: Emitter, features: Value, batch: int, times: np.ndarray, bias: np.ndarray) -> Value:
    """Emits the units, float [batch, units], from the features of all steps, [1, steps * batch * filters]."""
    (steps, filters), units = times.shape, len(bias)

    def compute(a: Tensor, t: Tensor, b: Tensor) -> Tensor:
        m, r = te.reduce_axis((0, steps), "m"), te.reduce_axis((0, filters // units), "r")

        def total(n: Index, u: Index) -> Scalar:
            filter = u * i32(filters // units) + r
            seen = a[0, (m * i32(batch) + n) * i32(filters) + filter]
            return te.sum(seen * t[m * i32(filters) + filter], axis=[m, r])

        acc = te.compute((batch, units), total, name="svdf_acc")
        return te.compute((batch, units), lambda n, u: acc[n, u] + b[u], name="svdf")

    return emitter.call("svdf", compute, [features, times.reshape(-1), bias])


def lower_sums(emitter: Emitter, features: Value, filters: Filters, out: Output) -> Value:
    """Emits the units from the features of all steps, steps * batch * filters; sums that may exceed 32 bits wrap, as the
    reference's do."""
    state, (batch, units) = filters.state, out.shape
    steps, count = filters.times.shape
    rank, (m, s) = count // units, bounded_multiplier(filters.output_scale)
    reach = max(state.hi - state.zero_point, state.zero_point - state.lo)
    weights = np.abs(filters.times.astype("int64")).reshape(steps, units, rank).sum((0, 2))
    sums = weights * reach + np.abs(filters.bias.astype("int64"))
    wide = "int64" if int(sums.max()) > fp.INT32_MAX else "int32"
    bound = min(int(sums.max()), fp.INT32_MAX)

    def compute(a: Tensor, t: Tensor, b: Tensor) -> Tensor:
        step, r = te.reduce_axis((0, steps), "m"), te.reduce_axis((0, rank), "r")

        def total(n: Index, u: Index) -> Scalar:
            filter = u * i32(rank) + r
            seen = a[0, (step * i32(batch) + n) * i32(count) + filter].astype("int32")
            weight = t[step * i32(count) + filter]
            return te.sum((seen - i32(state.zero_point)).astype(wide) * weight.astype(wide), axis=[step, r])

        acc = te.compute(out.shape, total, name="svdf_acc")
        return te.compute(
            out.shape,
            lambda n, u: out.stored(fp.te_rescale((acc[n, u] + b[u].astype(wide)).astype("int32"), m, s, bound)),
            name="svdf",
        )

    return emitter.call("svdf", compute, [features, filters.times.reshape(-1), filters.bias], **out.described)
