"""Normalizations that exporters spell out: one kernel each, for rows."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.kernels.cpu_float import cpu_schedule
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.staging.program.specs import Spec
from tvm_cascade.testing.quick_build import quick_run

SHAPE = (2, 5, 48)
EPSILON = 1e-5
WEIGHT = np.linspace(0.5, 1.5, 48, dtype="float32")
SHIFT = np.linspace(-0.3, 0.3, 48, dtype="float32")


def const(value) -> relax.Expr:
    return relax.const(np.asarray(value, "float32"), "float32")


def module(write: Callable[..., relax.Expr], shape=SHAPE) -> tvm.IRModule:
    """Build a module of one float32 input; `write` emits by its first argument."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(write(builder.emit, x))
        builder.emit_func_output(out)
    return builder.finalize()


def roots(emit, square, axes=(-1,)):
    mean = emit(relax.op.mean(square, list(axes), keepdims=True))
    return emit(relax.op.sqrt(emit(relax.op.add(mean, const(EPSILON)))))


def by_division(emit, x):  # as onnx_calls writes it
    return emit(relax.op.multiply(relax.op.divide(x, roots(emit, emit(relax.op.multiply(x, x)))), const(WEIGHT)))


def by_reciprocal(emit, x):  # torch.onnx
    square = emit(relax.op.power(x, const(2.0)))
    root = emit(relax.op.divide(const(1.0), roots(emit, square)))
    return emit(relax.op.multiply(const(WEIGHT), emit(relax.op.multiply(x, root))))


def by_rsqrt(emit, x):  # torch.export
    mean = emit(relax.op.mean(emit(relax.op.square(x)), [2], keepdims=True))
    root = emit(relax.op.rsqrt(emit(relax.op.add(const([EPSILON]), mean))))
    return emit(relax.op.multiply(emit(relax.op.multiply(root, x)), const(WEIGHT[None, None])))


def layer(emit, x):  # torch.onnx before opset 17
    d = emit(relax.op.subtract(x, emit(relax.op.mean(x, [-1], keepdims=True))))
    y = emit(relax.op.divide(d, roots(emit, emit(relax.op.power(d, const(2.0))))))
    return emit(relax.op.add(emit(relax.op.multiply(y, const(WEIGHT))), const(SHIFT)))


def layer_by_variance(emit, x):
    d = emit(relax.op.subtract(x, emit(relax.op.mean(x, [-1], keepdims=True))))
    variance = emit(relax.op.variance(x, [-1], keepdims=True))
    root = emit(relax.op.rsqrt(emit(relax.op.add(variance, const(EPSILON)))))
    y = emit(relax.op.multiply(d, root))
    return emit(relax.op.add(const(SHIFT), emit(relax.op.multiply(y, const(WEIGHT)))))


def rms(x: np.ndarray) -> np.ndarray:
    x = x.astype("float64")
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * WEIGHT


def centered(x: np.ndarray) -> np.ndarray:
    x = x.astype("float64")
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON) * WEIGHT + SHIFT


def staged(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    net = stage_network(mod, "llvm")
    found = schedule(net.graph, AnalyticCost(find_device("cpu2")), Options()).schedule
    units = unit_graph(net.graph, "fused")
    return Session(compile_stages(lower_stages(net, units, found, LowerOptions()))).run(x)[0]


FORMS = [
    pytest.param(by_division, rms, "rms_norm", id="by division"),
    pytest.param(by_reciprocal, rms, "rms_norm", id="by reciprocal"),
    pytest.param(by_rsqrt, rms, "rms_norm", id="by rsqrt"),
    pytest.param(layer, centered, "layer_norm", id="layer"),
    pytest.param(layer_by_variance, centered, "layer_norm", id="layer by variance"),
]


@pytest.mark.parametrize(("write", "wanted", "kind"), FORMS)
def test_a_normalization_is_one_loop_over_rows(write, wanted, kind):
    mod = module(write)
    net = stage_network(mod, "llvm")
    assert [op.kind for op in net.graph.ops] == [kind]
    (kernel,) = build_kernels(net, [Spec((0,))], cpu=True)
    made = cpu_schedule(kernel.func, True, 6)
    assert made.rule == "rows"
    assert made.func.script().count("T.parallel") == 1
    x = np.random.default_rng(0).normal(1, 3, SHAPE).astype("float32")
    np.testing.assert_allclose(staged(mod, x), wanted(x), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("write", "wanted", "kind"), FORMS)
def test_no_number_is_lost(write, wanted, kind):
    x = np.random.default_rng(1).normal(0, 1, SHAPE).astype("float32")
    x[0, 1, 3], x[0, 2, 4], x[1, 0] = np.nan, np.inf, 0
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(staged(module(write), x), wanted(x), rtol=2e-6, atol=2e-6)


def of_columns(emit, x):
    return emit(relax.op.divide(x, roots(emit, emit(relax.op.multiply(x, x)), (1,))))


def of_another(emit, x):
    y = emit(relax.op.negative(x))
    return emit(relax.op.divide(y, roots(emit, emit(relax.op.multiply(x, x)))))


def without_epsilon(emit, x):
    mean = emit(relax.op.mean(emit(relax.op.multiply(x, x)), [-1], keepdims=True))
    return emit(relax.op.divide(x, emit(relax.op.sqrt(mean))))


def cubed(emit, x):
    return emit(relax.op.divide(x, roots(emit, emit(relax.op.power(x, const(3.0))))))


@pytest.mark.parametrize("write", [of_columns, of_another, without_epsilon, cubed])
def test_other_quotients_stay_as_they_are(write):
    net = stage_network(module(write), "llvm")
    assert "divide" in [op.kind for op in net.graph.ops]


def test_a_scale_of_rows_stays_behind_the_normalization():
    def write(emit, x):
        norm = emit(relax.op.divide(x, roots(emit, emit(relax.op.multiply(x, x)))))
        return emit(relax.op.multiply(norm, const(np.arange(5)[None, :, None])))

    mod = module(write)
    assert [op.kind for op in stage_network(mod, "llvm").graph.ops] == ["rms_norm", "mul"]
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    np.testing.assert_allclose(staged(mod, x), quick_run(mod, x)[0], rtol=2e-6, atol=2e-6)


def test_a_normalization_read_twice_is_computed_once():
    def write(emit, x):
        norm = emit(relax.op.divide(x, roots(emit, emit(relax.op.multiply(x, x)))))
        return emit(relax.op.add(emit(relax.op.multiply(norm, const(WEIGHT))), emit(relax.op.tanh(norm))))

    kinds = [op.kind for op in stage_network(module(write), "llvm").graph.ops]
    assert kinds.count("rms_norm") == 1


def test_rows_of_several_axes_and_of_no_whole_vectors():
    def write(emit, x):
        return emit(relax.op.divide(x, roots(emit, emit(relax.op.multiply(x, x)), (1, 2))))

    mod = module(write, (3, 5, 7))
    assert [op.kind for op in stage_network(mod, "llvm").graph.ops] == ["rms_norm"]
    x = np.random.default_rng(0).standard_normal((3, 5, 7)).astype("float32")
    wanted = x / np.sqrt((x.astype("float64") ** 2).mean((1, 2), keepdims=True) + EPSILON)
    np.testing.assert_allclose(staged(mod, x), wanted, rtol=2e-6, atol=2e-6)
