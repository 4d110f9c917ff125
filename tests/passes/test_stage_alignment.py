"""Where tensors lie inside of others: at multiples of what kernels and captured CUDA graphs need, whatever is merged.

TVM's runtime copies a view at another offset into memory that it allocates, which is forbidden while a graph is captured.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.parallel import MERGE, Schedule, Stage
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.program import ALIGNMENT, plan_program
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.builder import Net

TARGETS = {"llvm": 64, "cuda -arch=sm_90": ALIGNMENT}


def heads(pooled: bool) -> tvm.IRModule:
    """Two heads of an SSD network on a map of 19 by 19: the second begins 126 * 19 * 19 * 4 bytes in, no multiple of 64."""
    net = Net("float32", "NCHW", seed=4)
    x = net.input((1, 8, 19, 19), "x")
    made = [net.conv(x, channels, 3) for channels in (126, 24)]
    return net.finish([net.max_pool(y, 3, 2, "same") for y in made] if pooled else made)


def split(sizes: tuple[int, ...]) -> tvm.IRModule:
    """A convolution split by channels, each part read by a pool: the parts are views."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 4, 4, 8), "float32"))
    weight = np.random.default_rng(5).standard_normal((sum(sizes), 4, 1, 1)).astype("float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(weight)))
            parts = builder.emit(relax.op.split(y, [int(a) for a in np.cumsum(sizes[:-1])], axis=1))
            pools = [relax.op.nn.max_pool2d(builder.emit(relax.TupleGetItem(parts, k)), 3, padding=1) for k in range(2)]
            out = builder.emit_output(relax.Tuple([builder.emit(p) for p in pools]))
        builder.emit_func_output(out)
    return builder.get()


def merged(mod: tvm.IRModule):
    """The network read, its units, and the schedule that merges whatever reads the input, the rest one by one."""
    read = stage_graph(mod)
    units = unit_graph(read.graph, "fused")
    first = tuple(u.ops for u in units.units if read.graph.ops[u.anchor].inputs == read.graph.inputs)
    later = tuple(Stage("concurrent", (u.ops,)) for u in units.units if u.ops not in first)
    return read, units, Schedule((Stage(MERGE, first) if len(first) > 1 else Stage("concurrent", first), *later), 0.0)


def offsets(mod: tvm.IRModule) -> list[int]:
    """The byte offsets of all views in a module's Relax functions."""
    found: list[int] = []

    def visit(e):
        if isinstance(e, relax.Call) and getattr(e.op, "name", "") == "relax.memory.view":
            found.append(int(getattr(e.args[3].value, "value", e.args[3].value)))

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_heads_of_odd_sizes_are_merged_and_read_inside_of_the_whole(target):
    read, units, found = merged(heads(pooled=True))
    program = plan_program(read, units, found, target != "llvm")
    assert len(program.specs) == 3 and len(program.slices) == 1  # one convolution; the second head is cut out of it
    at = offsets(lower_stages(read, units, found, LowerOptions(target=target)))
    assert at and all(offset % TARGETS[target] == 0 for offset in at)


def test_a_merge_whose_second_result_would_be_unaligned_is_refused():
    read, units, found = merged(heads(pooled=False))
    assert len(plan_program(read, units, found, captured=True).specs) == 2
    at = offsets(lower_stages(read, units, found, LowerOptions(target="cuda -arch=sm_90")))
    assert all(offset % ALIGNMENT == 0 for offset in at)


@pytest.mark.parametrize("pooled", [True, False])
def test_merged_heads_compute_the_same(pooled):
    mod = heads(pooled)
    read, units, found = merged(mod)
    data = np.random.default_rng(6).standard_normal((1, 8, 19, 19)).astype("float32")
    results = Session(compile_stages(lower_stages(read, units, found, LowerOptions()))).run(data)
    for result, expected in zip(results, Session(tvm.compile(mod, "llvm")).run(data), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("channels", "views"), [((2, 6), True), ((3, 5), False)])
def test_parts_of_a_split_are_views_where_they_are_aligned(channels, views):
    """32 values a channel: the second part begins at 256 or at 384 bytes, a multiple of 64 in both cases."""
    read, units, found = merged(split(channels))
    program = plan_program(read, units, found, captured=True)
    assert len(program.specs) == (3 if views else 4)  # without the view a kernel copies the parts
    at = offsets(lower_stages(read, units, found, LowerOptions(target="cuda -arch=sm_90")))
    assert all(offset % ALIGNMENT == 0 for offset in at)
    assert len(plan_program(read, units, found).specs) == 3
