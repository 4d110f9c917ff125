"""Float layers: fused with bias and activation where nothing else reads what lies between, every bit as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax as _relax

from tvm_cascade.cascading import PlanOptions
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.fuse_float_layers import fuse_float_layers
from tvm_cascade.passes.plan_network import lower_integers, plan_network
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.host_check import plan_prepared, run_plan

relax: Any = _relax  # its nodes get their fields at run time, where no type checker sees them


def prepared(mod: object, fused: bool) -> PreparedGraph:
    return KernelSource(KernelTarget(), fused_floats=fused).prepare(mod)  # type: ignore[arg-type]


def outputs(made: PreparedGraph, mod: object) -> tuple[np.ndarray, ...]:
    shape = made.graph.tensors[made.graph.inputs[0]].shape
    feed = np.random.default_rng(5).standard_normal(shape).astype("float32")
    plan = plan_prepared(mod, made, PlanOptions(layerwise=True)).plan  # type: ignore[arg-type]
    return run_plan(made, plan, [feed]).outputs


NETWORKS: dict[str, tuple[Callable[[Net, Value], Value], list[str]]] = {
    "same": (lambda n, x: n.conv(x, 6, 3, activation="relu6"), ["conv2d"]),
    "stride": (lambda n, x: n.conv(x, 6, 3, 2, activation="relu"), ["conv2d"]),
    "dilated, no activation": (lambda n, x: n.conv(x, 3, 3, dilation=2), ["conv2d"]),
    "no bias": (lambda n, x: n.conv(x, 3, 1, padding="valid", bias=False, activation="relu"), ["conv2d"]),
    "alone": (lambda n, x: n.conv(x, 3, 3, bias=False), ["conv2d"]),
    "depthwise": (lambda n, x: n.depthwise(x, 3, 2, activation="relu6"), ["depthwise_conv2d"]),
    "multiplier": (lambda n, x: n.depthwise(x, 3, multiplier=2), ["depthwise_conv2d"]),
    "dense": (lambda n, x: n.dense(n.flatten(x), 7, activation="relu"), ["dense"]),
    "groups": (lambda n, x: n.conv(x, 4, 3, groups=2), ["conv2d"]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_one_operator_of_the_same_bits(name: str) -> None:
    build, kinds = NETWORKS[name]
    net = Net("float32", seed=2)
    mod = net.finish(build(net, net.input((1, 7, 6, 4))))
    fused, apart = prepared(mod, True), prepared(mod, False)
    assert [op.kind for op in fused.graph.ops if not op.view] == kinds
    assert fused.graph.macs == apart.graph.macs
    for have, want in zip(outputs(fused, mod), outputs(apart, mod), strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(("kernel", "stride", "dilation", "padding"), [(3, 2, 1, 0), (3, 2, 1, 1), (3, 4, 2, 1)])
def test_windows_that_reach_beyond_the_map_hold_its_elements_alone(
    kernel: int, stride: int, dilation: int, padding: int
) -> None:
    net, size = Net("float32", seed=2), 8
    x = net.input((1, size, size, 3))
    how = {"padding": [padding] * 4, "dilation": [dilation] * 2, "ceil_mode": True, "layout": "NHWC"}
    made_of = relax.op.nn.max_pool2d(x.expr, [kernel] * 2, [stride] * 2, **how)
    mod = net.finish(Value(net._emit(made_of), ()))
    made = prepared(mod, True)
    assert [op.kind for op in made.graph.ops] == ["max_pool2d"]
    (have,) = outputs(made, mod)
    data = np.random.default_rng(5).standard_normal((size, size, 3)).astype("float32")
    count = 1 - (-(size + 2 * padding - (kernel - 1) * dilation - 1) // stride)
    taps = [[stride * i - padding + dilation * k for k in range(kernel)] for i in range(count)]
    assert max(map(max, taps)) > size - 1 + padding  # beyond the padding, too
    taps = [[t for t in some if 0 <= t < size] for some in taps]
    want = [[data[np.ix_(rows, columns)].max(axis=(0, 1)) for columns in taps] for rows in taps]
    np.testing.assert_array_equal(have, np.array(want)[None])


def test_what_others_read_is_kept() -> None:
    net = Net("float32", seed=2)
    x = net.input((1, 6, 6, 4))
    y = net.conv(x, 4, 1)  # read by the relu and by the addition
    mod = net.finish([net.add(y, net.relu(y)), net.conv(x, 4, 1, bias=False)])
    fused, apart = prepared(mod, True), prepared(mod, False)
    assert [op.kind for op in fused.graph.ops] == ["conv2d", "add", "conv2d"]  # which computes the relu
    for have, want in zip(outputs(fused, mod), outputs(apart, mod), strict=True):
        np.testing.assert_array_equal(have, want)


def test_sums_of_activations_are_no_biases() -> None:
    net = Net("float32", seed=2)
    x = net.input((1, 6, 6, 4))
    mod = net.finish(net.relu(net.add(net.conv(x, 4, 3), x)))
    assert [op.kind for op in prepared(mod, True).graph.ops] == ["conv2d", "relu"]


def test_other_modules_are_not_changed() -> None:
    net = Net("int8")
    mod = lower_integers(net.finish(net.conv(net.input((1, 6, 6, 4)), 4, 3)))
    assert fuse_float_layers(mod) is mod
    planes = Net("float32", "NCHW")
    nchw = planes.finish(planes.conv(planes.input((1, 4, 6, 6)), 4, 3))
    assert fuse_float_layers(nchw) is nchw


def test_apart_where_nothing_else_fits() -> None:
    net = Net("float32", seed=1)
    mod = net.finish(net.conv(net.input((1, 96, 96, 3)), 8, 3, 2, activation="relu"))
    fused = plan_network(mod)
    apart = plan_network(mod, PlanRequest(sram=fused.plan.peak - 4))
    assert len(fused.graph.ops) == 1 and apart.plan.peak < fused.plan.peak
    assert apart.kept == {"float layers apart": apart.kept["float layers apart"]} and "apart" in apart.reason
    with pytest.raises(InfeasibleError):
        plan_network(mod, PlanRequest(sram=96 * 96 * 3 * 4))
