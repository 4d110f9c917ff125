"""What a prepared graph tells the planner about the forms of kernels of its operators."""

from __future__ import annotations

from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.prepare_graph import prepare_graph
from tvm_cascade.schedules.forms.accumulating import accumulating
from tvm_cascade.schedules.rules.select import Core
from tvm_cascade.testing.builder import Net


def test_accumulators() -> None:
    """Global pools and dense layers behind a flatten can sum up rows as they come, if rows are contiguous."""
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 6, 6, 3)), 8, kernel=3)
    mod = LowerQuantized()(net.finish([net.global_pool(x), net.dense(net.flatten(x), 5), net.relu(x)]))
    prepared = prepare_graph(mod, Core())
    sizes = {op.kind: op.kernels.accumulator_bytes for op in prepared.graph.ops}
    assert (sizes["conv2d"], sizes["dense"]) == (0, 20)
    assert sorted(sizes.values())[-2:] == [20, 32]
    sites = [prepared.site(op.index) for op in prepared.graph.ops]
    made = [accumulating(s) for s in sites if s is not None]
    assert sorted(a.granule for a in made if not isinstance(a, str)) == [1, 8]
    assert {a for a in made if isinstance(a, str)} == {"x"}
