"""Whole networks: units, blocks, merges, reports, files, and the figures that the search must reach."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from tvm_cascade.cost import AnalyticCost, features, find_device
from tvm_cascade.errors import LoadError, UsageError, ValidationError
from tvm_cascade.graph import IDENTITY, Graph, Op, Tensor, Window
from tvm_cascade.parallel import (
    CONCURRENT,
    MERGE,
    Options,
    Schedule,
    Stage,
    load_schedule,
    run_stages,
    save_schedule,
    schedule,
    validate_schedule,
    with_batch,
)
from tvm_cascade.parallel.blocks import cut_points, split
from tvm_cascade.parallel.merging import merge_classes, merged_window
from tvm_cascade.parallel.stage_search import search
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.stage_blocks import block_from_edges
from tvm_cascade.testing.zoo import randwire_files
from tvm_cascade.testing.zoo.inception import TABLE_2 as INCEPTION
from tvm_cascade.testing.zoo.inception import inception_v3
from tvm_cascade.testing.zoo.squeezenet import TABLE_2 as SQUEEZENET
from tvm_cascade.testing.zoo.squeezenet import squeezenet

V100 = AnalyticCost(find_device("v100"))
ALL = Options(r=None, s=None)
SWEEP = "TVM_CASCADE_SWEEP" in os.environ


@pytest.fixture(scope="module")
def inception() -> Graph:
    return stage_graph(inception_v3()).graph


@pytest.fixture(scope="module")
def fire() -> Graph:
    return stage_graph(squeezenet(1, 47, 0.5, 10)).graph


def test_inception_has_the_papers_blocks_and_operators(inception):
    found = schedule(inception, V100)
    assert len(found.units.units) == INCEPTION[1]
    branching = [size for size in found.sizes if size > 1]
    assert branching == [9, 9, 9, 6, 12, 12, 12, 12, 8, 11, 11] and len(branching) == INCEPTION[0]


def test_squeezenet_has_the_papers_operators(fire):
    found = schedule(fire, V100)
    assert len(found.units.units) == SQUEEZENET[1]
    assert sum(size in (3, 6) for size in found.sizes) == SQUEEZENET[0] - 2  # the fire modules
    assert max(found.sizes) == 6


@pytest.mark.parametrize("variant", ["sequential", "greedy", "merge", "parallel", "both"])
def test_variants_are_valid_and_ordered(fire, variant):
    found = schedule(fire, V100, Options(variant=variant))
    validate_schedule(fire, found.schedule)
    if variant in ("merge", "parallel", "both"):
        assert found.schedule.optimal and found.schedule.cost_ms <= found.sequential_ms * (1 + 1e-12)
    if variant == "merge":
        assert all(len(s.groups) == 1 for s in found.schedule.stages)
        assert any(s.strategy == MERGE for s in found.schedule.stages)
    if variant == "parallel":
        assert all(s.strategy == CONCURRENT for s in found.schedule.stages)
    both = schedule(fire, V100).schedule.cost_ms
    assert both <= found.schedule.cost_ms * (1 + 1e-12)


def test_search_is_short_and_proven_optimal(inception, fire):
    """Inception V3 and SqueezeNet at r = 3, s = 8."""
    for graph in (inception, fire):
        found = schedule(graph, V100, Options(r=3, s=8))
        assert found.schedule.optimal and found.schedule.transitions < 100_000
        assert found.schedule.cost_ms < found.sequential_ms


def test_more_room_never_costs_more(inception):
    costs = [schedule(inception, V100, Options(r=r, s=s)).schedule.cost_ms for r, s in ((1, 3), (2, 3), (3, 8))]
    assert costs[0] >= costs[1] >= costs[2] >= schedule(inception, V100, ALL).schedule.cost_ms * (1 - 1e-12)


class Counting(AnalyticCost):
    """Counts the stages that it is asked for."""

    asked = 0

    def stage_ms(self, groups):
        self.asked += 1
        return super().stage_ms(groups)


def test_identical_blocks_are_solved_once():
    asked = []
    for blocks in (1, 6):
        net = Net("float32", "NCHW")
        x = net.input((1, 16, 9, 9), "x")
        for _ in range(blocks):
            x = net.concat([net.conv(x, 8, 1), net.conv(x, 8, 3)])
        model = Counting(find_device("v100"))
        found = schedule(stage_graph(net.finish(x)).graph, model)
        assert found.sizes == (3,) * blocks
        asked.append(model.asked)
    assert asked[0] == asked[1]


def test_randwire_from_the_edge_file_is_searched_to_the_optimum(test_data):
    path = test_data / "cases" / "ios" / "randwire_ws-32-4-0.75-4.txt"
    graph = stage_graph(randwire_files.stages([path], size=28, channels=78)).graph
    found = schedule(graph, V100, Options(unit="sepconv", r=3, s=8))
    assert found.sizes == (33,) and found.schedule.optimal
    assert found.schedule.cost_ms < 0.6 * found.sequential_ms


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("randwire_1", 13_398),
        pytest.param("randwire_3", 3_560_808, marks=pytest.mark.skipif(not SWEEP, reason="of TVM_CASCADE_SWEEP")),
    ],
)
def test_blocks_without_pruning(test_data, name, pairs):
    """All pairs of blocks of RandWire, the second of which is the largest of all networks (`make bench`), proven optimal."""
    numbers = [int(w) for w in (test_data / "cases" / "ios" / "blocks" / f"{name}.txt").read_text().split()]
    block = block_from_edges(numbers[0], zip(numbers[2::2], numbers[3::2], strict=True))
    macs = [78 * 78 * 784 * (1 + v % 3) for v in range(block.size)]
    ops = [features("conv2d", [(1, 78, 28, 28)], [(1, 78, 28, 28)], macs=m, weight_bytes=4 * m // 784) for m in macs]

    class Cost:
        fork_ms = V100.fork_ms

        def concurrent(self, groups):
            return V100.stage_ms([[ops[v] for v in g] for g in groups])

        def merged(self, members):
            return None

        def bounds(self):
            return [V100.bound(op, False) for op in ops]

    pruned = search(block, Cost(), Options(variant="parallel"))
    found = search(block, Cost(), Options(variant="parallel", r=None, s=None), [pruned])
    assert found.transitions == pairs > pruned.transitions and found.optimal
    assert found.cost_ms <= pruned.cost_ms


# Units and blocks.


def chain_with_branches() -> Graph:
    net = Net("float32", "NCHW")
    x = net.input((1, 8, 8, 8), "x")
    y = net.conv(x, 8, 3, activation="relu")
    z = net.add(net.separable(net.relu(y), 8), net.conv(y, 8, 1))
    return stage_graph(net.finish(net.dense(net.flatten(net.global_pool(z)), 4, activation="relu"))).graph


def test_units():
    graph = chain_with_branches()
    kinds = {
        unit: [[graph.ops[i].kind for i in u.ops] for u in unit_graph(graph, unit).units]
        for unit in ("op", "fused", "sepconv")
    }
    assert ["conv2d", "add", "relu"] in kinds["fused"] and ["conv2d", "add", "relu"] not in kinds["op"]
    assert ["mean", "reshape"] in kinds["op"]  # a view belongs to its producer
    assert ["dense", "add", "relu"] in kinds["fused"]
    assert ["relu", "depthwise_conv2d", "add", "conv2d", "add"] in kinds["sepconv"]
    for unit in kinds:
        found = unit_graph(graph, unit)
        assert sorted(i for u in found.units for i in u.ops) == list(range(len(graph.ops)))
        assert all(p < u for u, before in enumerate(found.predecessors) for p in before)


def test_a_separable_unit_launches_two_kernels():
    graph = chain_with_branches()
    found = unit_graph(graph, "sepconv")
    (unit,) = [u for u in found.units if "depthwise_conv2d" in {graph.ops[i].kind for i in u.ops}]
    assert [[graph.ops[i].kind for i in k] for k in found.kernels[unit.index]] == [
        ["relu", "depthwise_conv2d", "add"], ["conv2d", "add"]
    ]  # fmt: skip


def test_cuts():
    diamond = [[], [0], [0], [1, 2], [3]]
    assert cut_points(diamond) == [0, 3, 4]
    assert split(diamond, Options()) == ([range(0, 1), range(1, 4), range(4, 5)], True)


def test_wide_blocks_are_cut_and_say_so():
    wide = [[] for _ in range(40)]
    ranges, exact = split(wide, Options(max_states=500))
    assert not exact and sum(map(len, ranges)) == 40 and max(map(len, ranges)) <= 8


# Merges.


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([Window(1), Window(3, padding=1), Window(5, padding=2)], (5, 2, (2, 1, 0))),
        ([Window(1, 2), Window(3, 2, padding=1)], (3, 1, (1, 0))),
        ([Window(2, 2), Window(3, 2, padding=1)], (3, 1, (1, 0))),
        ([Window(3, 1, 2, 2), Window(1, 1, 2)], (3, 2, (0, 1))),
        ([Window(3, 1, 2, 2), Window(3, 1, 2, 1)], None),  # taps would interleave
        ([Window(3, 1), Window(3, 2)], None),
        ([Window(1, padding=0), Window(3)], (3, 0, (0, 0))),
    ],
)
def test_placement(windows, expected):
    found = merged_window(windows)
    assert (None if found is None else (found.extent, found.padding, found.offsets)) == expected


def test_placement_reads_what_the_single_windows_read():
    for k in range(1, 6):
        for p in range(k):
            single, other = Window(k, 2, 1, p), Window(3, 2, 1, 1)
            merged = merged_window([single, other])
            assert merged is not None
            for y in range(4):
                for offset, w in zip(merged.offsets, (single, other), strict=True):
                    assert y * 2 - merged.padding + offset == w.first(y)


def test_what_may_merge():
    net = Net("float32", "NCHW")
    x = net.input((1, 8, 9, 9), "x")
    a, b, c = net.conv(x, 4, 1), net.conv(x, 6, 3), net.conv(x, 4, 3, activation="relu")
    d, e = net.conv(x, 4, 3, 2), net.conv(x, 8, 3, groups=2)
    mod = net.finish([a, b, c, d, e, net.depthwise(x, 3)])
    units = unit_graph(stage_graph(mod).graph, "fused")
    kinds = [[units.graph.ops[i].name for i in units.units[m].ops] for c in merge_classes(units) for m in c]
    assert kinds == [["conv2d_0", "add_0"], ["conv2d_1", "add_1"]]  # neither the relu, the stride, nor the groups


def test_merge_stages_obey_r_and_s():
    net = Net("float32", "NCHW")
    x = net.input((1, 256, 7, 7), "x")
    graph = stage_graph(net.finish(net.concat([net.conv(x, 16, 1) for _ in range(6)]))).graph
    for s in (1, 2, 3, 6):
        found = schedule(graph, V100, Options(variant="merge", s=s)).schedule
        merged = [s for s in found.stages if s.strategy == MERGE]
        assert all(len(stage.members) // 2 <= s for stage in merged)
        assert bool(merged) == (s > 1)


# Reports and files.


def test_report_keys_and_text(fire, tmp_path):
    data, text = run_stages(fire, "cuda", "v100", picture=tmp_path / "timeline.png", details=True)
    assert {"stages", "cost_ms", "sequential_ms", "greedy_ms", "transitions", "seconds"} <= set(data)
    assert all(set(stage) == {"strategy", "groups"} for stage in data["stages"])
    json.dumps(data)
    assert "proven optimal" in text and "stream 1" in text and "merge" in text
    assert (tmp_path / "timeline.png").stat().st_size > 1000


def test_a_long_timeline_is_cut_to_a_screen(inception):
    _, text = run_stages(inception, "cuda", "v100")
    _, whole = run_stages(inception, "cuda", "v100", details=True)
    lines, every = text.splitlines(), whole.splitlines()
    assert len(lines) == 21 and max(map(len, lines[4:])) <= 80
    assert lines[-1].strip() == f"and {len(every) - 20} more groups: --details"


def test_devices_and_batches_get_their_own_schedules(inception):
    stages = {
        (device, batch): run_stages(with_batch(inception, batch), "cuda", device)[0]["stages"]
        for device, batch in (("v100", 1), ("k80", 1), ("v100", 32))
    }
    assert stages["v100", 1] != stages["k80", 1] and stages["v100", 1] != stages["v100", 32]


def test_specialised_schedules_are_best_where_they_belong(inception, tmp_path):
    """Table 3: a schedule made for one batch size or device is no better elsewhere than the one made there."""
    for device, batch in (("v100", 1), ("v100", 32), ("k80", 1)):
        graph = with_batch(inception, batch)
        own = run_stages(graph, "cuda", device)[0]["cost_ms"]
        for other in ("v100", "k80"):
            path = tmp_path / "schedule.json"
            run_stages(graph, "cuda", other, output=path)
            assert run_stages(graph, "cuda", device, load=path)[0]["cost_ms"] >= own * (1 - 1e-9)


def test_schedules_are_saved_and_loaded(fire, tmp_path):
    path = tmp_path / "schedule.json"
    data, _ = run_stages(fire, "cuda", "v100", output=path)
    again, _ = run_stages(fire, "cuda", "v100", load=path)
    assert again["stages"] == data["stages"] and again["cost_ms"] == pytest.approx(data["cost_ms"])


def test_foreign_and_damaged_schedules_are_refused(fire, inception, tmp_path):
    path = tmp_path / "schedule.json"
    save_schedule(path, fire, schedule(fire, V100).schedule)
    with pytest.raises(UsageError, match="made for another graph"):
        load_schedule(path, inception)
    with pytest.raises(UsageError, match="made for another graph"):
        load_schedule(path, with_batch(fire, 8))
    text = json.loads(path.read_text())
    text["stages"] = text["stages"][:-1]
    path.write_text(json.dumps(text))
    with pytest.raises(LoadError, match="damaged"):
        load_schedule(path, fire)
    path.write_text("{}")
    with pytest.raises(LoadError, match="not a schedule"):
        load_schedule(path, fire)
    with pytest.raises(LoadError, match="no schedule can be read"):
        load_schedule(tmp_path / "nothing.json", fire)


def test_wrong_batch_is_refused(fire):
    with pytest.raises(UsageError, match="at least 1"):
        with_batch(fire, 0)
    odd = replace(fire.tensors[0], shape=(2, *fire.tensors[0].shape[1:]))
    with pytest.raises(UsageError, match="no leading batch"):
        with_batch(Graph((odd, *fire.tensors[1:]), fire.ops, fire.inputs, fire.outputs), 4)


# The validator.


def two_convolutions() -> Graph:
    def conv(index: int, source: int, groups: int = 1, stride: int = 1) -> Op:
        window = (Window(3, stride, padding=1),)
        return Op(index, f"c{index}", "conv2d", (source,), (index + 1,), window, window, attrs={"groups": groups})

    tensors = tuple(Tensor(i, f"t{i}", (1, 4, 6, 6), "float32", 2, 3) for i in range(4))
    return Graph(tensors, (conv(0, 0), conv(1, 0), conv(2, 1, groups=2)), (0,), (2, 3))


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        ([Stage(CONCURRENT, ((0,), (2,))), Stage(CONCURRENT, ((1,),))], "at the same time as, c0"),
        ([Stage(CONCURRENT, ((0,), (1,)))], "c2 runs 0 times"),
        ([Stage(CONCURRENT, ((0,), (0, 2))), Stage(CONCURRENT, ((1,),))], "c0 runs 2 times"),
        ([Stage(CONCURRENT, ((2, 0),)), Stage(CONCURRENT, ((1,),))], "at the same time as, c0"),
        ([Stage("both", ((0,), (1,))), Stage(CONCURRENT, ((2,),))], "unknown strategy"),
        ([Stage(CONCURRENT, ((0,),)), Stage(MERGE, ((1, 2),))], "differ in kind or input"),
        ([Stage(CONCURRENT, ((7,),))], "does not exist"),
    ],
)
def test_the_validator_refuses(stages, text):
    with pytest.raises(ValidationError, match=text):
        validate_schedule(two_convolutions(), Schedule(tuple(stages), 0.0))


def test_the_validator_refuses_a_merge_of_results_of_two_types():
    graph = two_convolutions()
    tensors = (*graph.tensors[:2], replace(graph.tensors[2], dtype="float16"), *graph.tensors[3:])
    stages = (Stage(MERGE, ((0, 1),)), Stage(CONCURRENT, ((2,),)))
    with pytest.raises(ValidationError, match="results are of another type"):
        validate_schedule(replace(graph, tensors=tensors), Schedule(stages, 0.0))


def test_the_validator_accepts():
    stages = (Stage(MERGE, ((0, 1),)), Stage(CONCURRENT, ((2,),)))
    validate_schedule(two_convolutions(), Schedule(stages, 0.0))


def test_identity_windows_are_shared():
    assert Window(1) == IDENTITY
