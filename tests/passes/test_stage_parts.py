"""Concats of programs for CUDA without a kernel: whoever writes an operand writes a part of the result."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from collections.abc import Callable

import numpy as np
import pytest
import tvm

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.concat import write_in_place
from tvm_cascade.staging.program.cuda import emit_cuda
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.program import Program, check_groups, plan_program
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.quick_build import QUICK_TARGET, quick_run
from tvm_cascade.testing.random_images import random_images
from tvm_cascade.testing.zoo.inception import inception_e

GPU = find_device("h200")


pytestmark = pytest.mark.usefixtures("graph_builtins")


def concats(program: Program) -> int:
    """Kernels that begin with a concat."""
    return sum(program.net.graph.ops[s.ops[0]].kind == "concat" for s in program.specs)


def checked(
    mod: tvm.IRModule, precision: str = "fp32", unit: str = "fused", variant: str = "parallel"
) -> tuple[int, int]:
    """Concats before and after; the program, with kernels for a CPU, computes what the network does."""
    net = stage_network(mod, "cuda", precision)
    units = unit_graph(net.graph, unit)
    found = schedule(
        net.graph, AnalyticCost(GPU, precision), Options(unit=unit, variant=variant, max_states=300)
    ).schedule
    plain = plan_program(net, units, found, captured=True)
    program = write_in_place(plain)
    check_groups(program)
    kernels = build_kernels(net, program.specs, False, program.slices)
    session = Session(compile_stages(emit_cuda(program, kernels, "llvm", True, "cpu:0"), QUICK_TARGET))
    rng = np.random.default_rng(0)
    data = [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]
    for made, expected in zip(session.run(*data), quick_run(mod, *data), strict=True):
        tolerance = 1e-4 if precision == "fp32" else 1e-2
        np.testing.assert_allclose(made, expected, atol=tolerance * np.abs(expected).max())
    return concats(plain), concats(program)


def built(make: Callable[[Net, Value], Value | list[Value]], layout: str = "NCHW") -> tvm.IRModule:
    net = Net("float32", layout, seed=1)
    made = make(net, net.input((2, 8, 9, 9) if layout == "NCHW" else (2, 9, 9, 8), "x"))
    return net.finish(made)


def branches(net: Net, x: Value) -> list[Value]:
    return [net.relu(net.conv(x, 6, 3)), net.max_pool(x, 3, 1, "same"), net.conv(x, 5, 1)]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("unit", ["fused", "op"])
def test_operands_are_written_into_the_result(unit: str, precision: str) -> None:
    mod = built(lambda net, x: net.relu(net.conv(net.concat(branches(net, x)), 7, 3)))
    assert checked(mod, precision, unit) == (1, 0)
    assert checked(inception_e(width=0.0625), precision, unit) == (1, 0)


def test_a_concat_of_a_concat() -> None:
    def nested(net: Net, x: Value) -> Value:
        inner = net.concat(branches(net, x))
        return net.conv(net.concat([net.conv(x, 4, 3), inner, net.conv(x, 3, 1)]), 5, 1)

    assert checked(built(nested)) == (2, 0)


def test_an_operand_that_others_read() -> None:
    def read(net: Net, x: Value) -> Value:
        first, *others = branches(net, x)
        return net.concat([net.conv(net.concat([first, *others]), 4, 1), net.conv(first, 4, 3)])

    assert checked(built(read))[1] <= 1


@pytest.mark.parametrize("variant", ["sequential", "greedy", "both"])
def test_what_lies_elsewhere_stays_a_kernel(variant: str) -> None:
    """Inputs of the network, its results, the same tensor twice. (In NCHW inputs and results are transposed, and no operands.)"""

    def given(net: Net, x: Value) -> Value:
        return net.conv(net.concat([x, net.conv(x, 4, 3)]), 4, 1)

    def result(net: Net, x: Value) -> list[Value]:
        first, *others = branches(net, x)
        return [first, net.conv(net.concat([first, *others]), 4, 1)]

    def twice(net: Net, x: Value) -> Value:
        y = net.conv(x, 4, 3)
        return net.conv(net.concat([y, y]), 4, 1)

    for make, moved in ((given, True), (result, True), (twice, False)):
        assert checked(built(make, "NHWC"), variant=variant) == (1, 1)
        assert checked(built(make), variant=variant) == (1, 0 if moved else 1)


@pytest.mark.parametrize("seed", [5, 6, 11, 13])
def test_random_networks(seed: int) -> None:
    mod = random_images(seed, steps=7, batch=1 + seed % 2, channels=(4, 12, 16))
    before, after = checked(
        mod, ("fp32", "fp16")[seed % 2], ("fused", "op")[seed % 2], ("both", "greedy")[seed // 2 % 2]
    )
    assert after <= before
