"""Files of the IOS authors: read, scheduled by the command `stages`, and written."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tvm_cascade import api
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.parallel import Options, load_authors_file, schedule, validate_schedule
from tvm_cascade.parallel.units import unit_graph

V100 = AnalyticCost(find_device("v100", "cuda"))


@pytest.mark.parametrize(
    ("name", "counts"), [("1", (55, 13, 102)), ("16", (43, 18, 113)), ("64", (44, 19, 115)), ("v100", (55, 13, 102))]
)
def test_the_authors_files(test_data, name, counts):
    graph, found = load_authors_file(test_data / "cases" / "ios" / f"inception_v3_{name}.json")
    validate_schedule(graph, found)
    concurrent = sum(len(s.groups) > 1 for s in found.stages)
    assert (len(found.stages), concurrent, sum(not op.view for op in graph.ops)) == counts
    units = unit_graph(graph, "op")
    assert schedule(graph, V100, Options(unit="op", r=None, s=None)).schedule.cost_ms < sum(
        V100.stage_ms([[k for i in g for k in (units.features[_unit(units, i)][0],)] for g in s.groups])
        for s in found.stages
    )


def _unit(units, op: int) -> int:
    return next(u.index for u in units.units if op in u.ops)


def test_files_of_other_kinds_are_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"blocks": 3}')
    with pytest.raises(LoadError, match="IOS authors"):
        load_authors_file(path)


def _conv(name: str, read: list, channels: int, kernel: int, act: str = "relu") -> dict[str, Any]:
    shape = [channels, 28, 28]
    return {
        "type": "conv", "name": name, "hint_name": name, "inputs": [[read]], "out_channels": channels, "kernel": [kernel] * 2,
        "stride": [1, 1], "padding": [kernel // 2] * 2, "groups": 1, "act": act, "output_shape": shape,
    }  # fmt: skip


def _fire(act: str = "relu") -> dict[str, Any]:
    """SqueezeNet's module, one operator after the other: a squeeze, expansions by 1x1 and 3x3, a concat of both."""
    nodes = [_conv("1", ["0", 0, 64], 256, 1), _conv("2", ["1", 0, 256], 64, 1), _conv("3", ["1", 0, 256], 48, 3, act)]
    parts = [[["2", 0, 64]], [["3", 0, 48]]]
    end = {"type": "identity", "name": "4", "hint_name": "4", "inputs": parts, "output_shape": [112, 28, 28]}
    entry = {"type": "placeholder", "name": "0", "hint_name": "0", "output_shape": [64, 28, 28]}
    block = {"enter_name": "0", "enter_node": entry, "inner_nodes": nodes, "exit_node": end}
    return {"name": "fire", "input": entry, "blocks": [block | {"stages": [[[str(i)]] for i in range(1, 5)]}]}


def _written(text: dict[str, Any], folder: Path, **options: Any) -> tuple[Path, Any]:
    (folder / "fire.json").write_text(json.dumps(text))
    data, _ = api.stages(folder / "fire.json", target="cuda", device="v100", output=folder / "found.json", **options)
    return folder / "found.json", data


@pytest.mark.parametrize("batch", [None, 8])
def test_what_is_written_is_read_and_costs_the_same(tmp_path, batch):
    found, data = _written(_fire(), tmp_path, variant="parallel", batch=batch)
    if batch is None:  # a larger one fills the GPU by itself
        assert [["2"], ["3"]] in json.loads(found.read_text())["blocks"][0]["stages"]
    again, _ = api.stages(found, target="cuda", device="v100", load=found, batch=batch)
    assert again["cost_ms"] == pytest.approx(data["cost_ms"]) and again["stages"] == data["stages"]
    one = tmp_path / "fire.json"
    alone, _ = api.stages(one, target="cuda", device="v100", load=one, batch=batch)
    assert alone["cost_ms"] == pytest.approx(alone["sequential_ms"]) and alone["cost_ms"] >= data["cost_ms"]


def test_merged_operators_are_one_node_and_its_readers_take_slices(tmp_path):
    found, data = _written(_fire(), tmp_path, variant="merge")
    (block,) = json.loads(found.read_text())["blocks"]
    merged = next(n for n in block["inner_nodes"] if n["name"] == "2")
    assert (merged["hint_name"], merged["out_channels"], merged["output_shape"]) == ("2 3", 112, [112, 28, 28])
    assert (merged["kernel"], merged["padding"]) == ([3, 3], [1, 1])
    assert block["exit_node"]["inputs"] == [[["2", 0, 64]], [["2", 64, 112]]]
    assert block["stages"] == [[["1"]], [["2"]], [["4"]]]
    graph, stages = load_authors_file(found)
    validate_schedule(graph, stages)
    assert sum(prod(graph.tensors[t].shape) for t in graph.outputs) == 112 * 28 * 28
    again, _ = api.stages(found, target="cuda", device="v100", load=found)
    assert again["cost_ms"] == pytest.approx(data["cost_ms"])


def test_operators_with_unequal_activations_are_not_merged(tmp_path):
    _, data = _written(_fire("identity"), tmp_path, variant="merge")
    assert all(stage["strategy"] == "concurrent" for stage in data["stages"])


@pytest.mark.parametrize(
    "option", [{"cost": "measured"}, {"emit": "folder"}, {"until": "2"}, {"metaschedule": "folder"}]
)
def test_what_needs_weights_is_refused(tmp_path, option):
    with pytest.raises(UsageError, match="holds no weights"):
        _written(_fire(), tmp_path, **option)


def test_a_schedule_of_another_network_is_refused(tmp_path):
    found, _ = _written(_fire(), tmp_path)
    with pytest.raises(UsageError, match="made for another graph"):
        api.stages(tmp_path / "fire.json", target="cuda", device="v100", load=found)
