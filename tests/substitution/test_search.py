"""The backtracking search: published sequences, exhaustive search, pruning, budgets, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import product
from math import inf

import numpy as np
import pytest

from tvm_cascade import search_monitor
from tvm_cascade.cost import AnalyticCost, OpFeatures, find_device
from tvm_cascade.errors import GraphError, InfeasibleError, UsageError
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.substitution.costs import (
    CUDNN,
    TVM,
    Additive,
    Figure,
    Latency,
    Limited,
    PeakMemory,
    cudnn,
    op_features,
    parse_cost,
    peak_bytes,
)
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref, replace
from tvm_cascade.substitution.metaflow import SearchOptions, search
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.picture import describe
from tvm_cascade.substitution.report import format_report, optimize_report
from tvm_cascade.substitution.rules import ALL_RULES, PAPER_RULES, rules
from tvm_cascade.substitution.split import optimize
from tvm_cascade.testing.exhaustive_rewrites import exhaustive, exhaustive_by_parts, same_structure
from tvm_cascade.testing.looks import with_more_and_more_time

PLAIN = SearchOptions(eager=(), isolated=False, max_graphs=10**6, patience=0)
SRU_RULES = rules("distribute", "reorder_sum", "factor", "associate", "associate_right", "drop_unit")


def latency(device: str) -> Latency:
    described = find_device(device)
    return Latency("latency", cudnn(described), model=AnalyticCost(described))


class Layers:
    """Convolutions with their biases inside and relus apart, as the paper's figures begin."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.count = 0

    def image(self, channels: int, size: int) -> Ref:
        return self.pool.input("x", (1, channels, size, size))

    def conv(self, x: Ref, out: int, kernel: tuple[int, int] = (3, 3), stride: int = 1, relu: bool = True) -> Ref:
        kh, kw = kernel
        self.count += 1
        w = self.pool.weight(f"w{self.count}", (out, x.shape[1], kh, kw))
        b = self.pool.weight(f"b{self.count}", (out,))
        pad = (kh // 2, kw // 2, kh // 2, kw // 2)
        attrs = {"strides": (stride, stride), "padding": pad, "dilation": (1, 1), "groups": 1, "layout": "NCHW"}
        y = self.pool.make("conv2d", x, w, b, act="", **attrs)
        return self.pool.make("relu", y) if relu else y

    def max_pool(self, x: Ref, kernel: int = 2, stride: int = 2) -> Ref:
        attrs = {"kernel": (kernel, kernel), "strides": (stride, stride), "padding": (0, 0, 0, 0)}
        return self.pool.make("max_pool2d", x, layout="NCHW", ceil=False, **attrs)

    def dense(self, x: Ref, units: int, relu: bool = True) -> Ref:
        self.count += 1
        if len(x.shape) == 4:
            x = self.pool.make("reshape", x, shape=(1, int(np.prod(x.shape[1:]))))
        w = self.pool.weight(f"w{self.count}", (x.shape[1], units))
        y = self.pool.make("matmul", x, w, self.pool.weight(f"b{self.count}", (units,)), act="")
        return self.pool.make("relu", y) if relu else y

    def dag(self, x: Ref, *outputs: Ref) -> Dag:
        return Dag(self.pool, (x,), outputs)


def sru(width: int = 1024) -> Dag:
    """x * y + (1 - x) * z."""
    p = Pool()
    x, y, z = (p.input(n, (1, width)) for n in "xyz")
    one = p.make("full", types=(((1, width), "float32"),), value=1)
    return Dag(p, (x, y, z), (p.make("add", p.make("mul", x, y), p.make("mul", p.make("sub", one, x), z)),))


def resnet_module() -> Dag:
    """Figure 1."""
    n = Layers()
    x = n.image(256, 14)
    left = n.conv(n.conv(x, 256), 256, relu=False)
    right = n.conv(x, 256, (1, 1))
    return n.dag(x, n.pool.make("relu", n.pool.make("add", left, right)))


def inception_e() -> Dag:
    """Figure 7a."""
    n = Layers()
    x = n.image(1280, 8)
    two = n.conv(x, 384, (1, 1))
    three = n.conv(n.conv(x, 448, (1, 1)), 384)
    parts = [n.conv(x, 320, (1, 1))]
    parts += [n.conv(y, 384, k) for y, k in product((two, three), ((1, 3), (3, 1)))]
    attrs = {"kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1), "count_pad": False}
    pooled = n.pool.make("avg_pool2d", x, layout="NCHW", ceil=False, **attrs)
    parts.append(n.conv(pooled, 192, (1, 1)))
    return n.dag(x, n.pool.make("concat", *parts, axis=1))


def alexnet() -> Dag:
    n = Layers()
    x = n.image(3, 224)
    y = n.max_pool(n.conv(x, 64, (11, 11), 4), 3)
    y = n.max_pool(n.conv(y, 192, (5, 5)), 3)
    y = n.max_pool(n.conv(n.conv(n.conv(y, 384), 256), 256), 3)
    return n.dag(x, n.dense(n.dense(n.dense(y, 4096), 4096), 1000, relu=False))


def vgg16() -> Dag:
    n = Layers()
    x = y = n.image(3, 224)
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            y = n.conv(y, channels)
        y = n.max_pool(y)
    return n.dag(x, n.dense(n.dense(n.dense(y, 4096), 4096), 1000, relu=False))


def resnet18() -> Dag:
    n = Layers()
    x = n.image(3, 224)
    y = n.max_pool(n.conv(x, 64, (7, 7), 2))
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            short = y if stride == 1 else n.conv(y, 64 << stage, (1, 1), 2, relu=False)
            inner = n.conv(n.conv(y, 64 << stage, stride=stride), 64 << stage, relu=False)
            y = n.pool.make("relu", n.pool.make("add", inner, short))
    return n.dag(x, n.dense(y, 1000, relu=False))


# The simple recurrent unit, sections 3 and 6.2.1.


def test_sru_goes_4_5_4_3() -> None:
    found = search(sru(), Figure("launches"), SRU_RULES, SearchOptions(alpha=1.3))
    assert found.cost_before == 4
    assert [(s.rule, s.cost) for s in found.steps] == [("distribute", 5), ("reorder_sum", 4), ("factor", 3)]


@pytest.mark.parametrize("alpha, operators", [(1.0, 4), (1.2, 4), (1.25, 4), (1.26, 3), (2.0, 3), (inf, 3)])
def test_sru_needs_alpha_above_the_steps_ratio(alpha: float, operators: int) -> None:
    """5 operators after 4: a graph is expanded while its cost is below alpha times the best."""
    assert search(sru(), Figure("launches"), SRU_RULES, SearchOptions(alpha=alpha)).cost_after == operators


def test_sru_exhaustively() -> None:
    assert exhaustive(sru(), Figure("launches"), SRU_RULES).cost_after == 3


# Figures 1 and 7.


def test_figure_1_step_for_step() -> None:
    names = ("enlarge_kernel", "fuse_convs", "fuse_conv_add", "concat_of_split", "fuse_activation")
    found = search(resnet_module(), Figure("launches"), rules(*names), SearchOptions(alpha=1.3, eager=()))
    steps = [s.rule for s in found.steps]
    order = [steps.index(n) for n in ("enlarge_kernel", "fuse_convs", "concat_of_split")]
    assert order == sorted(order) and {*steps} == {*names}
    assert [describe(n) for n in found.dag.nodes] == ["conv 3x3 x512 relu", "conv 3x3 x256 relu"]
    dag, widths = resnet_module(), []
    for name in ("fuse_activation", "fuse_activation", *names):  # the printed order, its left-most graph first
        dag = replace(dag, Matcher(rules(name)).sites(dag)[0].target)
        widths.append(len(dag.nodes))
    assert widths == [6, 5, 5, 5, 5, 3, 2]
    assert same_structure(dag, found.dag)


def test_figure_1_under_the_v100() -> None:
    """The enlarged shortcut is dearer before it pays, so greedy search stops short of it."""
    greedy = search(resnet_module(), latency("v100"), PAPER_RULES, SearchOptions(alpha=1.0))
    relaxed = search(resnet_module(), latency("v100"), PAPER_RULES, SearchOptions(alpha=1.3))
    assert "enlarge_kernel" not in {s.rule for s in greedy.steps}
    assert relaxed.cost_after < greedy.cost_after
    assert "conv 3x3 x512 relu" in [describe(n) for n in relaxed.dag.nodes]


@pytest.mark.parametrize("device, expected", [("v100", 2), ("k80", 0)])
def test_figure_7_depends_on_the_device(device: str, expected: int) -> None:
    """V100: 1x3 and 3x1 become one 3x3 of 768 channels, twice. K80: they stay. Both: one 1x1 of 1152 channels."""
    for options in (SearchOptions(), SearchOptions(alpha=1.1, eager=())):
        found = search(inception_e(), latency(device), PAPER_RULES, options)
        boxes = [describe(n) for n in found.dag.nodes]
        assert boxes.count("conv 1x1 x1152 relu") == 1
        assert boxes.count("conv 3x3 x768 relu") == expected
        assert boxes.count("conv 1x3 x384 relu") == boxes.count("conv 3x1 x384 relu") == 2 - expected


# Table 3.


@pytest.mark.parametrize("make", [alexnet, vgg16, inception_e, resnet18])
def test_backtracking_prices_few_graphs(make: Callable[[], Dag]) -> None:
    """The paper's seconds are the benchmark's business; here the count behind them."""
    found = optimize(make(), latency("v100"), PAPER_RULES, SearchOptions(eager=()))
    assert found.graphs <= 1000
    assert found.cost_after < found.cost_before


def test_backtracking_equals_exhaustive_search_on_alexnet() -> None:
    full = exhaustive(alexnet(), latency("v100"), PAPER_RULES)
    assert full.graphs == 2**7 and full.complete
    for options in (PLAIN, SearchOptions(eager=()), SearchOptions()):
        for run in (search, optimize):
            found = run(alexnet(), latency("v100"), PAPER_RULES, options)
            assert found.cost_after == pytest.approx(full.cost_after, rel=1e-12)


def test_backtracking_equals_exhaustive_search_on_vgg16() -> None:
    """2^15 graphs, one for each set of relus: every relu inside its kernel is the best by far."""
    full = exhaustive(vgg16_part(9), latency("v100"), PAPER_RULES)
    assert full.graphs == 2**9 and full.complete
    found = search(vgg16_part(9), latency("v100"), PAPER_RULES, SearchOptions(eager=()))
    assert found.cost_after == pytest.approx(full.cost_after, rel=1e-12)


def test_backtracking_equals_exhaustive_search_on_resnet18() -> None:
    """2 * 8^5 * 35^3 graphs: the product of what substitutions make of the residual blocks."""
    dag = resnet18()
    full = exhaustive_by_parts(dag, latency("v100"), PAPER_RULES, reach=2)
    assert full.graphs == 2 * 8**5 * 35**3 and full.complete
    found = optimize(dag, latency("v100"), PAPER_RULES, SearchOptions(eager=()))
    assert found.cost_after == pytest.approx(full.cost_after, rel=1e-12)
    assert latency("v100").total(full.dag) == pytest.approx(full.cost_after, rel=1e-12)


def test_search_by_parts_is_exhaustive_search() -> None:
    for dag in (alexnet(), vgg16_part(7), resnet_module()):
        whole = exhaustive(dag, latency("v100"), PAPER_RULES)
        parts = exhaustive_by_parts(dag, latency("v100"), PAPER_RULES)
        assert parts.graphs == whole.graphs
        assert parts.cost_after == pytest.approx(whole.cost_after, rel=1e-12)
    for seed in range(6):
        whole = exhaustive(random_sum(seed), Figure("flops"), SRU_RULES, 20_000)
        parts = exhaustive_by_parts(random_sum(seed), Figure("flops"), SRU_RULES, 20_000)
        assert (parts.graphs, parts.cost_after) == (whole.graphs, whole.cost_after)


def test_search_by_parts_refuses_parts_that_are_too_large() -> None:
    with pytest.raises(GraphError, match="graphs"):
        exhaustive_by_parts(resnet18(), latency("v100"), PAPER_RULES, max_graphs=100)


def vgg16_part(convs: int) -> Dag:
    n = Layers()
    x = y = n.image(64, 28)
    for _ in range(convs):
        y = n.conv(y, 64)
    return n.dag(x, y)


def test_backtracking_equals_exhaustive_search_on_an_inception_branch() -> None:
    n = Layers()
    x = n.image(448, 8)
    three = n.conv(x, 384)
    parts = [n.conv(three, 384, k) for k in ((1, 3), (3, 1))] + [n.conv(x, 320, (1, 1))]
    dag = n.dag(x, n.pool.make("concat", *parts, axis=1))
    for device in ("v100", "k80"):
        full = exhaustive(dag, latency(device), PAPER_RULES, 200_000)
        assert full.complete and full.graphs > 400
        for options in (PLAIN, SearchOptions(eager=()), SearchOptions()):
            found = search(dag, latency(device), PAPER_RULES, options)
            assert found.cost_after == pytest.approx(full.cost_after, rel=1e-12)


def test_backtracking_equals_exhaustive_search_on_a_residual_block() -> None:
    n = Layers()
    x = n.image(64, 28)
    y = n.conv(n.conv(x, 128, stride=2), 128, relu=False)
    short = n.conv(x, 128, (1, 1), 2, relu=False)
    dag = n.dag(x, n.pool.make("relu", n.pool.make("add", y, short)))
    full = exhaustive(dag, latency("v100"), PAPER_RULES)
    assert full.complete
    for alpha in (1.1, inf):
        found = search(dag, latency("v100"), PAPER_RULES, SearchOptions(alpha=alpha, eager=(), isolated=False))
        assert found.cost_after == pytest.approx(full.cost_after, rel=1e-12)


def test_infinite_alpha_is_exhaustive_on_small_random_graphs() -> None:
    for seed in range(12):
        dag = random_sum(seed)
        full = exhaustive(dag, Figure("flops"), SRU_RULES, 20_000)
        found = search(
            dag, Figure("flops"), SRU_RULES, SearchOptions(alpha=inf, isolated=False, max_graphs=20_000, patience=0)
        )
        assert full.complete and found.complete
        assert found.cost_after == full.cost_after and found.graphs == full.graphs


def random_sum(seed: int) -> Dag:
    random = np.random.default_rng(seed)
    p = Pool()
    leaves = [p.input(n, (1, 8)) for n in "abcd"]
    values = list(leaves)
    for _ in range(4):
        kind = str(random.choice(["add", "sub", "mul"]))
        a, b = (values[int(random.integers(len(values)))] for _ in range(2))
        values.append(p.make(kind, a, b))
    return Dag(p, tuple(leaves), (values[-1],))


# Options, budgets, limits.


@pytest.mark.parametrize("eager, isolated", product([(), SearchOptions().eager], [False, True]))
def test_every_combination_of_heuristics_reaches_the_optimum(eager, isolated: bool) -> None:
    options = SearchOptions(alpha=1.3, eager=eager, isolated=isolated, max_graphs=20_000, patience=0)
    found = search(resnet_module(), latency("v100"), PAPER_RULES, options)
    assert found.cost_after == pytest.approx(exhaustive(resnet_module(), latency("v100"), PAPER_RULES).cost_after)


def test_a_budget_ends_the_search_and_is_reported() -> None:
    options = SearchOptions(max_graphs=40, alpha=1.1, eager=(), isolated=False)
    found = search(inception_e(), latency("v100"), PAPER_RULES, options)
    assert found.graphs == 40 and not found.complete
    assert found.cost_after < found.cost_before
    report = optimize_report(inception_e(), found, engine=CUDNN)
    assert "budget ended the search" in format_report(report)
    short, whole = format_report(report, 1), format_report(report, None)
    assert "; all: --details" in short and "--details" not in whole
    assert len(whole.splitlines()) - len(short.splitlines()) == len(report["steps"]) - 2


@pytest.mark.parametrize("find", [search, optimize])
@pytest.mark.parametrize("network", [resnet_module, inception_e, sru])
def test_more_time_never_gives_a_dearer_graph(network: Callable[[], Dag], find: Callable) -> None:
    dag, cost, options = network(), latency("v100"), SearchOptions(max_graphs=30)
    whole = find(dag, cost, PAPER_RULES, options)
    found = list(with_more_and_more_time(lambda: find(dag, cost, PAPER_RULES, options)))
    costs = [f.cost_after for f in found]
    assert costs[0] <= whole.cost_before and costs == sorted(costs, reverse=True)
    assert all(f.cost_after == pytest.approx(cost.total(f.dag)) for f in found)
    assert len(found) > 3 and not found[0].complete
    assert found[-1].dag.digest() == whole.dag.digest() and costs[-1] == whole.cost_after


def test_no_seconds_means_the_given_graph() -> None:
    with SearchMonitor(0.0):
        found = search(resnet_module(), latency("v100"), PAPER_RULES, SearchOptions(isolated=False))
    assert found.cost_after == found.cost_before and not found.complete


def test_without_a_limit_no_clock_ends_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    dag, options = inception_e(), SearchOptions(max_graphs=60)
    usual = optimize(dag, latency("v100"), ALL_RULES, options)
    hours = iter(range(0, 1 << 40, 3600))
    monkeypatch.setattr(search_monitor, "monotonic", lambda: float(next(hours)))
    slow = optimize(dag, latency("v100"), ALL_RULES, options)
    assert slow.graphs == usual.graphs and slow.dag.digest() == usual.dag.digest()


def test_a_larger_number_of_graphs_for_the_whole_graph_is_shared_by_its_parts_and_finds_more() -> None:
    dag, options = inception_e(), SearchOptions(threshold=6, window=0, isolated=False)
    found = [optimize(dag, latency("v100"), ALL_RULES, changed(options, total_graphs=n)) for n in (0, 40, 4_000)]
    assert [f.complete for f in found] == [False, False, True]
    assert found[0].cost_after > found[1].cost_after > found[2].cost_after
    assert found[0].graphs < found[1].graphs < found[2].graphs
    assert len({s.operators for s in found[1].steps}) > 1, "no part takes all of them"


def test_searching_twice_gives_the_same_graph_and_steps() -> None:
    a, b = (optimize(inception_e(), latency("v100"), ALL_RULES) for _ in range(2))
    assert a.steps == b.steps and a.graphs == b.graphs
    assert a.dag.digest() == b.dag.digest() and same_structure(a.dag, b.dag)


def test_a_limit_on_memory_is_kept() -> None:
    """Fusing the shortcut needs both halves at once; a cap below that peak forbids it."""
    dag = resnet_module()
    free = search(dag, latency("v100"), PAPER_RULES, SearchOptions(alpha=1.3))
    cap = peak_bytes(free.dag) - 1
    held = search(dag, Limited(latency("v100"), cap), PAPER_RULES, SearchOptions(alpha=1.3))
    assert peak_bytes(held.dag) <= cap and held.cost_after > free.cost_after
    with pytest.raises(InfeasibleError, match="raise the limit"):
        search(dag, Limited(latency("v100"), 1000), PAPER_RULES, SearchOptions(alpha=1.3))


def test_a_graph_above_its_limit_is_brought_below() -> None:
    n = Layers()
    x = n.image(8, 8)
    joined = n.pool.make("concat", *[n.conv(x, 8, relu=False) for _ in range(3)], axis=1)
    dag = n.dag(x, n.conv(joined, 8, (1, 1)))
    cost = Limited(Figure("launches"), peak_bytes(dag) - 1)
    found = search(dag, cost, ALL_RULES)
    assert found.cost_before == inf and peak_bytes(found.dag) < peak_bytes(dag)


def test_peak_memory_alone_takes_serenitys_rewrite() -> None:
    """A convolution of a concatenation becomes partial convolutions: the concatenated tensor never exists."""
    n = Layers()
    x = n.image(8, 8)
    wide = [n.conv(x, 16, relu=False) for _ in range(3)]
    dag = n.dag(x, n.conv(n.pool.make("concat", *wide, axis=1), 8, relu=False))
    found = search(dag, PeakMemory(), rules("conv_of_concat"), SearchOptions(alpha=1.5))
    assert [s.rule for s in found.steps] == ["conv_of_concat"]
    assert peak_bytes(found.dag) < peak_bytes(dag)


def test_costs_from_words() -> None:
    model = AnalyticCost(find_device("v100"))
    dag = resnet_module()
    flops, traffic = Figure("flops", TVM).total(dag), Figure("traffic", TVM).total(dag)
    assert parse_cost("flops", model).total(dag) == flops
    assert parse_cost("flops+2e-1*traffic", model).total(dag) == pytest.approx(flops + 0.2 * traffic)
    assert parse_cost("launches, peak <= 1KiB", model).total(dag) == inf
    assert parse_cost("latency,peak<=1MB", model).name == "latency,peak<=1000000"
    for bad in ("speed", "x*flops", "flops,peak<=big", "flops,ram<=1"):
        with pytest.raises(UsageError):
            parse_cost(bad, model)


@dataclass
class Operators(Additive):
    """A cost as a user may write one: a dataclass, which cannot be hashed."""

    each: float = 1.0

    def node(self, node: Node) -> float:
        return self.each


def test_costs_of_a_users_own_are_told_apart() -> None:
    pool = Pool()
    x = pool.input("x", (1, 4))
    dag = Dag(pool, (x,), (pool.make("tanh", pool.make("relu", x)),))
    assert [Operators("operators", each=each).total(dag) for each in (1.0, 3.0, 1.0)] == [2.0, 6.0, 2.0]


def test_canonical_hash_tells_structures_apart_and_ignores_names() -> None:
    a, b = sru(), sru()
    assert a.digest() == b.digest() and same_structure(a, b)
    p = Pool()
    z, y, x = (p.input(n, (1, 1024)) for n in ("u", "v", "w"))
    one = p.make("full", types=(((1, 1024), "float32"),), value=1)
    other = p.make("add", p.make("mul", p.make("sub", one, x), z), p.make("mul", y, x))
    renamed = Dag(p, (x, y, z), (other,))
    assert renamed.digest() == a.digest() and same_structure(renamed, a)
    swapped = Dag(p, (y, x, z), (other,))
    assert swapped.digest() != a.digest() and not same_structure(swapped, a)


@dataclass(eq=False)
class Told(Latency):
    """A latency that keeps what it was told of, call by call, and what it priced without having been told."""

    told: list[set[OpFeatures]] = field(default_factory=list)
    surprises: set[OpFeatures] = field(default_factory=set)

    def foresee(self, nodes: Iterable[Node]) -> None:
        self.told.append({op_features(n, self.engine) for n in nodes})

    def node(self, node: Node) -> float:
        features = op_features(node, self.engine)
        if not any(features in batch for batch in self.told):
            self.surprises.add(features)
        return super().node(node)


@pytest.mark.parametrize("limit", [None, 10**9])
def test_costs_that_measure_are_told_of_operators_before(limit: int | None):
    """Most that a search prices, several at a time; what it finds is the same."""
    dag = inception_e()
    plain = latency("v100")
    told = Told("latency", plain.engine, model=plain.model)
    options = SearchOptions(max_graphs=200, patience=50)
    first, second = (
        optimize(dag, c if limit is None else Limited(c, limit), ALL_RULES, options) for c in (plain, told)
    )
    assert first.dag.digest() == second.dag.digest() and first.steps == second.steps and first.graphs == second.graphs
    known = {op_features(n, told.engine) for n in dag.nodes}
    foreseen = set().union(*told.told) - known
    assert len(foreseen) > 3 * len(told.surprises - known)
    assert max(map(len, told.told)) >= 4


def test_a_convolution_that_others_read_is_not_computed_again():
    """A hard swish reads it twice: the constant added on the way is no bias of its convolution."""
    n = Layers()
    x = n.conv(n.image(16, 14), 64, (1, 1), relu=False)
    three = n.pool.make("full", types=(((), "float32"),), value=3.0)
    six = n.pool.make("full", types=(((), "float32"),), value=6.0)
    gate = n.pool.make("div", n.pool.make("relu6", n.pool.make("add", x, three)), six)
    swish = n.pool.make("mul", x, gate)
    dag = n.dag(n.image(16, 14), n.conv(swish, 32, (1, 1)))
    cost = Latency("latency", TVM, model=AnalyticCost(find_device("cpu")))
    found = optimize(dag, cost, ALL_RULES).dag
    assert [node.kind for node in found.nodes] == ["conv2d", "fused", "conv2d"]
