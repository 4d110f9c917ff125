"""Convert SVDF, the filters for keyword spotting, float and int8. (Relax's importer refuses int8, and filters the
previous step's state.)

Every call computes one step. Earlier steps' features are a network state, or zero in every call (`stateless`), like in
a new or reset interpreter. Filters with an int8 state become convolutions, lowered by `passes.LowerQuantized`; with an
int16 state they become integer kernels here, since no float form has that arithmetic.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts, scale_of, zero_point_of
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.passes.integer.svdf import Filters, float_sums, lower_features, lower_sums
from tvm_cascade.passes.integer.task import Output
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import Value, relax


@converts("SVDF")
def _svdf(net: Network, op: Operator) -> Value:
    x, features, times, bias, state = net.get_input_tensors(op)
    options = net.options(op, tflite.SVDFOptions)
    weights, steps = svdf_weights(net, features, times, options.Rank())
    if state.tensor_idx < 0 or not state.tensor.IsVariable():
        raise UnsupportedForm("SVDF with a state that is no variable")
    units = len(weights) // options.Rank()
    added = np.zeros(units) if bias.tensor_idx < 0 else np.asarray(net.get_tensor_value(bias))
    if x.qnn_params:
        return _integer_svdf(net, op, weights, steps, added.astype("int32"))
    if {str(weights.dtype), str(steps.dtype)} != {"float32"}:
        raise UnsupportedForm("a float SVDF of which some weights are integers")
    made = relax.op.matmul(net.get_tensor_expr(x), relax.const(np.ascontiguousarray(weights.T), "float32"))
    total = svdf_units(net, state, net.bb.emit(made), steps, added)
    return net.convert_fused_activation_function(total, options.FusedActivationFunction())


def svdf_units(net: Network, state: Any, features: Value, steps: np.ndarray, bias: np.ndarray) -> Value:
    """Return the units, float [batch, units], from one step's features and the state's."""
    seen = _seen(net, state, features)
    if seen is features:
        return _svdf_sums(net, features, np.ascontiguousarray(steps[-1]), bias)
    return float_sums(Emitter(net.bb, {}, "svdf"), seen, shape_of(features)[0], steps, bias.astype("float32"))


def _seen(net: Network, state: Any, features: Value) -> Value:
    """Return all steps' features, [1, steps * batch * filters], with `features` last, and keep them as the state;
    `features` alone without a state.
    """
    held = net.held_state(state)
    if held is None:
        return features
    shape, count = shape_of(held), prod(shape_of(features))
    before, last = _in_a_row(net, held), _in_a_row(net, features)
    rest = net.bb.emit(relax.op.strided_slice(before, axes=[1], begin=[count], end=[prod(shape)]))
    seen = net.bb.emit(relax.op.concat([rest, last], 1))
    net.keep_state(state, _in_shape(net, seen, shape))
    return seen


def _in_a_row(net: Network, value: Value) -> Value:
    """Return a tensor's elements as a single row."""
    return _in_shape(net, value, (1, prod(shape_of(value))))


def _in_shape(net: Network, value: Value, shape: tuple[int, ...]) -> Value:
    """Return a tensor in another shape; itself if equal."""
    return value if shape_of(value) == shape else net.bb.emit(relax.op.reshape(value, list(shape)))


