"""RewriteForMemory: concats that never exist, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from tvm_cascade.ordering import order
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.rewrite_for_memory import ATTRIBUTE, RewriteForMemory, foldable
from tvm_cascade.schedules.tir import collect, ir, is_if_then_else, tirx
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.quick_build import virtual_machine


def consumer(net: Net, kind: str, y: Value) -> Value:
    if kind == "conv":
        return net.conv(y, 8, 3, activation="relu")
    if kind == "strided":
        return net.conv(y, 8, 3, 2, "valid", dilation=2)
    if kind == "depthwise":
        return net.depthwise(y, 3, 2)
    return net.max_pool(y, 3, 2, "same") if kind == "max_pool" else net.avg_pool(y, 2)


def branches(kind: str, scales: str = "shared") -> tvm.IRModule:
    net = Net("int8", seed=7, scales="varied" if scales == "varied" else "shared")
    x = net.input((1, 12, 12, 4))
    a = net.conv(x, 16, 3, activation="relu")
    b = net.conv(x, 8, 1)
    return net.finish(consumer(net, kind, net.concat([a, b, net.conv(b, 12, 3)])))


def results(mod: tvm.IRModule, xs: list[np.ndarray]) -> list[np.ndarray]:
    machine = virtual_machine(mod)
    return [machine["main"](tvm.runtime.tensor(x)).numpy() for x in xs]


@pytest.mark.parametrize(
    ("kind", "scales"),
    [
        ("conv", "varied"),
        ("strided", "shared"),
        ("depthwise", "varied"),
        ("max_pool", "shared"),
        ("avg_pool", "varied"),
    ],
)
def test_every_reader_reads_the_parts(kind: str, scales: str) -> None:
    low = LowerQuantized()(branches(kind, scales))
    before = low.script()
    rewritten = RewriteForMemory()(low)
    assert low.script() == before
    graph, after = extract_graph(low).graph, extract_graph(rewritten).graph
    assert int(rewritten["main"].attrs[ATTRIBUTE]) == 1 and all(op.kind != "concat" for op in after.ops)
    assert order(after).peak < order(graph).peak
    assert after.macs == graph.macs
    random = np.random.default_rng(0)
    xs = [random.integers(-128, 128, (1, 12, 12, 4)).astype("int8") for _ in range(2)]
    for one, other in zip(results(low, xs), results(rewritten, xs), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["conv", "max_pool"])
def test_no_part_is_read_beyond_its_end(kind: str) -> None:
    """Elements are chosen by branches: a selection loads both sides, of which one lies outside of its part."""
    extracted = extract_graph(RewriteForMemory()(LowerQuantized()(branches(kind))))
    made = extracted.operators[-1]
    assert made is not None
    kernel, pixels = made.kernel, made.pixel_kernel
    assert kernel is not None and pixels is not None
    for func in (kernel.func, pixels.func):
        chosen = collect(func.body, tirx.Select)
        assert not [s for s in chosen if collect([s.true_value, s.false_value], ir.TensorLoad)]
        assert [c for c in collect(func.body, ir.Call) if is_if_then_else(c)]


def test_readers_of_parts_keep_their_windows() -> None:
    after = extract_graph(RewriteForMemory()(LowerQuantized()(branches("conv")))).graph
    reader = after.ops[-1]
    assert reader.kind == "concat_conv2d" and reader.opaque is None
    assert [w.extent for w in reader.windows if w is not None] == [3, 3, 3]


def test_a_concat_that_is_an_output_stays() -> None:
    net = Net("int8")
    x = net.input((1, 6, 6, 4))
    y = net.concat([net.conv(x, 8, 1), net.conv(x, 8, 3)])
    low = LowerQuantized()(net.finish([y, net.conv(y, 4, 1)]))
    assert foldable(extract_graph(low).graph) == ()
    assert ATTRIBUTE not in (RewriteForMemory()(low)["main"].attrs or {})


def test_nothing_is_rewritten_where_nothing_is_gained() -> None:
    net = Net("int8")
    x = net.input((1, 16, 16, 16))
    y = net.conv(net.max_pool(x, 4), 4, 1)
    low = LowerQuantized()(net.finish(net.conv(net.concat([y, net.conv(y, 4, 1)]), 4, 1)))
    assert foldable(extract_graph(low).graph) == ("concat",)
    assert ATTRIBUTE not in (RewriteForMemory()(low)["main"].attrs or {})


def test_swiftnet_to_the_bit_with_rescaled_parts(models: Path) -> None:
    from tvm_cascade.frontend import load

    low = LowerQuantized()(load(models / "swiftnet_vww_uint8.tflite"))
    rewritten = RewriteForMemory()(low)
    assert order(extract_graph(rewritten).graph).peak == 200_704
    random = np.random.default_rng(0)
    xs = [random.integers(0, 256, (1, 224, 224, 3)).astype("uint8") for _ in range(2)]
    for one, other in zip(results(low, xs), results(rewritten, xs), strict=True):
        np.testing.assert_array_equal(one, other)
