"""Splits and concatenations of staged programs: read and written in place where memory allows it, copied elsewhere."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import MERGE, Options, Schedule, Stage, schedule
from tvm_cascade.parallel.problem import CONCURRENT
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.concat import write_in_place
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.program import plan_program
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.poison import Poison
from tvm_cascade.testing.quick_build import quick_run
from tvm_cascade.testing.zoo.rnn import rnntc

CPU = AnalyticCost(find_device("cpu2"))


def program_of(mod: tvm.IRModule, variant: str):
    net = stage_graph(mod)
    units = unit_graph(net.graph, "fused")
    found = schedule(net.graph, CPU, Options(variant=variant)).schedule
    return net, units, found, write_in_place(plan_program(net, units, found))


def check(mod: tvm.IRModule, variant: str, lower: LowerOptions = LowerOptions()) -> None:  # noqa: B008
    net, units, found, _ = program_of(mod, variant)
    rng = np.random.default_rng(0)
    data = [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]
    made = Session(compile_stages(lower_stages(net, units, found, lower))).run(*data)
    plain = quick_run(mod, *data)
    for a, b in zip(made, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def kinds(program) -> list[str]:
    return [program.net.graph.ops[s.ops[0]].kind for s in program.specs]


def branches(layout: str = "NCHW", batch: int = 1, twice: bool = False) -> tvm.IRModule:
    """Two concatenations, one inside of the other; `twice` reads an operand of the inner one in another as well."""
    net = Net("float32", layout, seed=2)
    x = net.input((batch, 16, 8, 8) if layout == "NCHW" else (batch, 8, 8, 16), "x")
    a, b, c = (net.conv(x, 16, 3, activation="relu") for _ in range(3))
    inner = net.concat([a, b])
    outer = net.concat([net.max_pool(x, 3, 1, 1), inner, c])
    y = net.conv(outer, 16, 1)
    return net.finish(net.add(y, net.conv(net.concat([b, c]), 16, 1)) if twice else y)


@pytest.mark.parametrize("variant", ["sequential", "greedy"])
def test_concatenations_are_written_in_place(variant):
    mod = branches()
    assert "concat" not in kinds(program_of(mod, variant)[3])
    check(mod, variant, LowerOptions(serial_reversed=variant == "greedy", before_step=Poison()))


@pytest.mark.parametrize("made", [{"layout": "NHWC"}, {"batch": 2}])
def test_operands_that_are_no_run_of_memory_are_copied(made):
    mod = branches(**made)
    assert kinds(program_of(mod, "sequential")[3]).count("concat") == 2
    check(mod, "sequential")


def test_an_operand_lies_in_one_place_only():
    mod = branches(twice=True)
    assert kinds(program_of(mod, "sequential")[3]).count("concat") == 1
    check(mod, "sequential", LowerOptions(before_step=Poison()))


def split(axis: int, shape: tuple[int, ...], ports: int, inner: bool) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            source = bb.emit(relax.op.nn.relu(x)) if inner else x
            parts = bb.emit(relax.op.split(source, ports, axis))
            made = [bb.emit(relax.op.exp(bb.emit(relax.TupleGetItem(parts, k)))) for k in range(ports)]
            y = made[0]
            for part in made[1:]:
                y = bb.emit(relax.op.add(y, part))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize(
    ("axis", "shape", "inner", "copies"),
    [(0, (10, 32), True, 0), (0, (10, 3), True, 1), (1, (4, 32), True, 1), (0, (10, 32), False, 1)],
)
def test_a_split_is_a_view_where_its_parts_are_runs_of_vectors(axis, shape, inner, copies):
    mod = split(axis, shape, 10 if axis == 0 else 4, inner)
    assert kinds(program_of(mod, "sequential")[3]).count("split") == copies
    check(mod, "sequential")
    check(mod, "greedy")


def test_products_across_time_and_their_ten_way_split():
    mod = rnntc(steps=4, hidden=48, classes=10)
    check(mod, "sequential")


@pytest.mark.parametrize(("rows", "columns"), [(1, 10), (1, 130), (5, 33), (12, 64), (25, 70)])
def test_products_of_all_sizes(rows, columns):
    net = Net("float32", seed=1)
    check(net.finish(net.dense(net.input((rows, 40), "x"), columns, activation="relu")), "sequential")


def test_stored_operators_carry_their_work():
    """Multiply-accumulates of integer kernels are those of the convolutions they came from, taps in the padding too."""
    from tvm_cascade.passes.lower_quantized import LowerQuantized

    macs = {}
    for dtype in ("int8", "float32"):
        net = Net(dtype, seed=1)
        x = net.conv(net.input((1, 9, 9, 4), "x"), 8, 3, 2)
        x = net.depthwise(x, 3)
        mod = net.finish(net.dense(net.flatten(net.global_pool(x)), 5))
        lowered = LowerQuantized()(mod) if dtype == "int8" else mod
        macs[dtype] = sorted(op.macs for op in stage_graph(lowered).graph.ops if op.macs)
    assert macs["int8"] == macs["float32"] == sorted([25 * 8 * 9 * 4, 25 * 8 * 9, 8 * 5])


@pytest.mark.parametrize("made", [{"layout": "NHWC"}, {"batch": 2}, {}])
def test_parts_of_a_merged_convolution_are_read_where_they_lie(made):
    """Pools, convolutions with padding, sums and means read slices of one merged tensor."""
    layout, batch = made.get("layout", "NCHW"), made.get("batch", 1)
    net = Net("float32", layout, seed=5)
    x = net.input((batch, 6, 8, 8) if layout == "NCHW" else (batch, 8, 8, 6), "x")
    a, b, c = (net.conv(x, 16, k, padding=k // 2, activation="relu") for k in (1, 3, 5))
    y = net.concat([net.max_pool(a, 3, 1, 1), net.conv(b, 16, 3), net.add(a, c)])
    mod = net.finish([net.conv(y, 8, 1), net.dense(net.flatten(net.global_pool(c)), 3)])
    graph = stage_graph(mod)
    units = unit_graph(graph.graph, "fused")
    first = [u.ops for u in units.units if graph.graph.ops[u.anchor].inputs == graph.graph.inputs]
    stages = [Stage(MERGE, tuple(first))]
    stages += [Stage(CONCURRENT, (u.ops,)) for u in units.units if u.ops not in first]
    found = Schedule(tuple(stages), 0.0)
    program = plan_program(graph, units, found)
    assert len(first) == 3 and sum(s.merge is not None for s in program.specs) == 1
    assert len(program.slices) == (0 if not made else 3)
    data = [
        np.random.default_rng(1).standard_normal(graph.graph.tensors[graph.graph.inputs[0]].shape).astype("float32")
    ]
    lowered = lower_stages(graph, units, found, LowerOptions(before_step=Poison()))
    for p, q in zip(Session(compile_stages(lowered)).run(*data), quick_run(mod, *data), strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-4, atol=1e-4)


def test_a_merge_behind_another_part_of_a_concatenation():
    """The merged convolutions write their part of the result, not its beginning."""
    net = Net("float32", "NCHW", seed=3)
    x = net.input((1, 16, 9, 10), "x")
    mod = net.finish(net.concat([net.conv(x, 48, 3, padding=1), net.conv(x, 32, 1), net.conv(x, 32, 1)]))
    found = program_of(mod, "both")[2]
    assert [s.strategy for s in found.stages] == [MERGE, CONCURRENT]
    check(mod, "both")


def test_a_merge_whose_parts_end_in_another_order_than_they_begin():
    net = Net("float32", "NCHW", seed=3)
    x = net.input((1, 16, 9, 10), "x")
    wide, first, second = net.conv(x, 48, 3, padding=1), net.conv(x, 32, 1), net.conv(x, 64, 1)
    late = net.relu(second)
    mod = net.finish(net.concat([wide, net.relu(first), late]))
    merged = [s.members for s in program_of(mod, "merge")[2].stages if s.strategy == MERGE]
    assert [stage_graph(mod).graph.ops[i].kind for i in merged[0]].count("relu") == 2
    check(mod, "merge")
