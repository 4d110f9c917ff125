"""Lowering of the int8 SVDF: a fully connected layer of low rank over the steps of a sequence, in TFLite's arithmetic.

Every filter f has a feature `a_f = sat(MBQM(sum_i W_fi (x_i - z)) + z_s)`, which enters the filter's state, stored in int16 or
int8 with zero point `z_s`. A unit adds the products of its filters' states and time weights, `T_fm`, over all steps m:

    y_u = sat8(MBQM(b_u + sum_f sum_m T_fm (state_fm - z_s)) + z_y)

States start at zero, so of one step only the last column of the time weights counts, and the sum over m is one product.
With a state of int8 the features are a convolution of one pixel, and so are the sums where every unit has one filter: the
importer writes these as such (`importers/tflite_svdf.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import NotLowered, shape_of
from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.island import Output, bounded_multiplier
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te


@dataclass(frozen=True, slots=True)
class Filters:
    """Weights and scales of an SVDF of `filters = rank * units`.

    `features` int8 [filters, depth]; `last`, the time weights of the last step, int8 or int16 [filters]; `bias` int32 [units].
    """

    features: np.ndarray
    last: np.ndarray
    bias: np.ndarray
    input_zero: int
    state: Output  # shape [batch, filters]; int8 or int16
    feature_scale: float  # real multiplier from sums of products to units of the state
    output_scale: float  # real multiplier from sums of products to units of the output


def lower_svdf(emitter: Emitter, x: Value, filters: Filters, out: Output) -> Value:
    """Emits both products of one step for `x`, int8 [batch, depth]; `out` is int8 [batch, units]."""
    return lower_sums(emitter, _features(emitter, x, filters), filters, out)


def _features(emitter: Emitter, x: Value, filters: Filters) -> Value:
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


def lower_sums(emitter: Emitter, features: Value, filters: Filters, out: Output) -> Value:
    """Emits the units from the features of the one step; sums that may exceed 32 bits wrap, as the reference's do."""
    state, units = filters.state, out.shape[1]
    rank, (m, s) = shape_of(features)[1] // units, bounded_multiplier(filters.output_scale)
    reach = max(state.hi - state.zero_point, state.zero_point - state.lo)
    sums = np.abs(filters.last.astype("int64")).reshape(units, rank).sum(1) * reach + np.abs(
        filters.bias.astype("int64")
    )
    wide = "int64" if int(sums.max()) > fp.INT32_MAX else "int32"
    bound = min(int(sums.max()), fp.INT32_MAX)

    def compute(a: Tensor, t: Tensor, b: Tensor) -> Tensor:
        r = te.reduce_axis((0, rank), "r")

        def total(n: Index, u: Index) -> Scalar:
            centred = a[n, u * rank + r].astype("int32") - i32(state.zero_point)
            return te.sum(centred.astype(wide) * t[u * rank + r].astype(wide), axis=[r])

        acc = te.compute(out.shape, total, name="svdf_acc")
        return te.compute(
            out.shape,
            lambda n, u: out.stored(fp.te_rescale((acc[n, u] + b[u].astype(wide)).astype("int32"), m, s, bound)),
            name="svdf",
        )

    return emitter.call("svdf", compute, [features, filters.last, filters.bias], **out.described)
