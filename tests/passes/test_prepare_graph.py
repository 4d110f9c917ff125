"""What a prepared graph tells the planner about the forms of kernels of its operators."""

from __future__ import annotations

from typing import Any

from tvm import relax as _relax

from tvm_cascade.cores import KernelTarget
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.prepare_graph import PreparedGraph, prepare_graph
from tvm_cascade.schedules.forms.accumulating import accumulating
from tvm_cascade.schedules.kernels.accumulate import Accumulating
from tvm_cascade.testing.builder import Net

relax: Any = _relax


def sums(prepared: PreparedGraph) -> list[Accumulating | str]:
    sites = [prepared.site(op.index) for op in prepared.graph.ops]
    return [accumulating(s) for s in sites if s is not None]


def test_accumulators() -> None:
    """Global pools and dense layers behind a flatten can sum up rows as they come."""
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 6, 6, 3)), 8, kernel=3)
    mod = LowerQuantized()(net.finish([net.global_pool(x), net.dense(net.flatten(x), 5), net.relu(x)]))
    prepared = prepare_graph(mod, KernelTarget())
    sizes = {op.kind: op.kernels.accumulator_bytes for op in prepared.graph.ops}
    assert (sizes["conv2d"], sizes["dense"]) == (0, 20)
    assert sorted(sizes.values())[-2:] == [20, 32]
    made = sums(prepared)
    assert sorted(a.granule for a in made if not isinstance(a, str)) == [1, 8]
    assert {a for a in made if isinstance(a, str)} == {"its input is read in sliding windows"}


def test_rows_of_planes_are_no_pieces() -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 4, 6, 5), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.mean(x, [2, 3], True)))
    prepared = prepare_graph(builder.finalize(), KernelTarget())
    assert all(op.kernels.accumulator_bytes == 0 for op in prepared.graph.ops)
    assert sums(prepared) == ["its input is read in sliding windows"]
