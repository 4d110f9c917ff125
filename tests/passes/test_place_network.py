"""The plan and the memories of its blocks are chosen together: by time, by bytes, within every capacity."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from tvm_cascade import api
from tvm_cascade.cascading import validate
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.machine import Ram
from tvm_cascade.passes.cascade import Cascade
from tvm_cascade.request import PlanRequest
from tvm_cascade.results import PlanResult
from tvm_cascade.testing.builder import Net

SHAPES = files("tvm_cascade.testing") / "data" / "shapes.tflite"
FAST, SLOW = Ram("fast", 600, 0.5), Ram("slow", 1 << 20, 4.0)


def planned(*memory: Ram | str, **options) -> PlanResult:
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 16, 16, 3), "x"), 8, 3)
    y = net.depthwise(x, 3, 2)
    return api.plan(net.finish(net.dense(net.global_pool(net.conv(y, 16, 1)), 10)), memory=memory, **options)


def test_the_fastest_plan_within_all_capacities() -> None:
    by_time, by_bytes = planned(FAST, SLOW), planned(FAST, SLOW, objective="bytes")
    for found in (by_time, by_bytes):
        validate(found.plan)
        told: Any = found.to_dict()
        assert [(m["name"], m["capacity_bytes"]) for m in told["memories"]] == [("fast", 600), ("slow", 1 << 20)]
        assert all(m["peak_bytes"] <= m["capacity_bytes"] for m in told["memories"])
        assert sum(m["peak_bytes"] for m in told["memories"]) == told["peak_bytes"]
        assert sum(x["cycles"] for x in told["layers"]) == told["cycles"]
        assert sum(x["macs"] for x in told["layers"]) == told["macs"]
        for x in told["layers"]:
            assert list(x["access_cycles"]) == ["fast", "slow"] and sum(x["access_cycles"].values()) <= x["cycles"]
        for k, use in enumerate(found.plan.placed):  # its blocks are accessed, and nothing where none lies
            assert bool(use.bytes) == any(x.accesses[k][1] for x in found.layers)
        titles, *_, whole = found.to_text(details=True).split("multiply-acc.")[1].split("\n\n")[0].splitlines()
        assert titles.split()[3:5] == ["fast", "slow"] and whole.split()[3] == str(
            sum(x.accesses[0][1] for x in found.layers)
        )
    assert by_time.cycles <= by_bytes.cycles and by_bytes.peak_bytes <= by_time.peak_bytes
    assert all(use.bytes for use in by_time.plan.memories)


def test_the_bound_is_that_of_all_plans_not_of_the_narrower_request_that_won() -> None:
    """Of this network the fastest plan in these memories is one by rows, and a smaller one by pixels lies below their bound."""
    memory = ("a=4KiB:0.5", "b=64KiB:4")
    found = api.plan(str(SHAPES), target="cortex-m7", memory=memory, rewrite=False)
    assert found.plan.bound <= min(peak for peak, _ in found.frontier) < found.peak_bytes


def test_slow_memory_costs_what_its_bytes_cost() -> None:
    """The same plan in memories of 1 and 3 cycles a byte: twice its traffic lies between."""
    one, three = (planned(Ram("m", 1 << 20, cost), layerwise=True) for cost in (1.0, 3.0))
    none = planned(layerwise=True)
    assert not none.layers[0].accesses and sum(x.accesses[0][1] for x in one.layers) == pytest.approx(
        one.cycles - none.cycles, abs=len(one.layers)
    )
    assert three.cycles - one.cycles == pytest.approx(2 * (one.cycles - none.cycles), abs=len(one.layers))
    assert one.cycles - none.cycles > 2 * 16 * 16 * 3  # the input is read


def test_copies_of_weights_save_what_their_reads_wait() -> None:
    """The whole network's weights in a free memory: as if flash cost nothing. In the arena too, without named memories."""
    free = Ram("m", 1 << 20, 1e-9)
    for memory in ((free,), ()):
        waiting, copied = (planned(*memory, flash_wait=3, ram_weights=size, layerwise=True) for size in (0, "64KiB"))
        never = planned(*memory, layerwise=True)
        assert waiting.cycles > copied.cycles >= never.cycles
        assert copied.cycles - never.cycles <= 0.02 * (waiting.cycles - never.cycles)  # tables stay in flash
        assert sum(x.cycles for x in copied.layers) == copied.cycles
    ahead = planned(free, flash_wait=3, prefetch="64KiB", layerwise=True)
    assert copied.cycles < ahead.cycles < waiting.cycles
    told: Any = ahead.to_dict()["memories"][0]  # type: ignore[typeddict-item]
    assert told["peak_bytes"] == ahead.plan.placed[0].bytes + ahead.weights_in["m"] > ahead.plan.placed[0].bytes


