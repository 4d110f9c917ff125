"""OrderOps: the same values from the same operators in a better order."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.ordering import peak_of
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.order_ops import ATTRIBUTE, OrderOps
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import virtual_machine


def two_branches(dtype: str = "int8") -> tvm.IRModule:
    """Two wide branches with narrow ends, interleaved in the file: worst in file order."""
    net = Net("int8" if dtype == "int8" else "float32")
    x = net.input((1, 8, 8, 4))
    wide = [net.conv(x, 32, 1) for _ in range(3)]
    narrow = [net.conv(w, 2, 3) for w in wide]
    y = net.add(net.add(narrow[0], narrow[1]), narrow[2])
    return net.finish(net.flatten(net.global_pool(y)))


def result(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    machine = virtual_machine(mod)
    return machine["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_reorders_and_computes_the_same(dtype: str) -> None:
    mod = two_branches(dtype)
    mod = LowerQuantized()(mod) if dtype == "int8" else relax.transform.LegalizeOps()(mod)
    before = mod.script()
    ordered = OrderOps()(mod)
    assert mod.script() == before
    graph = extract_graph(mod).graph
    after = extract_graph(ordered).graph
    files = [peak_of(g, range(len(g.ops))) for g in (graph, after)]
    assert files[1] < files[0]
    note = ordered["main"].attrs[ATTRIBUTE]
    assert int(note["peak_bytes"]) == int(note["bound_bytes"]) == files[1] and bool(note["optimal"])
    x = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 4)).astype(dtype)
    np.testing.assert_array_equal(result(mod, x), result(ordered, x))


def test_the_order_is_a_fixed_point() -> None:
    once = OrderOps()(LowerQuantized()(two_branches()))
    twice = OrderOps()(once)
    assert peak_of(extract_graph(once).graph, range(len(extract_graph(once).graph.ops))) == peak_of(
        extract_graph(twice).graph, range(len(extract_graph(twice).graph.ops))
    )


def test_relax_operators_are_legalized_first() -> None:
    ordered = OrderOps()(two_branches("float32"))
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 4)).astype("float32")
    np.testing.assert_allclose(result(ordered, x), result(two_branches("float32"), x), rtol=1e-5, atol=1e-6)
