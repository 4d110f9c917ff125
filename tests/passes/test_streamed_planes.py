"""Inputs of several planes (batches) that come row by row: rows of all planes lie together, and nobody takes them for the
tensor of the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade import pipeline
from tvm_cascade.cascading import plan_graph, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Window
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.quick_build import virtual_machine

relax: Any = _relax
SHAPE = (2, 8, 6, 3)
STREAMED = rows_alone(stream_input=True, pixels=True, accumulators=True, stripes=True, in_place=True)


def flattened(net: Net, x: Value) -> list[Value]:
    return [net.dense(net.flatten(x), 5)]


def convolved(net: Net, x: Value) -> list[Value]:
    return [net.conv(x, 4, 3)]


def turned(net: Net, x: Value) -> list[Value]:
    return [net.conv(net.reshape(x, (1, 6, 8, 3)), 4, 3)]


def beside(net: Net, x: Value) -> list[Value]:
    return [net.conv(x, 4, 3), net.dense(net.flatten(x), 5)]


def pooled(net: Net, x: Value) -> list[Value]:
    return [net.global_pool(x)]


def added_late(net: Net, x: Value) -> list[Value]:
    """The last operator reads, and may write over, what came first: all rows are there."""
    y = net.conv(x, 3, 3)
    for _ in range(5):
        y = net.conv(y, 3, 3)
    return [net.add(y, x)]


def scaled(net: Net, x: Value) -> list[Value]:
    """The same in a segment of its own: behind a mean over all rows."""
    y = net.conv(x, 3, 3)
    mean = net.reshape(net.global_pool(y), (2, 1, 1, 3))
    return [net.add(x, net.conv(net.mul(y, mean), 3, 1))]


CASES = {f.__name__: f for f in (flattened, convolved, beside, pooled, added_late, scaled)}
COMES = {"convolved", "added_late", "scaled"}  # by rows; the others read it as a whole


def prepared(body: Callable[[Net, Value], list[Value]]) -> tuple[tvm.IRModule, pipeline.Prepared]:
    net = Net("int8", seed=4)
    mod = net.finish(body(net, net.input(SHAPE, "x")))
    return mod, pipeline.prepare(mod, KernelTarget())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("overlap", [True, False])
def test_the_result_is_that_of_whole_inputs(name: str, overlap: bool) -> None:
    mod, made = prepared(CASES[name])
    plan = plan_graph(made.graph, replace(STREAMED, overlap=overlap))
    validate(plan)
    assert any(s.streamed for s in plan.segments) == (name in COMES)
    x = np.random.default_rng(0).integers(-128, 128, SHAPE).astype("int8")
    machine = virtual_machine(LowerQuantized()(mod))
    want = machine["main"](tvm.runtime.tensor(x))
    want = [want] if isinstance(want, tvm.runtime.Tensor) else list(want)
    for ours, theirs in zip(run_plan(made, plan, [x]).outputs, want, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_the_validator_knows_who_reads_it_whole() -> None:
    _, made = prepared(convolved)
    plan = plan_graph(made.graph, STREAMED)
    validate(plan)
    first = plan.graph.ops[0]
    for op in (
        replace(first, windows=(None,)),
        replace(first, windows=(Window(8, 0),)),
        replace(first, opaque="for the test"),
    ):
        with pytest.raises(ValidationError, match="planes of x, which comes row by row, as a whole"):
            validate(replace(plan, graph=replace(plan.graph, ops=(op, *plan.graph.ops[1:]))))


@pytest.mark.parametrize(
    ("build", "said"), [(convolved, None), (flattened, None), (turned, "reads it whole"), (beside, "reads it whole")]
)
def test_an_input_that_stays_whole_is_said_with_the_reason(build: Callable[..., list[Value]], said: str | None) -> None:
    net = Net("int8", seed=1)
    mod = net.finish(build(net, net.input((1, 8, 6, 3), "x")))
    for request in (PlanRequest(stream_input=True), PlanRequest()):
        lines: list[str] = []
        plan_network(mod, request, progress=lines.append)
        notes = [line for line in lines if line.startswith("stream_input has no effect on x: ")]
        assert len(notes) == (1 if said and request.stream_input else 0)
        assert all(said is not None and said in note for note in notes)


def test_a_signal_of_one_row_is_planned_as_without_stream_input() -> None:
    """Its source would deliver it whole, and nothing could overwrite it."""
    lines: list[str] = []
    net = Net("int8", seed=1)
    x = net.input((1, 1, 64, 6), "x")
    mod = net.finish(net.conv(net.conv(x, 8, kernel=(1, 3)), 8, kernel=(1, 3)))
    streamed = plan_network(mod, PlanRequest(stream_input=True), progress=lines.append).plan
    assert any(
        line.startswith("stream_input has no effect on ") and line.endswith(": it has one row") for line in lines
    )
    plain = plan_network(mod, PlanRequest()).plan.peak  # which may go along rows of time
    assert plain <= streamed.peak <= 1.01 * plain
    assert not any(segment.streamed for segment in streamed.segments)
