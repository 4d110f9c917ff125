"""Several networks under one schedule: joint, apart and after are priced, the cheapest is taken, and checked."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from tvm_cascade.cost import AnalyticCost, Device, find_device
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Graph, Op, Tensor
from tvm_cascade.parallel import Options, Schedule, run_stages, schedule
from tvm_cascade.parallel.scheduler import stage_ms
from tvm_cascade.parallel.validate import validate_beside, validate_schedule
from tvm_cascade.testing.random_graphs import mixed_graph, wired_graph

FLAT = Device("flat", "cpu", 2, 100e9, 50e9, 1.0, 2.0, contention=0.0, cache_bytes=64 << 20, cache_bytes_per_s=500e9)


def beside(*graphs: Graph) -> Graph:
    """Graphs as one without edges between them, operators in turn from each."""
    tensors: list[Tensor] = []
    queues: list[list[Op]] = []
    inputs: list[int] = []
    outputs: list[int] = []
    for number, graph in enumerate(graphs):
        at = len(tensors)
        tensors += [replace(t, index=at + t.index, name=f"{number}/{t.name}") for t in graph.tensors]
        moved = [
            replace(
                op,
                name=f"{number}/{op.name}",
                inputs=tuple(at + t for t in op.inputs),
                outputs=tuple(at + t for t in op.outputs),
            )
            for op in graph.ops
        ]
        queues.append(moved)
        inputs += [at + t for t in graph.inputs]
        outputs += [at + t for t in graph.outputs]
    turns = sorted(((k + 1) / len(q), n, k) for n, q in enumerate(queues) for k in range(len(q)))
    ops = [replace(queues[n][k], index=i) for i, (_, n, k) in enumerate(turns)]
    return Graph(tuple(tensors), tuple(ops), tuple(inputs), tuple(outputs))


def chain(*macs: int, rows: int = 64) -> Graph:
    """Convolutions one after the other with so many multiply-accumulates, on small tensors."""
    tensors = tuple(Tensor(k, f"t{k}", (1, rows, 4, 4), "float32") for k in range(len(macs) + 1))
    ops = tuple(Op(k, f"conv{k}", "conv2d", (k,), (k + 1,), macs=m) for k, m in enumerate(macs))
    return Graph(tensors, ops, (0,), (len(macs),))


def checked(graph: Graph, model: AnalyticCost, options: Options = Options()):  # noqa: B008
    found = schedule(graph, model, options)
    assert found.beside is not None
    prices = {"joint": found.beside.joint_ms, "apart": found.beside.apart_ms, "after": found.beside.after_ms}
    validate_beside(graph, found.schedule, found.beside.chosen, prices)
    assert sum(stage_ms(found.units, stage, model) for stage in found.schedule.stages) == pytest.approx(
        found.schedule.cost_ms
    )
    return found


SMALL, LARGE = 100_000, 400_000_000


@pytest.mark.parametrize(
    "name, networks, device",
    [
        # small kernels fill a thread each, and one fork and join is for all of them
        ("apart", (chain(*[SMALL] * 30), chain(*[SMALL] * 30)), FLAT),
        # large kernels use both threads; at the same time, one thread would wait for the other
        ("after", (chain(3 * LARGE, 3 * LARGE), chain(LARGE)), FLAT),
        # what is small runs at the same time, what is large on both threads
        ("joint", (chain(*[SMALL] * 20, LARGE, LARGE), chain(*[SMALL] * 20)), FLAT),
    ],
)
def test_each_of_the_three_wins(name, networks, device):
    found = checked(beside(*networks), AnalyticCost(device), Options(r=20))
    assert found.beside.chosen == name


def test_threads_that_share_a_bandwidth_take_turns():
    """Traffic alone: nothing is gained at the same time, and each fork costs."""
    tensors = tuple(Tensor(k, f"t{k}", (1, 64, 256, 256), "float32") for k in range(4))
    network = Graph(tensors, tuple(Op(k, f"r{k}", "relu", (k,), (k + 1,)) for k in range(3)), (0,), (3,))
    device = replace(FLAT, bytes_per_s=10e9, thread_bytes_per_s=10e9, cache_bytes=0)
    one = schedule(network, AnalyticCost(device), Options(unit="op")).schedule.cost_ms
    found = checked(beside(network, network), AnalyticCost(device), Options(unit="op"))
    assert found.schedule.cost_ms > 1.95 * one
    free = replace(device, bytes_per_s=20e9)
    apart = checked(beside(network, network), AnalyticCost(free), Options(unit="op")).beside.apart_ms
    assert apart == pytest.approx(one - 3 * device.launch_us / 1e3 - 2 * device.sync_us / 1e3, rel=0.01)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("device", ["cpu2", "cpu", "v100"])
def test_never_more_than_each_alone_or_apart(seed, device):
    """`after` is the sum of the networks' own best schedules, each searched as a graph of its own."""
    model = AnalyticCost(find_device(device))
    drawn = (
        mixed_graph(seed + 50 * k, 5 + k % 4) if k % 2 else wired_graph(seed + 50 * k, 5 + k % 4) for k in range(99)
    )
    whole = (graph for graph in drawn if schedule(graph, model).beside is None)  # some fall into parts
    graphs = list(islice(whole, 2 + seed % 2))
    for options in (Options(), Options(variant="parallel", s=2), Options(variant="merge"), Options(max_nodes=6)):
        found = checked(beside(*graphs), model, options)
        alone = sum(schedule(graph, model, options).schedule.cost_ms for graph in graphs)
        assert found.beside.after_ms == pytest.approx(alone)
        assert found.schedule.cost_ms <= alone * (1 + 1e-12)
        wide = options.variant == "merge" or (options.s or 9) < len(graphs)
        assert (found.beside.apart_ms is None) == wide


