"""`PartitionRegions`: what it makes, that it computes the same, and that the planner plans the same regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_cascade import passes, pipeline
from tvm_cascade.cascading import plan_graph
from tvm_cascade.cascading.regions import partition
from tvm_cascade.cores import KernelTarget
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.partition_regions import LEFT_OUT, OPERATORS, REGION
from tvm_cascade.report.left_out import left_out
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.quick_build import quick_run
from tvm_cascade.testing.random_dags import RandomDag


def regions_of(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    """The region functions of a partitioned module, in order, with the names of their operators."""
    regions = [
        (int(f.attrs[REGION]), g.name_hint, f) for g, f in mod.functions.items() if f.attrs and REGION in f.attrs
    ]
    return {name: tuple(str(o) for o in func.attrs[OPERATORS]) for _, name, func in sorted(regions, key=lambda r: r[0])}


@I.ir_module
class HandWritten:
    """A max over 5x2 with stride 3 that no registry knows, between a difference of rows and an element-wise operator;
    then an operator that turns rows upside down, and one more."""

    @T.prim_func(private=True, s_tir=True)
    def rise(x: T.Buffer((1, 18, 9, 4), "int8"), y: T.Buffer((1, 17, 9, 4), "int8")):
        for n, i, j, c in T.grid(1, 17, 9, 4):
            with T.sblock("rise"):
                vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
                y[vn, vi, vj, vc] = T.max(x[vn, vi + 1, vj, vc], x[vn, vi, vj, vc]) // T.int8(2)

    @T.prim_func(private=True, s_tir=True)
    def stencil(x: T.Buffer((1, 17, 9, 4), "int8"), y: T.Buffer((1, 6, 8, 4), "int8")):
        for n, i, j, c, ry, rx in T.grid(1, 6, 8, 4, 5, 2):
            with T.sblock("stencil"):
                vn, vi, vj, vc, vy, vx = T.axis.remap("SSSSRR", [n, i, j, c, ry, rx])
                with T.init():
                    y[vn, vi, vj, vc] = T.int8(-128)
                y[vn, vi, vj, vc] = T.max(
                    y[vn, vi, vj, vc],
                    T.if_then_else(
                        vi * 3 + vy >= 2 and vi * 3 + vy < 19, x[vn, vi * 3 + vy - 2, vj + vx, vc], T.int8(-128)
                    ),
                )

    @T.prim_func(private=True, s_tir=True)
    def halve(x: T.Buffer((1, 6, 8, 4), "int8"), y: T.Buffer((1, 6, 8, 4), "int8")):
        for n, i, j, c in T.grid(1, 6, 8, 4):
            with T.sblock("halve"):
                vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
                y[vn, vi, vj, vc] = x[vn, vi, vj, vc] // T.int8(2) + T.int8(1)

    @T.prim_func(private=True, s_tir=True)
    def flip(x: T.Buffer((1, 6, 8, 4), "int8"), y: T.Buffer((1, 6, 8, 4), "int8")):
        for n, i, j, c in T.grid(1, 6, 8, 4):
            with T.sblock("flip"):
                vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
                y[vn, vi, vj, vc] = x[vn, 5 - vi, vj, vc]

    @R.function
    def main(x: R.Tensor((1, 18, 9, 4), "int8")) -> R.Tensor((1, 6, 8, 4), "int8"):
        cls = HandWritten
        with R.dataflow():
            a = R.call_tir(cls.rise, (x,), out_ty=R.Tensor((1, 17, 9, 4), "int8"))
            b = R.call_tir(cls.stencil, (a,), out_ty=R.Tensor((1, 6, 8, 4), "int8"))
            c = R.call_tir(cls.halve, (b,), out_ty=R.Tensor((1, 6, 8, 4), "int8"))
            d = R.call_tir(cls.flip, (c,), out_ty=R.Tensor((1, 6, 8, 4), "int8"))
            e = R.call_tir(cls.halve, (d,), out_ty=R.Tensor((1, 6, 8, 4), "int8"))
            R.output(e)
        return e


def run(mod: Any, feed: np.ndarray) -> list[np.ndarray]:
    return quick_run(mod, feed)


def feed_of(mod: Any, seed: int = 0) -> np.ndarray:
    shape = [int(d) for d in mod["main"].params[0].ty.shape.values]
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def test_before_and_after() -> None:
    script = HandWritten.script()
    made = passes.PartitionRegions()(HandWritten)
    assert HandWritten.script() == script
    assert regions_of(made) == {"region_0": ("rise", "stencil", "halve"), "region_1": ("halve_1",)}
    assert dict(made["main"].attrs[LEFT_OUT]) == {"flip": "x: rows are not read in ascending order"}
    region = made["region_0"]
    assert (int(region.attrs[REGION]), list(region.attrs[OPERATORS])) == (0, ["rise", "stencil", "halve"])
    assert "global_symbol" not in region.attrs
    calls = [b.value.op for b in made["main"].body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    assert [getattr(op, "name_hint", getattr(op, "name", "")) for op in calls] == [
        "region_0",
        "relax.call_tir",
        "region_1",
    ]


def test_hand_written_operators_cascade_bit_exactly() -> None:
    """Plain, partitioned, and planned from the partitioned module: the same bytes."""
    feed = feed_of(HandWritten)
    made = passes.PartitionRegions()(HandWritten)
    (plain,) = run(HandWritten, feed)
    np.testing.assert_array_equal(run(made, feed)[0], plain)
    np.testing.assert_array_equal(run(passes.Cascade()(made), feed)[0], plain)
    prepared = pipeline.prepare(made, KernelTarget())
    for options in (rows_alone(overlap=False), rows_alone(overlap=False, pixels=True, granularity="pixel")):
        plan = plan_graph(prepared.graph, options)
        cascaded = [plan.graph.ops[o].name for s in plan.segments if len(s.ops) > 1 for o in s.ops]
        assert "stencil" in cascaded
        assert "flip" not in cascaded
        result = run_plan(prepared, plan, [feed])
        np.testing.assert_array_equal(result.outputs[0], plain)


def test_every_operator_left_out_has_a_reason() -> None:
    prepared = pipeline.prepare(HandWritten, KernelTarget())
    plan = plan_graph(prepared.graph, rows_alone())
    left = left_out(prepared.graph, plan)
    assert left["flip"].startswith("x: rows are not read in ascending order; ")
    assert "halve_1" in left


@pytest.mark.parametrize("seed", (5, 6))
def test_random_networks_run_partitioned(seed: int) -> None:
    mod = passes.LowerQuantized()(RandomDag(seed).module())
    made = passes.PartitionRegions()(mod)
    feed = feed_of(mod, seed)
    for a, b in zip(run(mod, feed), run(made, feed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_planner_sees_the_same_regions() -> None:
    """The graph of the partitioned module, and its partition, are those of the module before."""
    mod = passes.LowerQuantized()(RandomDag(3).module())
    made = passes.PartitionRegions()(mod)
    before, after = extract_graph(mod).graph, extract_graph(made).graph
    assert partition(before).regions == partition(after).regions
    assert [o.windows for o in before.ops] == [o.windows for o in after.ops]
    names = [tuple(before.ops[o].name for o in ops) for ops in partition(before).regions]
    assert list(regions_of(made).values()) == names


def test_partitioned_twice_is_partitioned_once() -> None:
    once = passes.PartitionRegions()(HandWritten)
    tvm.ir.assert_structural_equal(passes.PartitionRegions()(once), once)