def test_a_bound_and_what_fewer_bytes_of_the_fastest_memory_cost() -> None:
    for objective in ("time", "bytes"):
        found = planned(FAST, SLOW, clock="1MHz", objective=objective)
        told: Any = found.to_dict()
        bound, points = told["placement"], told["fast_frontier"]
        assert bound["plans"] >= 2 and 0 < bound["bound"] <= bound["reached"]
        assert bound["reached"] == (found.cycles if objective == "time" else found.peak_bytes)
        fast, cycles = ([p[key] for p in points] for key in ("fast_bytes", "cycles"))
        assert len(points) > 2 and fast == sorted(set(fast)) and cycles == sorted(set(cycles), reverse=True)
        assert fast[0] == 0 and fast[-1] <= 600 and points[0]["milliseconds"] == pytest.approx(cycles[0] / 1e3)
        assert min(cycles) <= found.cycles
        said = "no plan of the search" if objective == "time" else "plans tried"
        assert said in found.to_text(details=True) and "bytes of fast for cycles" in found.to_text(details=True)
        assert bound["search_bound"] is None if objective == "bytes" else 0 < bound["search_bound"] <= found.cycles
    assert "placement" not in planned().to_dict()


def test_a_cap_on_all_memories_together() -> None:
    smallest = planned(FAST, SLOW, objective="bytes").peak_bytes
    loose, tight = planned(FAST, SLOW), planned(FAST, SLOW, sram=smallest)
    assert tight.peak_bytes == smallest < loose.peak_bytes and tight.cycles > loose.cycles
    assert planned(FAST, SLOW, ram=smallest + 256).peak_bytes <= smallest
    with pytest.raises(InfeasibleError, match="100 bytes missing in fast and slow"):
        planned(FAST, SLOW, sram=smallest - 100)
    weights = planned(FAST, SLOW, sram=smallest + 64, ram_weights="64KiB", flash_wait=9)
    assert smallest < weights.peak_bytes + sum(weights.weights_in.values()) <= smallest + 64


def test_rows_at_addresses_of_their_own_lie_in_one_memory() -> None:
    """Ds-cnn's rows in a fast memory that its rings exceed: wherever they lie, the program finds them by its tables."""
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 16, 6, 4), "x"), 8, 3)
    for _ in range(2):
        x = net.conv(net.depthwise(x, 3), 8, 1)
    mod = net.finish(net.global_pool(x))
    plain = api.plan(mod, target="cortex-m4")
    assert any(s.row_addresses for s in plain.plan.storages)
    found = api.plan(mod, target="cortex-m4", memory=(Ram("fast", plain.peak_bytes, 0.5), SLOW))
    validate(found.plan)
    assert found.peak_bytes == plain.peak_bytes and any(s.row_addresses for s in found.plan.storages)
    assert [use.bytes for use in found.plan.placed].count(0) == 1
    assert sum(x.cycles for x in found.layers) == found.cycles


def test_one_memory_is_laid_out_as_the_arena() -> None:
    plain, named = planned(), planned(Ram("m", 1 << 20, 1.0), objective="bytes")
    assert named.peak_bytes <= plain.peak_bytes and not plain.plan.placed
    assert "memories" not in plain.to_dict() and "memory" not in plain.to_dict()["buffers"][0]


def test_texts_are_memories_too() -> None:
    assert planned("fast=600:0.5", "slow=1MiB:4").plan.memories == planned(FAST, SLOW).plan.memories
    assert str(FAST) == "fast=600:0.5"


def test_what_cannot_fit_says_how_many_bytes_are_missing() -> None:
    with pytest.raises(InfeasibleError, match=r"\d+ bytes missing in fast and slow") as error:
        planned(replace(FAST, capacity=100), replace(SLOW, capacity=200))
    smallest = planned(FAST, SLOW, objective="bytes").peak_bytes
    assert error.value.needed - error.value.available == pytest.approx(smallest - 300, rel=0.5)


@pytest.mark.parametrize(
    "wrong", ["m=", "m=0", "m=1KiB:0", "m=1KiB:nan", "m=1KiB:x", "2m=1KiB", "stack=1KiB", ["m=1KiB"] * 2]
)
def test_mistakes(wrong: object) -> None:
    with pytest.raises(UsageError, match="--memory"):
        PlanRequest(memory=wrong)  # type: ignore[arg-type]


def test_what_excludes_memories() -> None:
    with pytest.raises(UsageError, match="a Relax function has one arena"):
        Cascade(PlanRequest(memory=(FAST,)))
    with pytest.raises(UsageError, match="without copies of them"):
        Cascade(PlanRequest(prefetch="1KiB"))