def test_one_network_has_no_prices():
    assert schedule(chain(SMALL, SMALL), AnalyticCost(FLAT)).beside is None
    assert schedule(beside(chain(SMALL), chain(SMALL)), AnalyticCost(FLAT), Options(variant="greedy")).beside is None


def test_prices_are_told():
    graph = beside(chain(*[SMALL] * 30), chain(*[SMALL] * 30))
    data, text = run_stages(graph, model=AnalyticCost(FLAT))
    assert data["beside"]["chosen"] == "apart" and data["cost_ms"] == data["beside"]["apart_ms"]
    assert "networks beside one another: apart is chosen (joint " in text
    assert data["description"] == "flat, built-in"


def test_a_wrong_choice_is_found():
    graph = beside(chain(SMALL, SMALL), chain(SMALL))
    found = checked(graph, AnalyticCost(FLAT))
    good = found.schedule
    prices = {"joint": 2 * good.cost_ms, "apart": None, "after": good.cost_ms}
    turns = tuple(replace(good.stages[0], groups=((i,),)) for i in range(3))
    validate_schedule(graph, Schedule(turns, good.cost_ms))
    with pytest.raises(ValidationError, match="joint is chosen at"):
        validate_beside(graph, good, "joint", prices)
    first, second = (tuple(i for i in range(3) if graph.ops[i].name.startswith(f"{n}/")) for n in (0, 1))
    steps = tuple(replace(good.stages[0], groups=((i,),)) for i in (first[0], second[0], first[1]))
    with pytest.raises(ValidationError, match="a network runs in several parts"):
        validate_beside(graph, Schedule(steps, good.cost_ms), "after", prices)
    together = Schedule((replace(good.stages[0], groups=(first, second)),), good.cost_ms)
    with pytest.raises(ValidationError, match="stage 0 holds several networks"):
        validate_beside(graph, together, "after", prices)
    with pytest.raises(ValidationError, match="not a single stage with a group each"):
        validate_beside(graph, Schedule(turns, good.cost_ms), "apart", {"apart": good.cost_ms})
