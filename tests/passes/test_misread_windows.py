"""Networks whose plans once read windows, views or turns wrongly: each is validated, run, and compared with TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade import pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cascading.search_cache import row_lives
from tvm_cascade.cascading.validate import validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.passes.join_concats import joinable, joined
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.quick_build import quick_run

relax: Any = _relax  # its nodes get their fields at run time
Shape = tuple[int, ...]


def _network(shape: Shape, write: Callable[[Any, Any], Any]) -> tvm.IRModule:
    builder: Any = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(write(builder.emit, x))
        builder.emit_func_output(out)
    return builder.get()


def _check(shape: Shape, write: Callable[[Any, Any], Any]) -> None:
    """Run the plans of a network in every granularity, with row addresses and without, against TVM."""
    mod = _network(shape, write)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    want = quick_run(mod, x)[0]
    prepared = pipeline.prepare(mod, KernelTarget())
    for granularity in ("row", "pixel", "auto"):
        for scattered in (False, True):
            options = PlanOptions(granularity=granularity, row_addresses=scattered)
            plan = plan_graph(prepared.graph, options)
            validate(plan)
            got = run_plan(prepared, plan, [x]).outputs[0].reshape(want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{granularity} {scattered}")


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("gathers", [1, 2, 3])
def test_gathers_of_flattened_planes(channels: int, gathers: int) -> None:
    """The input of rank 3 is counted in rows, the output of rank 4 in pixels."""
    rng = np.random.default_rng(gathers)

    def write(emit: Any, x: Any) -> Any:
        plane = emit(relax.op.reshape(x, (1, channels, 4)))
        indices = [rng.integers(0, 4, (2, 3)) for _ in range(gathers)]
        taken = [emit(relax.op.take(plane, relax.const(i), axis=2)) for i in indices]
        total = taken[0]
        for other in taken[1:]:
            total = emit(relax.op.add(total, other))
        return emit(relax.op.nn.relu(total))

    _check((1, channels, 2, 2), write)


@pytest.mark.parametrize("height", [2, 3, 4])
@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("axis", [1, 3])
def test_reshape_of_a_broadcast(channels: int, height: int, axis: int) -> None:
    """The view has as many rows as what is seen, of as many bytes, but its rows run across others where sizes are equal."""

    def write(emit: Any, x: Any) -> Any:
        wide = emit(relax.op.broadcast_to(emit(relax.op.expand_dims(x, 2)), (1, channels, 2, height, 2)))
        return emit(relax.op.nn.softmax(emit(relax.op.reshape(wide, (1, 2 * channels, height, 2))), axis=axis))

    _check((1, channels, height, 2), write)


@pytest.mark.parametrize("channels", [2, 4])
@pytest.mark.parametrize("made", [2, 3, 4])
def test_pointwise_conv1d(channels: int, made: int) -> None:
    """A convolution that would sum up its input row by row does not where its producer runs in an earlier segment."""
    weights = np.random.default_rng(2).standard_normal((made, channels, 1)).astype(np.float32)

    def write(emit: Any, x: Any) -> Any:
        before = emit(relax.op.nn.relu(x))
        return emit(relax.op.nn.relu(emit(relax.op.nn.conv1d(before, relax.const(weights)))))

    _check((1, channels, 4), write)


@pytest.mark.parametrize("late", [False, True])
def test_a_row_of_a_join_is_live_from_its_first_part_on(late: bool) -> None:
    net = Net("int8")
    maps = net.conv(net.input((1, 8, 8, 1)), 8)
    small, large = net.avg_pool(maps, 3, 2, "same"), net.max_pool(maps, 2, 2)
    parts = [net.add(small, small), net.relu(large)]
    mod = net.finish(net.concat(parts[::-1] if late else parts))
    prepared = pipeline.prepare(mod, KernelTarget())
    whole = joined(prepared, joinable(prepared)).graph
    join = next(op for op in whole.ops if op.part_offsets)
    writers = [whole.producer[t] for t in join.inputs]
    lives = row_lives(whole, PlanOptions(max_macs=1.0))[0]
    trace = lives.cascade(0, len(whole.ops)).trace
    of_join = next(one for one in lives.lives(0, len(whole.ops)) if one.tensor == join.outputs[0])
    assert int(of_join.lower.min()) == min(trace.index(o) for o in writers if o is not None)


def test_products_of_computed_operands_of_unlike_ranks() -> None:
    """Each plane of the operand of rank 4 times a plane of that of rank 3."""

    def write(emit: Any, x: Any) -> Any:
        part = emit(relax.op.exp(emit(relax.op.strided_slice(x, [2], [0], [9]))))
        planes = emit(relax.op.permute_dims(emit(relax.op.reshape(part, (3, 9, 8))), [0, 2, 1]))
        return emit(relax.op.matmul(emit(relax.op.nn.relu(x)), planes))

    _check((1, 3, 12, 8), write)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((1, 1, 3, 3), (2, 2)),
        ((1, 3, 7, 5), (3, 2)),
        ((1, 2, 4, 4), (6, 5)),
        ((1, 4, 6, 6), (3, 3)),
        ((1, 2, 7), (3,)),
        ((1, 2, 5, 4, 3), (2, 3, 2)),
    ],
)
def test_adaptive_average_pools_whose_sizes_do_not_divide(shape: Shape, sizes: Shape) -> None:
    operator = getattr(relax.op.nn, f"adaptive_avg_pool{len(sizes)}d")
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    want = np.zeros((*shape[:2], *sizes), "float32")
    for at in np.ndindex(*sizes):
        spans = [slice(o * n // m, -(-(o + 1) * n // m)) for o, n, m in zip(at, shape[2:], sizes, strict=True)]
        want[(slice(None), slice(None), *at)] = x[(slice(None), slice(None), *spans)].mean(tuple(range(2, len(shape))))
    prepared = pipeline.prepare(
        _network(shape, lambda emit, v: emit(operator(v, sizes if len(sizes) > 1 else sizes[0]))), KernelTarget()
    )
    plan = plan_graph(prepared.graph)
    validate(plan)
    got = run_plan(prepared, plan, [x]).outputs[0].reshape(want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [2, 3, 5])
@pytest.mark.parametrize("columns", [1, 3, 5])
def test_rows_lie_in_the_gaps_between_aligned_blocks(rows: int, columns: int) -> None:
    """Hosts align accumulators to 16 bytes; rows of fewer bytes fill what lies between, which no bound may count."""

    def write(emit: Any, x: Any) -> Any:
        positive = emit(relax.op.nn.relu(x))
        return emit(relax.op.sum(emit(relax.op.add(positive, positive)), [1, 2], keepdims=True))

    prepared = pipeline.prepare(_network((1, rows, columns), write), KernelTarget())
    for alignment in (1, 4, 8, 16):
        for streamed in (False, True):
            plan = plan_graph(prepared.graph, PlanOptions(alignment=alignment, stream_input=streamed))
            validate(plan, alignment)
            assert plan.bound <= plan.peak
