"""Substitutions on quantized networks: the same integers out, read and written as islands that LowerQuantized knows."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.passes.lower_quantized import LowerQuantized, float_remains
from tvm_cascade.passes.substitute_graph import substitute
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.passes.substitution_write import write_function
from tvm_cascade.runtime import Session
from tvm_cascade.substitution.costs import CUDNN, Figure, Latency
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules
from tvm_cascade.testing.builder import Net

LAUNCHES = Figure("launches", CUDNN)


def stored_inputs(mod: tvm.IRModule) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    made = []
    for p in mod["main"].params:
        info = np.iinfo(str(p.ty.dtype))
        shape = [int(d) for d in p.ty.shape.values]
        made.append(rng.integers(info.min, info.max + 1, shape).astype(str(p.ty.dtype)))
    return made


def integers(mod: tvm.IRModule, data: list[np.ndarray]) -> list[np.ndarray]:
    lowered = LowerQuantized()(mod)
    assert float_remains(lowered) == ()
    return Session(tvm.compile(lowered, "llvm")).run(*data)


def check(mod: tvm.IRModule, other: tvm.IRModule) -> None:
    data = stored_inputs(mod)
    for a, b in zip(integers(mod, data), integers(other, data), strict=True):
        np.testing.assert_array_equal(a, b)


def fire(scales: str = "shared", dtype: str = "int8") -> tvm.IRModule:
    """A squeeze, two expands with biases and activations, their concatenation, and a pool."""
    net = Net(dtype, seed=6, scales=scales)
    x = net.conv(net.input((1, 9, 9, 4)), 6, 1, activation="relu")
    y = net.concat([net.conv(x, 8, 1, activation="relu"), net.conv(x, 8, 3, activation="relu")])
    return net.finish(net.max_pool(net.conv(y, 5, 3, 2), 2))


def siblings() -> tvm.IRModule:
    net = Net("int8", seed=8)
    x = net.input((1, 8, 8, 5))
    a, b, c = (net.conv(x, n, 1) for n in (3, 4, 6))
    return net.finish([net.concat([a, b]), net.max_pool(c, 2)])


@pytest.mark.parametrize("make", [fire, siblings, lambda: fire("varied")])
def test_a_round_trip_keeps_every_bit(make):
    mod = make()
    read = read_function(mod["main"])
    assert any(n.kind == "qconv2d" for n in read.dag.nodes)
    made = mod.clone()
    made.update_func(mod.get_global_var("main"), write_function(read.dag, read, mod["main"].attrs))
    check(mod, made)


@pytest.mark.parametrize(
    ("make", "rule"), [(fire, "fuse_quantized_convs_enlarged"), (siblings, "fuse_quantized_convs")]
)
def test_merged_islands_keep_every_bit(make, rule):
    mod = make()
    done = substitute(mod, LAUNCHES, integer_rules())
    found = done.found["main"]
    assert rule in {s.rule for s in found.steps} and found.cost_after < found.cost_before
    check(mod, done.mod)


def test_a_concatenation_of_what_was_split_vanishes():
    done = substitute(fire(), LAUNCHES, integer_rules())
    assert not [n for n in done.found["main"].dag.nodes if n.kind in ("concat", "split")]


def test_unequal_quantizations_stay_apart():
    done = substitute(fire("varied"), LAUNCHES, integer_rules())
    assert not [s for s in done.found["main"].steps if "convs" in s.rule]
    check(fire("varied"), done.mod)


def test_float_rules_leave_islands_exact():
    mod = fire()
    done = substitute(mod, Latency("latency", CUDNN, model=AnalyticCost(find_device("v100"))), ALL_RULES)
    check(mod, done.mod)


@pytest.mark.parametrize("name", ["resnet8_int8", "kws_dscnn_int8"])
def test_public_networks_keep_every_bit(test_data, name):
    from tvm_cascade import frontend

    mod = frontend.load(test_data / "models" / f"{name}.tflite")
    done = substitute(mod, LAUNCHES, integer_rules(), total_seconds=10)
    assert done.found["main"].steps
    check(mod, done.mod)
