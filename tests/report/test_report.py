"""Reports: the step table, the arena over time, the region graph, estimates, bounds, one self-contained page."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tvm_cascade import api
from tvm_cascade.cascading import Bounds, Plan, bounds, cascade, frontier, layerwise
from tvm_cascade.graph import Graph
from tvm_cascade.report.estimate import estimate, estimate_operators, frontier_table
from tvm_cascade.report.frontier_chart import frontier_chart
from tvm_cascade.report.html import ReportData, html_page, write_report
from tvm_cascade.report.region_graph import region_graph
from tvm_cascade.report.steps import region_rows, step_rows, step_table
from tvm_cascade.report.template import render
from tvm_cascade.report.text import summary
from tvm_cascade.report.timeline import timeline
from tvm_cascade.results import PlanResult
from tvm_cascade.search_monitor import above_text
from tvm_cascade.testing.graphs import Builder, mobilenet_v1, resnet8
from tvm_cascade.testing.plan_options import ROWS_ALONE, rows_alone
from tvm_cascade.testing.random_windows import random_graph

CAN = rows_alone(pixels=True, accumulators=True, stripes=True)
GRAPH = resnet8()
PLANS = {
    "pixels": cascade(GRAPH, CAN),
    "rows": cascade(GRAPH, replace(CAN, granularity="row")),
    "streamed": cascade(GRAPH, replace(CAN, stream_input=True)),
    "layerwise": layerwise(GRAPH, ROWS_ALONE),
    "stripes": frontier(GRAPH, replace(CAN, max_macs=2.0, granularity="row"))[0],
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_steps_and_occupancy_agree_with_the_plan(plan: Plan) -> None:
    rows = step_rows(plan)
    calls = sum(len(s.trace) * max(len(s.stripes), 1) for s in plan.segments)
    assert sum(r["steps"] for r in rows) == calls
    assert max(r["live_bytes"] for r in rows) <= plan.peak
    text = step_table(plan)
    assert all(r["operator"] in text for r in rows)
    found = timeline(plan)
    assert found.cuts[-1] == calls
    assert max(found.used) <= plan.peak
    assert all(0 <= low <= high <= plan.peak for b in found.bands for low, high in zip(b.low, b.high, strict=True))
    (region,) = region_rows(plan)
    assert region["segments"] == list(range(len(plan.segments)))


def test_an_output_is_seen_behind_its_dying_input() -> None:
    """The two blocks overlap; what is of use in them never does."""
    plan = cascade(mobilenet_v1(96, 96, 3, alpha=0.25, classes=2), rows_alone(accumulators=True))
    found = timeline(plan)
    tensors = [b for b in found.bands if b.kind == "tensor"]
    crossing = 0
    for k, a in enumerate(tensors):
        for b in tensors[k + 1 :]:
            at = dict(zip(b.times, zip(b.low, b.high, strict=True), strict=True))
            blocks_meet = max(a.high) > min(b.low) and max(b.high) > min(a.low)
            crossing += blocks_meet and bool(at.keys() & set(a.times))
            for time, low, high in zip(a.times, a.low, a.high, strict=True):
                if time in at and high > low and at[time][1] > at[time][0]:
                    assert high <= at[time][0] or at[time][1] <= low
    assert crossing > 0


def two_regions() -> Graph:
    b = Builder()
    x = b.conv(b.input(9, 9, 2), 4, 3)
    mid = b.relu(x)
    graph = b.finish(b.add(b.conv(mid, 4, 3), x))
    ops = list(graph.ops)
    ops[1] = replace(ops[1], windows=(None,), columns=(None,), opaque="x: rows are not read in ascending order")
    return replace(graph, ops=tuple(ops))


def test_the_region_graph_shows_regions_segments_and_cuts() -> None:
    plan = cascade(two_regions(), CAN)
    root = ElementTree.fromstring(render("regions.svg", graph=region_graph(plan)))
    texts = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(t.startswith("cut: ") for t in texts) == len(plan.segments) - 1
    assert {"0", "1"} <= set(texts)
    assert all(any(t.startswith(op.name) for t in texts) for op in plan.graph.ops)
    grey = [t for t in root.iter("{http://www.w3.org/2000/svg}text") if t.get("class") == "apart"]
    assert [(t.text or "").split()[0] for t in grey] == [plan.graph.ops[1].name]
    for seed in range(4):
        plan = cascade(random_graph(seed, operators=6, largest=8), ROWS_ALONE)
        ElementTree.fromstring(render("regions.svg", graph=region_graph(plan)))


def test_estimates_order_plans_as_their_work_does() -> None:
    plain, rows, pixels = (estimate(PLANS[n]) for n in ("layerwise", "rows", "pixels"))
    assert plain.instructions <= rows.instructions < pixels.instructions
    assert plain.traffic_bytes <= pixels.traffic_bytes
    assert pixels.calls == sum(len(s.trace) for s in PLANS["pixels"].segments)
    written = sum(GRAPH.tensors[t].bytes for op in GRAPH.ops if not op.view for t in op.outputs)
    assert plain.written_bytes == rows.written_bytes == written
    striped = estimate(PLANS["stripes"])
    assert PLANS["stripes"].macs > GRAPH.macs
    assert striped.written_bytes > written
    assert striped.instructions > rows.instructions


def test_bounds_stand_beside_the_result() -> None:
    plan, proven = PLANS["rows"], bounds(GRAPH, CAN)
    assert proven.pixels <= proven.rows <= plan.peak
    text = summary(plan, proven)
    assert f"{proven.rows} bytes by rows" in text
    assert f"{proven.pixels} bytes by pixels" in text
    assert above_text(110, 100) == "10.0 % above it" and above_text(5000, 100) == "50 times as large"


def test_no_bound_is_claimed_of_work_done_twice() -> None:
    plan, proven = PLANS["stripes"], bounds(GRAPH, CAN)
    assert plan.macs > plan.baseline_macs
    text = summary(plan, proven)
    assert "none is proven where work is done twice" in text and "and may take less" in text
    found = PlanResult("net", plan, ((plan.peak, 1.0),), bounds=proven).to_dict()
    assert found["gap_percent"] is None
    assert found["bounds"] == {
        "rows": {"bytes": proven.rows, "gap_percent": None},
        "pixels": {"bytes": proven.pixels, "gap_percent": None},
    }


def report(plan: Plan) -> ReportData:
    points = ((plan.peak, 1.0), (plan.baseline_peak, 1.0))
    found = (estimate(plan), estimate(PLANS["layerwise"]))
    return ReportData("net & co", plan, points, found, bounds(GRAPH, CAN), {"peak_bytes": plan.peak}, "the text")


def test_a_page_alone_or_a_folder(tmp_path: Path) -> None:
    plan = PLANS["rows"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib", None)
        write_report(tmp_path / "new" / "x.html", report(plan))
        write_report(tmp_path / "folder", report(plan))
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["x.html"]
    names = {"arena.svg", "frontier.svg", "regions.svg", "plan.json", "plan.txt", "report.html"}
    assert {p.name for p in (tmp_path / "folder").iterdir()} == names
    svg = "{http://www.w3.org/2000/svg}"
    arena, frontier = (ElementTree.parse(tmp_path / "folder" / f"{name}.svg") for name in ("arena", "frontier"))
    blocks = [p for p in arena.iter(f"{svg}path") if (p.get("class") or "").startswith("block ")]
    assert len(blocks) == len(timeline(plan).bands) and all(p.find(f"{svg}title") is not None for p in blocks)
    assert [c.get("class") for c in frontier.iter(f"{svg}circle")] == ["chosen", "point"]
    assert any("net & co" in (t.text or "") for t in arena.iter(f"{svg}title"))


def test_the_frontier_as_text() -> None:
    plan, few = PLANS["rows"], estimate(PLANS["rows"])
    many = replace(few, instructions=2 * few.instructions)
    lines = frontier_table(plan, few, ((100, 1.5), (200, 1.0), (plan.peak, 0.9)), (many, many, few)).splitlines()
    assert "est." in lines[0]
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["100", "1.500x"],
        ["200", "1.000x"],
        [str(plan.peak), "0.900x"],
    ]
    assert [line.endswith("this plan") for line in lines[1:4]] == [False, False, True]
    assert lines[4].startswith(
        f"{plan.peak - 200} bytes above the 200 of the smallest plan of no more work buy 50.0 % fewer"
    )
    assert frontier_table(plan, few, ((plan.peak, 1.0),), (few,)).count("\n") == 1


def test_a_chosen_plan_that_is_larger_than_the_frontier_is_told_beside_it() -> None:
    plan, few = PLANS["rows"], estimate(PLANS["rows"])
    found = PlanResult("net", plan, ((plan.peak - 8, 1.0),), estimates=(few,), operators=estimate_operators(plan))
    lines = found.to_text(details=True).splitlines()
    assert [line.split()[0] for line in lines[-3:-1]] == [str(plan.peak - 8), str(plan.peak)]
    assert f"the smallest plan found, {plan.peak - 8} bytes," in found.to_text(details=True)
    assert "the arena is" not in found.to_text(details=True)
    assert found.to_dict()["estimated"] == few.to_dict()
    assert found.estimated_instructions == few.instructions
    page = html_page(ReportData("net", plan, found.frontier, (few,), None, {}, "", (), ("small", "own")))
    assert page.count('type="radio"') >= 2 and "(this plan)" in page.split("<code>own</code>")[1][:40]


def test_plans_that_do_less_work_than_the_network_are_drawn() -> None:
    plan, own = PLANS["rows"], estimate(PLANS["rows"])
    bounds = Bounds(plan.peak + 8, plan.peak + 4)  # of plans that leave nothing out
    few = replace(own, instructions=own.instructions - 1)
    points, estimates = ((plan.peak - 8, 0.7), (plan.peak - 4, 0.6)), (few, few)
    found = PlanResult("net", plan, points, estimates=estimates, operators=estimate_operators(plan), bounds=bounds)
    assert "plans may take less that leave out columns" in found.to_text(details=True)
    assert "fewer instructions" not in found.to_text(details=True)  # for there are none
    html_page(ReportData("net", plan, points, estimates, bounds, {}, "", (), ("a", "b", "own")))
    axis = frontier_chart(plan, own, points, estimates, ("a", "b", "own"), bounds).factors
    assert axis.low < 0.6 and axis.high > 1.0


def test_layers_have_the_cycles_and_the_work_of_the_plan() -> None:
    plan = PLANS["stripes"]
    found = PlanResult("net", plan, ((plan.peak, 1.0),), operators=estimate_operators(plan), clock=80_000_000)
    told = found.to_dict()
    assert sum(x["cycles"] for x in told["layers"]) == told["cycles"] == found.cycles > plan.macs
    assert sum(x["macs"] for x in told["layers"]) == told["macs"]
    assert [x["name"] for x in told["layers"]] == [row["operator"] for row in told["steps"] if row["kind"] != "source"]
    assert told["milliseconds"] == pytest.approx(found.cycles / 80e3, abs=1e-3)
    table = next(part for part in found.to_text(details=True).split("\n\n") if "cycles (est.)" in part).splitlines()
    assert table[0].split()[-5:] == ["(est.)", "ms", "of", "all", "layer"]
    assert table[-1].split()[:4] == [
        str(plan.macs),
        str(found.estimated_instructions),
        str(found.cycles),
        f"{found.milliseconds:.3f}",
    ]
    untimed = replace(found, clock=None)
    assert untimed.to_dict()["milliseconds"] is None and " ms " not in untimed.to_text(details=True)


def test_a_plan_in_two_memories_is_drawn_memory_by_memory(tmp_path: Path) -> None:
    shapes = files("tvm_cascade.testing") / "data" / "shapes.tflite"
    found = api.plan(str(shapes), target="cortex-m7", memory=("a=2KiB:0.5", "b=64KiB:4"))
    found.write_report(tmp_path / "out")
    page, picture = ((tmp_path / "out" / name).read_text() for name in ("report.html", "arena.svg"))
    for use in found.plan.placed:
        assert use.bytes and f"<dt>In {use.ram.name}</dt><dd><b>{use.bytes:,} " in page
        assert f">{use.ram.name}</span>" in page and f"bytes at offset 0 of {use.ram.name};" in page
        assert f'<text x="4" y="-4">{use.ram.name}</text>' in picture
        assert f">Cycles in {use.ram.name}</button>" in page
    assert ">Memory</button>" in page and "accesses of memories counted" in page
