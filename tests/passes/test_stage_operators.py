"""Operators that TVM leaves to functions of a target, or to loops that no rule schedules, as kernels of staged programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.operators import with_plain_operators
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.builder import Net

relax: Any = _relax
RNG = np.random.default_rng(4)
X = RNG.integers(-4, 5, (3, 7, 5)).astype("float32")  # many are equal
WHERE = RNG.integers(-7, 7, (2, 4, 5))
MORE = RNG.standard_normal((2, 4, 5)).astype("float32")


def module(operator: Callable[..., Any], *arrays: np.ndarray, bare: bool = False) -> tvm.IRModule:
    """A network of one operator on inputs of the shapes and types of `arrays`, between two that compute; or `bare` behind one."""
    inputs = [relax.Var(f"x{k}", relax.TensorType(a.shape, str(a.dtype))) for k, a in enumerate(arrays)]
    builder: Any = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            first = builder.emit(relax.op.add(inputs[0], relax.const(1, str(arrays[0].dtype))))
            made = builder.emit(operator(first, *inputs[1:]))
            parts = (
                [builder.emit(made[k]) for k in range(len(made.ty.fields))] if hasattr(made.ty, "fields") else [made]
            )
            results = [p if bare else builder.emit(relax.op.add(p, relax.const(0, str(p.ty.dtype)))) for p in parts]
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    return builder.finalize()


def staged(mod: tvm.IRModule, target: str = "llvm") -> tvm.IRModule:
    net = stage_network(mod, target)
    units = unit_graph(net.graph, "fused")
    found = schedule(net.graph, AnalyticCost(find_device("v100")), Options(variant="sequential")).schedule
    return lower_stages(net, units, found, LowerOptions(target=target))


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    return Session(compile_stages(staged(mod))).run(*arrays)


def before(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Places along the axis in order; of equal elements the first one first."""
    return np.argsort(-x if descending else x, axis=axis, kind="stable")


def taken(x: np.ndarray, axis: int, places: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, places, axis)


ORDERS: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], list[np.ndarray]]]] = {
    "topk": (
        lambda x: relax.op.topk(x, 3, 1, "both", True, "int64"),
        lambda x: [taken(x, 1, before(x, 1, True)[:, :3]), before(x, 1, True)[:, :3]],
    ),
    "topk, smallest": (
        lambda x: relax.op.topk(x, 2, -1, "indices", False, "int32"),
        lambda x: [before(x, 2, False)[..., :2]],
    ),
    "topk, values": (lambda x: relax.op.topk(x, 7, 1, "values"), lambda x: [taken(x, 1, before(x, 1, True))]),
    "sort": (lambda x: relax.op.sort(x, 0, True), lambda x: [taken(x, 0, before(x, 0, True))]),
    "argsort": (lambda x: relax.op.argsort(x, 1, False, "int32"), lambda x: [before(x, 1, False)]),
    "cumsum": (lambda x: relax.op.cumsum(x, 1), lambda x: [x.cumsum(1)]),
    "cumsum, flat": (lambda x: relax.op.cumsum(x), lambda x: [x.reshape(-1).cumsum()]),
    "cumsum, exclusive": (lambda x: relax.op.cumsum(x, -1, exclusive=True), lambda x: [x.cumsum(2) - x]),
    "cumprod": (lambda x: relax.op.cumprod(x, 2), lambda x: [x.cumprod(2)]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_sorts_and_scans_are_kernels(name: str) -> None:
    operator, meant = ORDERS[name]
    for got, wanted in zip(run(module(operator, X), X), meant(X + 1), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("how", ["update", "add", "mul"])
@pytest.mark.parametrize("axis", [1, 0])
def test_scatters_are_kernels(how: str, axis: int) -> None:
    """Indices that are negative, that name an element twice, and that are fewer than the data along other axes."""
    where = WHERE % 3 - 1 if axis == 0 else WHERE
    mod = module(lambda x, i, u: relax.op.scatter_elements(x, i, u, axis, how), X, where, MORE)
    made = X + 1
    for at in np.ndindex(*where.shape):
        place = (*at[:axis], where[at] % X.shape[axis], *at[axis + 1 :])
        made[place] = {"update": MORE[at], "add": made[place] + MORE[at], "mul": made[place] * MORE[at]}[how]
    np.testing.assert_allclose(run(mod, X, where, MORE)[0], made, rtol=1e-5, atol=1e-6)


def test_loops_that_no_rule_schedules_run_as_they_are() -> None:
    mod = module(lambda x, i, u: relax.op.scatter_elements(x, i, u, 1, "max"), X, WHERE, MORE, bare=True)
    made = X + 1
    for at in np.ndindex(*WHERE.shape):
        place = (at[0], WHERE[at] % 7, at[2])
        made[place] = max(made[place], MORE[at])
    np.testing.assert_array_equal(run(mod, X, WHERE, MORE)[0], made)


@pytest.mark.parametrize("name", ["topk", "cumsum", "cumprod"])
def test_they_have_threads_on_a_gpu(name: str) -> None:
    mod = staged(module(ORDERS[name][0], X), "cuda -arch=sm_90")
    functions = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    kernels = [f.script() for f in functions if "tirx.is_host_func" not in f.attrs]
    assert len(kernels) >= 2 and all("threadIdx.x" in k for k in kernels)


def test_a_network_without_them_is_left_alone() -> None:
    net = Net("float32", "NCHW")
    mod = net.finish(net.conv(net.input((1, 2, 4, 4), "x"), 3, 3))
    assert with_plain_operators(mod) is mod


NUMBERS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "index": (lambda x: relax.op.take(x, relax.const(2, "int64"), 1), lambda x: x[:, 2]),
    "choice": (
        lambda x: relax.op.where(relax.op.greater(x, relax.const(1.0)), x, relax.const(-np.inf, "float32")),
        lambda x: np.where(x > 1, x, np.float32(-np.inf)),
    ),
    "filled": (
        lambda x: relax.op.where(
            relax.op.greater(x, relax.const(1.0)), relax.op.full_like(x, relax.const(3.0)), relax.op.zeros_like(x)
        ),
        lambda x: np.where(x > 1, np.float32(3), np.float32(0)),
    ),
    "full": (
        lambda x: relax.op.add(x, relax.op.full((7, 5), relax.const(2.0), "float32")),
        lambda x: x + 2,
    ),
    "maximum": (
        lambda x: relax.op.max(relax.op.multiply(x, relax.const(-np.inf, "float32")), 1),
        lambda x: (x * np.float32(-np.inf)).max(1),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_constants_of_one_number_may_be_operands_of_anything(name: str) -> None:
    operator, meant = NUMBERS[name]
    data = np.abs(X) + 0.5
    np.testing.assert_array_equal(run(module(operator, data), data)[0], meant(data + 1))


def test_indices_are_held_within_the_tensor() -> None:
    table = np.arange(40, dtype="float32").reshape(10, 4)
    places = np.array([0, 9, -1, 10, 2**31 - 2, -(2**31)], "int32")
    mod = module(lambda i: relax.op.take(relax.const(table), i, 0, mode="fast"), places)
    np.testing.assert_array_equal(run(mod, places)[0], table[[1, 9, 0, 9, 9, 0]])


def test_their_graph_holds_plain_operators() -> None:
    graph = stage_graph(module(ORDERS["topk"][0], X)).graph
    assert {"sort_ranks", "sort_places", "sort_values"} <= {op.kind for op in graph.ops}
