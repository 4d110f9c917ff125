"""Substitutions on quantized networks: the same integers out, read and written as islands that LowerQuantized knows."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.islands.reader import EXPLICIT_AXIS
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.substitute_graph import substitute
from tvm_cascade.passes.substitution_read import Read, read_function
from tvm_cascade.passes.substitution_write import write_function
from tvm_cascade.substitution.costs import CUDNN, Figure, Latency
from tvm_cascade.substitution.dag import Dag, replace
from tvm_cascade.substitution.metaflow import SearchOptions
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules, rules
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import quick_run

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
    return quick_run(lowered, *data)


def check(mod: tvm.IRModule, other: tvm.IRModule) -> None:
    data = stored_inputs(mod)
    for a, b in zip(integers(mod, data), integers(other, data), strict=True):
        np.testing.assert_array_equal(a, b)


def written(mod: tvm.IRModule, read: Read, dag: Dag | None = None) -> tvm.IRModule:
    """`mod` with `main` as its graph, or `dag`, is written back."""
    made = mod.clone()
    made.update_func(mod.get_global_var("main"), write_function(dag or read.dag, read, mod["main"].attrs))
    return made


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


def heads() -> tvm.IRModule:
    """Two fully connected layers of one input, one of them read by a third, with activations."""
    net = Net("int8", seed=9)
    x = net.flatten(net.conv(net.input((1, 4, 4, 3)), 5, 3))
    a, b = net.dense(x, 6, activation="relu"), net.dense(x, 7, activation="relu")
    return net.finish([net.dense(a, 4), b])


def depthwise_parts(multiplier: int = 2) -> tvm.IRModule:
    """Depthwise convolutions of two tensors, concatenated, and two of the result."""
    net = Net("int8", seed=7)
    x, y = net.conv(net.input((1, 8, 8, 3)), 4, 1), net.input((1, 8, 8, 5))
    z = net.concat([net.depthwise(x, multiplier=multiplier), net.depthwise(y, multiplier=multiplier)])
    return net.finish([net.depthwise(z, 3), net.depthwise(z, 3, multiplier=2)])


def sums() -> tvm.IRModule:
    """Sums of parts, concatenated; one more is clipped, one is the same as another."""
    net = Net("int8", seed=5)
    a, b, c, d = (net.input((1, 4, 4, 3)) for _ in range(4))
    whole = net.concat([net.add(a, b), net.add(c, d)])
    return net.finish([net.conv(whole, 3, 1), net.add(a, b, activation="relu"), net.add(b, a)])


@pytest.mark.parametrize("make", [fire, siblings, lambda: fire("varied"), heads, depthwise_parts, sums])
def test_a_round_trip_keeps_every_bit(make):
    mod = make()
    read = read_function(mod["main"])
    assert {n.kind for n in read.dag.nodes} & {"qconv2d", "qmatmul", "qadd"}
    check(mod, written(mod, read))


def doubled(axis: int) -> tvm.IRModule:
    """The sum of every stored byte and itself, between dequantizes along `axis`."""

    def constants(scale: float, zero: int) -> list[relax.Expr]:
        return [relax.const(scale, "float32"), relax.const(zero, "int32")]

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((256,), "int8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            real = [builder.emit(relax.op.dequantize(x, *constants(0.07, 3), axis)) for _ in range(2)]
            total = builder.emit(relax.op.add(*real))
            y = builder.emit_output(relax.op.quantize(total, *constants(0.56, -1), out_dtype="int8"))
        builder.emit_func_output(y)
    return builder.finalize()


def test_explicit_dequantizes_stay_explicit():
    """Those of the file are operators on real numbers: what is between them rounds otherwise than TFLite's kernels."""
    mod, implicit = doubled(EXPLICIT_AXIS), doubled(0)
    data = [np.arange(-128, 128).astype("int8")]
    assert (integers(mod, data)[0] != integers(implicit, data)[0]).any()
    back = written(mod, read_function(mod["main"]))
    np.testing.assert_array_equal(integers(back, data)[0], integers(mod, data)[0])
    assert [n.kind for n in read_function(implicit["main"]).dag.nodes].count("qadd") == 1


