"""States between calls: operators that write them, plans that keep them, and sequences of calls against numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax as _relax

from tvm_cascade.cascading import Plan, PlanOptions, plan_graph, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import GraphError, ValidationError
from tvm_cascade.graph import Graph, Op, Tensor
from tvm_cascade.importers.interface import attach, io_spec
from tvm_cascade.machine import Ram
from tvm_cascade.ordering import order
from tvm_cascade.passes import Cascade, extract_graph
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.passes.states import ASSIGN
from tvm_cascade.pipeline import Prepared, prepare
from tvm_cascade.report.text import state_rows
from tvm_cascade.request import PlanRequest
from tvm_cascade.tensor_spec import IoSpec, State, TensorSpec
from tvm_cascade.testing.host_check import run_calls
from tvm_cascade.testing.quick_build import quick_run

relax: Any = _relax
op: Any = _relax.op
OPTIONS = (
    PlanOptions(),
    PlanOptions(layerwise=True),
    PlanOptions(overlap=False),
    PlanOptions(granularity="row", max_macs=2.0),
    PlanOptions(stream_input=True),
)

Shape = tuple[int, ...]
Step = Callable[[Any, list[Any]], tuple[list[Any], list[Any]]]  # (x, states) -> (outputs, states)


def network(x: Shape, states: list[Shape], step: Step, initial: list[bytes] | None = None, dtype: str = "int8") -> Any:
    """A module of `step`, written in operators of Relax, with states."""
    builder = relax.BlockBuilder()
    shapes = [x, *states]
    params = [relax.Var(n, relax.TensorType(s, dtype)) for n, s in zip(names("x", states), shapes, strict=True)]
    with builder.function("main", params):
        with builder.dataflow():
            outputs, after = step(params[0], params[1:])
            result = builder.emit_output(relax.Tuple([*outputs, *after]))
        builder.emit_func_output(result)
    mod = builder.finalize()
    made = [tuple(int(d) for d in f.shape.values) for f in mod["main"].ret_ty.fields]
    inputs = tuple(TensorSpec(n, s, dtype) for n, s in zip(names("x", states), shapes, strict=True))
    given = [
        f"y{k}" if k < len(outputs) else f"{names('x', states)[1 + k - len(outputs)]}_out" for k in range(len(made))
    ]
    results = tuple(TensorSpec(n, s, dtype) for n, s in zip(given, made, strict=True))
    first = initial or [b""] * len(states)
    kept = tuple(State(n, i) for n, i in zip(names("x", states)[1:], first, strict=True))
    return attach(mod, IoSpec(inputs, results, states=kept))


def names(first: str, states: list[Shape]) -> list[str]:
    return [first, *(f"s{k}" for k in range(len(states)))]


def prepared(mod: Any) -> Prepared:
    return prepare(mod, KernelTarget())


def window(x: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
    """The last four rows, their maxima, and the rows to keep."""
    whole = op.concat([states[0], x], axis=1)
    return [op.max(whole, axis=1), op.add(x, x)], [op.strided_slice(whole, axes=[1], begin=[1], end=[4])]


def test_a_window_of_rows_is_kept_in_place() -> None:
    initial = np.arange(12, dtype="int8").reshape(1, 3, 2, 2)
    mod = network((1, 1, 2, 2), [(1, 3, 2, 2)], window, [initial.tobytes()])
    assert io_spec(mod).states == (State("s0", initial.tobytes()),)
    ready = prepared(mod)
    (writes,) = [o for o in ready.graph.ops if o.target is not None]
    assert (writes.kind, ready.graph.states) == (ASSIGN, ((writes.inputs[1], writes.outputs[0]),))
    rng = np.random.default_rng(0)
    calls = [rng.integers(-60, 60, (1, 1, 2, 2), "int8") for _ in range(9)]
    for options in OPTIONS:
        plan = plan_graph(ready.graph, options)
        validate(plan, options.alignment)
        places = dict(zip(plan.buffers, plan.allocation.offsets, strict=True))
        before, after = ready.graph.states[0]
        assert places[f"tensor {before}"] == places[f"tensor {after}"]
        assert plan.storages[before].lower == 0 and plan.storages[after].upper == len(plan.segments)
        if options.stream_input:
            continue
        kept = initial
        for x, (most, twice) in zip(calls, run_calls(ready, plan, ready.io, [[x] for x in calls]), strict=True):
            whole = np.concatenate([kept, x], axis=1)
            np.testing.assert_array_equal(most, whole.max(axis=1))
            np.testing.assert_array_equal(twice, x + x)
            kept = whole[:, 1:]


def _shifted(x: Any, state: Any) -> Any:
    """The state without its first element, and the first of x behind it."""
    rest, new = (op.strided_slice(t, axes=[1], begin=[b], end=[e]) for t, b, e in ((state, 1, 4), (x, 0, 1)))
    return op.concat([rest, new], axis=1)


def _reshaped_window(x: Any, s: list[Any], outputs: Callable[[Any, Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    """A state of [2, 2] that moves up as a row of four."""
    made = _shifted(x, op.reshape(s[0], (1, 4)))
    after = op.reshape(made, (2, 2))
    return outputs(made, after), [after]


def _expected_window(x: Any, s: list[Any], outputs: Callable[[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    made = np.c_[s[0].reshape(1, 4)[:, 1:], x[:, :1]]
    return outputs(made), [made.reshape(2, 2)]


CASES: dict[str, tuple[list[Shape], Step, Callable[..., Any]]] = {
    "a delay of two calls": (
        [(1, 4), (1, 4)],
        lambda x, s: ([op.add(s[1], x)], [x, s[0]]),
        lambda x, s: ([s[1] + x], [x, s[0]]),
    ),
    "states that change places": (
        [(1, 4), (1, 4)],
        lambda x, s: ([op.maximum(s[0], x)], [s[1], op.add(s[0], x)]),
        lambda x, s: ([np.maximum(s[0], x)], [s[1], s[0] + x]),
    ),
    "views that change places": (
        [(1, 4), (4, 1)],
        lambda x, s: ([op.maximum(s[0], x)], [op.reshape(s[1], (1, 4)), op.reshape(op.add(s[0], x), (4, 1))]),
        lambda x, s: ([np.maximum(s[0], x)], [s[1].reshape(1, 4), (s[0] + x).reshape(4, 1)]),
    ),
    "the state before is an output": (
        [(1, 4)],
        lambda x, s: ([op.reshape(s[0], (2, 2)), s[0]], [op.add(s[0], x)]),
        lambda x, s: ([s[0].reshape(2, 2), s[0]], [s[0] + x]),
    ),
    "the state after is an output": (
        [(1, 4)],
        lambda x, s: (lambda made: ([made], [made]))(op.add(s[0], x)),
        lambda x, s: ([s[0] + x], [s[0] + x]),
    ),
    "a window that moves up is an output, and a view of it": (
        [(1, 4)],
        lambda x, s: (lambda made: ([made, op.reshape(made, (2, 2)), op.add(made, x)], [made]))(_shifted(x, s[0])),
        lambda x, s: (lambda made: ([made, made.reshape(2, 2), made + x], [made]))(np.c_[s[0][:, 1:], x[:, :1]]),
    ),
    "two states hold one window": (
        [(1, 4), (1, 4)],
        lambda x, s: (lambda made: ([op.add(s[1], x), made], [made, made]))(_shifted(x, s[0])),
        lambda x, s: (lambda made: ([s[1] + x, made], [made, made]))(np.c_[s[0][:, 1:], x[:, :1]]),
    ),
    "a window in another shape than its state's": (
        [(2, 2)],
        lambda x, s: _reshaped_window(x, s, lambda made, after: [op.add(made, x), op.add(after, after)]),
        lambda x, s: _expected_window(x, s, lambda made: [made + x, (made + made).reshape(2, 2)]),
    ),
    "a window in two shapes is an output": (
        [(2, 2)],
        lambda x, s: _reshaped_window(
            x, s, lambda made, after: [after, made, op.reshape(made, (4, 1)), op.add(made, x)]
        ),
        lambda x, s: _expected_window(x, s, lambda m: [m.reshape(2, 2), m, m.reshape(4, 1), m + x]),
    ),
    "two states hold one window in two shapes": (
        [(2, 2), (1, 4)],
        lambda x, s: (lambda made: ([op.add(s[1], x)], [op.reshape(made, (2, 2)), made]))(
            _shifted(x, op.reshape(s[0], (1, 4)))
        ),
        lambda x, s: (lambda made: ([s[1] + x], [made.reshape(2, 2), made]))(
            np.c_[s[0].reshape(1, 4)[:, 1:], x[:, :1]]
        ),
    ),
    "one window, then another shape of it": (
        [(1, 4), (2, 2)],
        lambda x, s: (lambda made: ([op.add(made, x)], [made, op.reshape(made, (2, 2))]))(_shifted(x, s[0])),
        lambda x, s: (lambda made: ([made + x], [made, made.reshape(2, 2)]))(np.c_[s[0][:, 1:], x[:, :1]]),
    ),
    "a state that stays": (
        [(1, 4)],
        lambda x, s: ([op.add(s[0], x)], [s[0]]),
        lambda x, s: ([s[0] + x], [s[0]]),
    ),
    "a state that nobody reads": (
        [(1, 4)],
        lambda x, s: ([op.add(x, x)], [op.maximum(x, x)]),
        lambda x, s: ([x + x], [x]),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_the_call_before(case: str) -> None:
    shapes, step, expected = CASES[case]
    initial = [np.arange(1, 5, dtype="int8") * (k + 1) for k in range(len(shapes))]
    ready = prepared(network((1, 4), shapes, step, [a.tobytes() for a in initial]))
    rng = np.random.default_rng(1)
    calls = [rng.integers(-20, 20, (1, 4), "int8") for _ in range(5)]
    plan = plan_graph(ready.graph)
    validate(plan)
    kept = [a.reshape(s) for a, s in zip(initial, shapes, strict=True)]
    for x, made in zip(calls, run_calls(ready, plan, ready.io, [[x] for x in calls]), strict=True):
        outputs, kept = expected(x, kept)
        for ours, theirs in zip(made, outputs, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_window_in_another_shape_moves_in_the_bytes_of_its_state() -> None:
    _, step, _ = CASES["a window in another shape than its state's"]
    kinds = [o.kind for o in prepared(network((1, 4), [(2, 2)], step)).graph.ops]
    assert ASSIGN in kinds and not {"concat", "concatenate"} & set(kinds)


def moved(plan: Plan, block: str, to: str) -> Plan:
    """`plan` with one block put where another lies."""
    places = list(plan.allocation.offsets)
    places[plan.buffers.index(block)] = places[plan.buffers.index(to)]
    return replace(plan, allocation=replace(plan.allocation, offsets=tuple(places)))


def test_a_plan_that_touches_a_state_is_refused() -> None:
    ready = prepared(network((1, 1, 2, 2), [(1, 3, 2, 2)], window))
    plan = plan_graph(ready.graph, PlanOptions(layerwise=True, overlap=False))
    before, after = ready.graph.states[0]
    others = [b for b in plan.buffers if b.startswith("tensor") and b not in (f"tensor {before}", f"tensor {after}")]
    assert others
    for block in others:
        with pytest.raises(ValidationError):
            validate(moved(plan, block, f"tensor {before}"))
    apart = [b for b in others if plan.storages[int(b.split()[1])].size >= 12]
    with pytest.raises(ValidationError, match=r"does not write the very bytes|not in memory"):
        validate(moved(plan, f"tensor {after}", apart[0]))


def test_orders_keep_a_state_until_all_have_read_it() -> None:
    graph = prepared(network((1, 1, 2, 2), [(1, 3, 2, 2)], window)).graph
    (writes,) = [o.index for o in graph.ops if o.target is not None]
    readers = set(graph.consumers[graph.states[0][0]]) - {writes}
    assert readers <= set(graph.predecessors[writes])
    assert all(writes in graph.successors[r] for r in readers)
    found = order(graph).order
    assert all(found.index(r) < found.index(writes) for r in readers)


def test_a_graph_refuses_what_cannot_take_over_a_state() -> None:
    tensors = tuple(Tensor(k, n, (4,), "int8") for k, n in enumerate(("x", "s", "after", "late")))
    assign = Op(0, "assign", ASSIGN, (0, 1), (2,), target=1)
    Graph(tensors[:3], (assign,), (0, 1), (2,))
    late = Op(1, "late", "add", (1, 0), (3,))
    with pytest.raises(GraphError, match="assign cannot take over the bytes of s"):
        Graph(tensors, (assign, late), (0, 1), (2, 3))
    with pytest.raises(GraphError, match="cannot take over"):
        Graph(tensors[:3], (assign,), (0, 1), (2, 1))


def test_without_the_declaration_states_are_inputs_and_outputs() -> None:
    mod = network((1, 1, 2, 2), [(1, 3, 2, 2)], window)
    plain = extract_graph(mod).graph
    assert (len(plain.inputs), len(plain.outputs), plain.states) == (2, 3, ())


def test_a_state_takes_one_block() -> None:
    ready = prepared(network((1, 1, 64, 8), [(1, 63, 64, 8)], lambda x, s: ([x], [op.strided_slice(
        op.concat([s[0], x], axis=1), axes=[1], begin=[1], end=[64])])))  # fmt: skip
    plan = plan_graph(ready.graph)
    state, row = 63 * 64 * 8, 64 * 8
    assert plan.peak <= state + state + 3 * row  # the state, and the rows behind it while they are joined


def _pass(made: Any) -> Any:
    return made  # a class that TVM's decorator makes a pass


def test_a_region_of_a_network_with_states_gets_and_gives_them() -> None:
    """The virtual machine runs the pure function that the module is: states are inputs and outputs there."""
    mod, cascade = network((1, 1, 2, 2), [(1, 3, 2, 2)], window), _pass(Cascade())
    x, kept = np.ones((1, 1, 2, 2), "int8"), np.arange(12, dtype="int8").reshape(1, 3, 2, 2)
    most, twice, after = quick_run(cascade(mod), x, kept)
    whole = np.concatenate([kept, x], axis=1)
    for ours, theirs in ((most, whole.max(axis=1)), (twice, x + x), (after, whole[:, 1:])):
        np.testing.assert_array_equal(ours, theirs)


def test_states_lie_in_one_of_several_memories() -> None:
    mod = network((1, 1, 2, 2), [(1, 3, 2, 2)], window)
    asked = PlanRequest(memory=(Ram("fast", 16, 1.0), Ram("slow", 4096, 4.0)))
    plan = plan_network(mod, asked).plan
    validate(plan)
    (row,) = state_rows(plan)
    assert (row["name"], row["bytes"]) == ("s0", 12) and row.get("memory") in ("fast", "slow")
    assert sum(use.bytes for use in plan.memories) == plan.peak
