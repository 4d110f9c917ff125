"""Activations that files spell out of several operators: a kernel with the layer in front, whose result is not written."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from math import pi, sqrt

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.closed_regions import closed_region
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.layouts import packed_tensors
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.quick_build import quick_run

Op = relax.op


def number(value: float) -> relax.Expr:
    return relax.const(np.float32(value))


def gelu_erf(emit, x):
    gate = emit(Op.add(emit(Op.erf(emit(Op.divide(x, number(sqrt(2)))))), number(1.0)))
    return emit(Op.multiply(emit(Op.multiply(x, gate)), number(0.5)))


def gelu_tanh(emit, x):
    cube = emit(Op.multiply(emit(Op.multiply(x, x)), x))
    inner = emit(Op.add(x, emit(Op.multiply(cube, number(0.044715)))))
    gate = emit(Op.add(number(1.0), emit(Op.tanh(emit(Op.multiply(inner, number(sqrt(2 / pi))))))))
    return emit(Op.multiply(emit(Op.multiply(number(0.5), x)), gate))


def silu(emit, x):
    return emit(Op.multiply(x, emit(Op.sigmoid(x))))


def hard_swish(emit, x):
    six = emit(Op.clip(emit(Op.add(x, number(3.0))), 0.0, 6.0))
    return emit(Op.divide(emit(Op.multiply(x, six)), number(6.0)))


def mish(emit, x):
    softplus = emit(Op.log(emit(Op.add(number(1.0), emit(Op.exp(x))))))
    return emit(Op.multiply(x, emit(Op.tanh(softplus))))


def silu_of_silu(emit, x):
    return silu(emit, silu(emit, x))


def relu(emit, x):
    return emit(Op.nn.relu(x))


def relu_up_to_6(emit, x):
    return emit(Op.clip(x, 0.0, 6.0))


ACTIVATIONS = (gelu_erf, gelu_tanh, silu, hard_swish, mish, silu_of_silu, relu, relu_up_to_6)


def dense(emit, x):
    random = np.random.default_rng(0)
    return emit(Op.matmul(x, relax.const(random.standard_normal((32, 24)).astype("float32"))))


def convolution(channels: int):
    def write(emit, x):
        weights = np.random.default_rng(0).standard_normal((channels, 16, 3, 3)) / 8
        return emit(Op.nn.conv2d(x, relax.const(weights.astype("float32")), padding=1))

    return write


def network(shape, layer, write) -> tvm.IRModule:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(write(builder.emit, layer(builder.emit, x)))
        builder.emit_func_output(out)
    return builder.finalize()


@pytest.mark.parametrize("write", ACTIVATIONS)
@pytest.mark.parametrize(
    ("shape", "layer"),
    [((5, 32), dense), ((1, 16, 6, 7), convolution(24)), ((1, 16, 8, 8), convolution(32)), ((3, 8), lambda _, x: x)],
)
def test_layer_and_activation_are_one_kernel(shape, layer, write):
    mod = network(shape, layer, write)
    net = stage_network(mod, "llvm")
    units = unit_graph(net.graph, "fused")
    if net.graph.ops[0].kind in ("dense", "conv2d"):
        assert units.kernels == ((tuple(range(len(net.graph.ops))),),)
    data = np.random.default_rng(1).standard_normal(shape).astype("float32") * 3
    data.reshape(*shape[:2], -1)[0, :3, 0] = np.nan, np.inf, -np.inf
    (expected,) = quick_run(mod, data)
    best = schedule(net.graph, AnalyticCost(find_device("cpu2")), Options()).schedule
    (result,) = Session(compile_stages(lower_stages(net, units, best, LowerOptions()))).run(data)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    np.testing.assert_array_equal(result[np.isinf(expected)], expected[np.isinf(expected)])
    np.testing.assert_allclose(result[finite], expected[finite], rtol=0, atol=1e-5 * np.abs(expected[finite]).max())


def gate_of_another_layer(emit, x):
    return emit(Op.multiply(x, emit(Op.sigmoid(emit(Op.matmul(x, relax.const(np.eye(24, dtype="float32"))))))))


def means(emit, x):
    return emit(Op.subtract(x, emit(Op.mean(x, [-1], keepdims=True))))


@pytest.mark.parametrize("write", [gate_of_another_layer, means])
def test_what_is_not_element_wise_ends_a_region(write):
    graph = stage_network(network((5, 32), dense, write), "llvm").graph
    assert closed_region(graph, graph.ops[0]) is None


def test_operators_stay_units_of_their_own_where_asked():
    graph = stage_network(network((5, 32), dense, silu), "llvm").graph
    assert len(unit_graph(graph, "op").units) == len(graph.ops)


def test_expressions_do_not_double_without_end():
    """Each SiLU reads its argument twice: thirty in a row would be an expression of a billion terms."""

    def thirty(emit, x):
        for _ in range(30):
            x = silu(emit, x)
        return x

    graph = stage_network(network((5, 32), dense, thirty), "llvm").graph
    kernels = [k for unit in unit_graph(graph, "fused").kernels for k in unit]
    assert max(map(len, kernels)) <= 9
    assert sum(map(len, kernels)) == len(graph.ops)


def sigmoid(emit, x):
    return emit(Op.sigmoid(x))


def tanh(emit, x):
    return emit(Op.tanh(x))


@pytest.mark.parametrize("write", [*ACTIVATIONS, sigmoid, tanh])
@pytest.mark.parametrize("groups", [1, 32])
def test_activations_between_convolutions_on_packed_tensors(write, groups):
    """Such a kernel writes vectors of channels: every lane has an element of its own."""
    random = np.random.default_rng(0)

    def weights(*shape):
        return relax.const((random.standard_normal(shape) / 12).astype("float32"))

    def layers(emit, x):
        y = emit(Op.nn.conv2d(x, weights(32, 16, 3, 3), padding=1))
        y = write(emit, emit(Op.nn.conv2d(y, weights(32, 32 // groups, 3, 3), padding=1, strides=2, groups=groups)))
        return emit(Op.nn.conv2d(y, weights(16, 32, 3, 3), padding=1))

    mod = network((1, 16, 12, 12), lambda _, x: x, layers)
    net = stage_network(mod, "llvm")
    units = unit_graph(net.graph, "fused")
    best = schedule(net.graph, AnalyticCost(find_device("cpu2")), Options()).schedule
    staged = lower_stages(net, units, best, LowerOptions())
    data = random.standard_normal((1, 16, 12, 12)).astype("float32")
    (expected,) = quick_run(mod, data)
    (result,) = Session(compile_stages(staged)).run(data)
    assert packed_tensors(net)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