def test_a_layout_that_is_not_lowered_is_not_read():
    """A convolution that stays float as it is may not become an integer one by being written back."""
    y = relax.Var("x", relax.TensorType((1, 4, 4, 2), "int8"))
    stored = relax.const(np.arange(-12, 12).astype("int8").reshape(3, 2, 2, 2))
    scale, zero = relax.const(0.5, "float32"), relax.const(0, "int32")
    builder = relax.BlockBuilder()
    with builder.function("main", [y]):
        with builder.dataflow():
            real, kernel = (builder.emit(relax.op.dequantize(v, scale, zero, 0)) for v in (y, stored))
            real = builder.emit(relax.op.nn.conv2d(real, kernel, data_layout="NHWC", kernel_layout="OHWI"))
            y = builder.emit_output(relax.op.quantize(real, scale, zero, out_dtype="int8"))
        builder.emit_func_output(y)
    mod = builder.finalize()
    assert "relax.nn.conv2d" in {r.operator for r in float_remains(LowerQuantized()(mod))}
    assert "qconv2d" not in {n.kind for n in read_function(mod["main"]).dag.nodes}


@pytest.mark.parametrize("make", [fire, heads, depthwise_parts, sums])
def test_no_island_stays_opaque(make):
    read = read_function(make()["main"])
    assert not [n for n in read.dag.nodes if n.kind == "opaque"]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (fire, "fuse_quantized_convs_enlarged"),
        (siblings, "fuse_quantized_convs"),
        (heads, "merge_quantized_matmuls"),
        (depthwise_parts, "concat_of_depthwise"),
    ],
)
def test_merged_islands_keep_every_bit(make, rule):
    mod = make()
    done = substitute(mod, LAUNCHES, integer_rules())
    found = done.results["main"]
    assert rule in {s.rule for s in found.steps} and found.cost_after < found.cost_before
    check(mod, done.mod)


def test_a_concatenation_of_what_was_split_vanishes():
    done = substitute(fire(), LAUNCHES, integer_rules())
    assert not [n for n in done.results["main"].dag.nodes if n.kind in ("concat", "split")]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (depthwise_parts, ["fuse_grouped_convs"]),
        (depthwise_parts, ["concat_of_depthwise", "depthwise_of_concat"]),
        (sums, ["concat_of_quantized_sums", "quantized_sum_of_concats"]),
    ],
)
def test_each_rule_alone_keeps_every_bit(make, names):
    """Whether it pays or not."""
    mod = make()
    read = read_function(mod["main"])
    dag = read.dag
    for name in names:
        sites = Matcher(rules(name)).sites(dag)
        assert sites
        dag = replace(dag, sites[-1].target)
        check(mod, written(mod, read, dag))


def test_equal_sums_are_one_whatever_the_order_of_their_operands():
    dag = read_function(sums()["main"]).dag
    assert len([n for n in dag.nodes if n.kind == "qadd"]) == 3  # four are written


def test_unequal_quantizations_stay_apart():
    done = substitute(fire("varied"), LAUNCHES, integer_rules())
    assert not [s for s in done.results["main"].steps if "convs" in s.rule]
    check(fire("varied"), done.mod)


def test_float_rules_leave_islands_exact():
    mod = fire()
    done = substitute(mod, Latency("latency", CUDNN, model=AnalyticCost(find_device("v100"))), ALL_RULES)
    check(mod, done.mod)


@pytest.mark.parametrize("name", ["resnet8_int8", "kws_dscnn_int8"])
def test_public_networks_keep_every_bit(test_data, name):
    from tvm_cascade import frontend

    mod = frontend.load(test_data / "models" / f"{name}.tflite")
    done = substitute(mod, LAUNCHES, integer_rules(), SearchOptions(max_graphs=500))
    assert done.results["main"].steps
    check(mod, done.mod)