def _svdf_sums(net: Network, features: Value, last: np.ndarray, bias: np.ndarray) -> Value:
    """Return the units, float [batch, units], from a single step's features; `last` are its time weights."""
    parts = net.bb.emit(relax.op.multiply(features, relax.const(last, "float32")))
    shape = [int(features.ty.shape.values[0]), len(bias), len(last) // len(bias)]
    ranks = net.bb.emit(relax.op.reshape(parts, shape))
    return net.bb.emit(relax.op.add(net.bb.emit(relax.op.sum(ranks, axis=-1)), relax.const(bias, "float32")))


def svdf_weights(net: Network, features: Any, times: Any, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the feature weights, and the time weights, [steps, filters]."""
    if any(net.has_expr(t.tensor_idx) for t in (features, times)):
        raise UnsupportedForm("SVDF with computed weights")
    weights, all_times = (np.asarray(net.get_tensor_value(t)) for t in (features, times))
    if (
        weights.ndim != 2
        or all_times.ndim != 2
        or not len(weights) == len(all_times)
        or rank < 1
        or len(weights) % rank
    ):
        raise InvalidForm(f"rank {rank} of {weights.shape} and {all_times.shape}")
    return weights, np.ascontiguousarray(all_times.T)


def _integer_svdf(net: Network, op: Operator, weights: np.ndarray, steps: np.ndarray, bias: np.ndarray) -> Value:
    """Convert an int8 SVDF with an int16 or int8 state and time weights, in the reference's arithmetic."""
    x, features, times, _, state = net.get_input_tensors(op)
    output = net.get_output_tensors(op)[0]
    kind = net.get_tensor_type_str(state.tensor.Type())
    types = [net.get_tensor_type_str(t.tensor.Type()) for t in (x, features, output)]
    if types != ["int8"] * 3 or kind not in ("int8", "int16") or str(steps.dtype) != kind:
        raise UnsupportedForm(f"an integer SVDF of {types[0]} with a state of {kind}")
    if not all(t.qnn_params for t in (features, times, state, output)):
        raise UnsupportedForm("an integer SVDF of which a tensor has no scale")
    if net.options(op, tflite.SVDFOptions).FusedActivationFunction() != tflite.ActivationFunctionType.RELU:
        raise UnsupportedForm("an integer SVDF with another activation than RELU, which the reference refuses")
    batch = net.shape(x)[0]
    held = Output.unbounded((batch, len(weights)), kind, scale_of(state), zero_point_of(state))
    out = Output.unbounded((batch, len(bias)), "int8", scale_of(output), zero_point_of(output))
    filters = Filters(
        weights,
        steps if net.held_state(state) is not None else steps[-1:],
        bias,
        zero_point_of(x),
        held,
        float(scale_of(x) * scale_of(features) / held.scale),
        float(held.scale * scale_of(times) / out.scale),
    )
    value, emitter = net.get_tensor_expr(x), Emitter(net.bb, {}, "svdf")
    if kind == "int16":
        seen = _seen(net, state, lower_features(emitter, value, filters))
        return lower_sums(emitter, _in_a_row(net, seen), filters, out)
    none = np.zeros(len(weights), "int32")
    features = _pixel(net, value, weights.T[None, None], none, zero_point_of(x), filters.feature_scale, held)
    seen = _seen(net, state, features)
    if len(weights) > len(bias):
        return lower_sums(emitter, _in_a_row(net, seen), filters, out)
    return _pixel(net, seen, filters.times[:, None, :, None], bias, held.zero_point, filters.output_scale, out)


def _pixel(
    net: Network, value: Value, weights: np.ndarray, bias: np.ndarray, zero: int, multiplier: float, out: Output
) -> Value:
    """Convert an int8 product to a one-column convolution, with equal arithmetic and fast kernels: [1, 1, depth,
    units], or depthwise over steps [steps, 1, units, 1]; input columns are its batch. Only the scales' product counts,
    so the input takes the whole `multiplier`.
    """
    depth, units = weights.shape[2], out.shape[1]
    kind = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
    if weights.shape[3] != units:
        kind |= {"kernel_layout": "HWOI", "groups": units}

    def real(stored: Value, scale: float, at: int, axis: int) -> Value:
        return net.bb.emit(Stored(stored, relax.const(scale, "float32"), relax.const(at, "int32"), axis).reals)

    pixel = net.bb.emit(relax.op.reshape(value, [1, weights.shape[0], out.shape[0], depth]))
    kernel = real(relax.const(np.ascontiguousarray(weights), "int8"), 1.0, 0, 3)
    made = net.bb.emit(relax.op.nn.conv2d(real(pixel, multiplier, zero, 0), kernel, **kind))
    total = net.bb.emit(relax.op.add(made, real(relax.const(bias, "int32"), multiplier, 0, 0)))
    ends = relax.const(1, "float32"), relax.const(out.zero_point, "int32")
    stored = net.bb.emit(relax.op.quantize(total, *ends, axis=3, out_dtype="int8"))
    return net.bb.emit(relax.op.reshape(stored, list(out.shape)))
