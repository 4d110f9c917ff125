"""Dynamic quantization in staged programs for CPUs: ONNX Runtime's results, element for element."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false
from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te

from tvm_cascade import frontend
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import compile_stages
from tvm_cascade.staging.kernels.cpu_float import cpu_schedule
from tvm_cascade.staging.kernels.cpu_integer import (
    AVX2,
    NEON,
    PLAIN,
    VNNI,
    dynamic_range,
    integer_product,
    pack_integers,
)
from tvm_cascade.staging.kernels.processors import integer_dot
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.dynamic_layers import by_onnx_runtime, layer, written

HERE = integer_dot("llvm")
DOTS = {PLAIN, HERE, *((AVX2,) if HERE == VNNI else ())}  # that this machine has instructions for


def run(func: Any, inputs: list[np.ndarray], outputs: list[np.ndarray], rule: str) -> list[np.ndarray]:
    """Run a kernel by the schedule of `rule`."""
    scheduled = cpu_schedule(func, False, 6)
    assert scheduled.rule == rule and not scheduled.refused
    assert not tvm_ffi.structural_equal(scheduled.func, func)
    results = [tvm.runtime.tensor(o) for o in outputs]
    host = tvm.target.Target({"kind": "llvm", "mcpu": str(tvm.get_global_func("target.llvm_get_system_cpu")())})
    tvm.compile(scheduled.func, target=host)(*map(tvm.runtime.tensor, inputs), *results)
    return [r.numpy() for r in results]


@pytest.mark.parametrize("dot", sorted(DOTS, key=str))
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 64, 40), (1, 4, 5), (1, 8, 130), (7, 16, 17), (16, 12, 64), (50, 40, 33), (9, 256, 16)],
)
def test_products_are_exact(dot, rows, depth, columns):
    """Sums of the largest products of pairs, 2 * 255 * -128, do not saturate."""
    random = np.random.default_rng(rows)
    x = random.choice([0, 1, 117, 254, 255], (2, rows, depth)).astype("uint8")
    weights = random.choice([-128, -127, 3, 127], (depth, columns)).astype("int8")
    zero, scale = np.array(117, "uint8"), np.array(0.02, "float32")
    factors = random.uniform(0.01, 0.02, columns).astype("float32")
    given = [x, zero, scale, pack_integers(weights, dot, rows), weights.astype("int32").sum(0, dtype="int32"), factors]
    args = [te.placeholder(v.shape, str(v.dtype), f"p{k}") for k, v in enumerate(given)]
    func = te.create_prim_func([*args, integer_product(*args, reads=dot.reads)])
    (result,) = run(func, given, [np.full((2, rows, columns), np.nan, "float32")], "integers")
    wanted = ((x.astype("int32") - 117) @ weights.astype("int32")).astype("float32") * (scale * factors)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("shape", [(2, 8, 32), (3, 16), (5, 7), (1,)])
@pytest.mark.parametrize(("low", "high"), [(-3, 5), (1, 2), (-2, -1), (0, 0)])
def test_ranges_contain_zero(shape, low, high):
    x = np.random.default_rng(len(shape)).uniform(low, high, shape).astype("float32")
    source = te.placeholder(x.shape, "float32", "x")
    func = te.create_prim_func([source, *dynamic_range(source)])
    scale, zero = run(func, [x], [np.zeros((), "float32"), np.zeros((), "uint8")], "ranges")
    least, most = min(np.float32(0), x.min()), max(np.float32(0), x.max())
    wanted = (most - least) / np.float32(255) if most > least else np.float32(1)
    assert scale == wanted and zero == np.rint(-least / wanted)


def results(path: Path, x: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the kinds of units, the staged program's result and ONNX Runtime's."""
    net = stage_network(frontend.load(path), "llvm")
    units = unit_graph(net.graph, "fused")
    found = schedule(net.graph, AnalyticCost(find_device("cpu", "llvm", 1)), Options(variant="sequential")).schedule
    machine = relax.VirtualMachine(compile_stages(lower_stages(net, units, found, LowerOptions(workers=1))), tvm.cpu())
    result: Any = machine["main"](tvm.runtime.tensor(x))
    result = result if hasattr(result, "numpy") else result[0]
    kinds = ["+".join(net.graph.ops[i].kind for i in unit.ops) for unit in units.units]
    return kinds, result.numpy(), by_onnx_runtime(path, x)


@pytest.mark.parametrize("zeros", [0, 40])
@pytest.mark.parametrize("scales", [1, 40])
@pytest.mark.parametrize("rows", [1, 33])
def test_layers_are_those_of_onnx_runtime(tmp_path, rows, scales, zeros):
    x = np.random.default_rng(rows).standard_normal((1, rows, 64)).astype("float32")
    x[0, 0, :3] = [0.5, 2.5, -0.5]
    kinds, result, wanted = results(layer(tmp_path, rows, 64, 40, zeros, scales), x)
    assert kinds == ["dynamic_range", "dynamic_quantize", "dense+add"]
    np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6 * float(np.abs(wanted).max()))


def test_a_depth_of_no_whole_steps_is_computed_too(tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 5, 27)).astype("float32")
    _, result, wanted = results(layer(tmp_path, 5, 27, 10), x)
    np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-5)


def test_zeros_stay_zeros(tmp_path):
    """The scale of zeros is 1, not 0."""
    _, result, wanted = results(layer(tmp_path, 2, 8, 4), np.zeros((1, 2, 8), "float32"))
    np.testing.assert_array_equal(result, wanted)


def test_ties_are_rounded_to_even_numbers(tmp_path):
    x = np.array([[[-128, 127, 0.5, 1.5, -0.5, -1.5, 2.5, 126.5]]], "float32")
    path = layer(tmp_path, 1, 8, 8)
    model = onnx.load(path)
    replaced = {"w": np.eye(8, dtype="int8"), "b": np.zeros(8, "float32"), "f": np.ones((), "float32")}
    for held in model.graph.initializer:
        if held.name in replaced:
            held.CopyFrom(numpy_helper.from_array(replaced[held.name], held.name))
    onnx.save(model, path)
    _, result, wanted = results(path, x)
    assert result.ravel().tolist() == wanted.ravel().tolist() == [-128, 127, 0, 2, 0, -2, 2, 126]


def test_other_products_of_integers_stay(tmp_path):
    """A product whose result stays an integer has no factors behind it."""
    make, random = helper.make_node, np.random.default_rng(3)
    nodes = [
        make("DynamicQuantizeLinear", ["x"], ["q", "s", "p"]),
        make("MatMulInteger", ["q", "w", "p"], ["i"]),
        make("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    constants = {"w": random.integers(-128, 128, (8, 4)).astype("int8")}
    path = written(tmp_path, nodes, constants, (1, 3, 8))
    x = random.standard_normal((1, 3, 8)).astype("float32")
    _, result, wanted = results(path, x)
    np.testing.assert_array_equal(result, wanted)


def test_the_instruction_is_that_of_the_processor():
    x86 = [integer_dot(f"llvm -mcpu={cpu}") for cpu in ("x86-64", "x86-64-v3", "skylake-avx512", "cascadelake")]
    arm = [integer_dot(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}") for cpu in ("cortex-a72", "neoverse-n1")]
    assert x86 == [PLAIN, AVX2, AVX2, VNNI] and arm == [PLAIN, NEON]
