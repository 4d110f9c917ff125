"""The page of a report, as a parser of HTML reads it: what it shows, that it loads nothing, that readers find their way."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import click
import pytest

from tvm_cascade import api
from tvm_cascade.cascading import Plan, bounds, cascade, frontier
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.graph import Graph, Op, Tensor
from tvm_cascade.report.arena_chart import arena_chart
from tvm_cascade.report.commands import command_of, commands_of
from tvm_cascade.report.estimate import estimate, estimate_operators
from tvm_cascade.report.html import ReportData, even_columns, html_page
from tvm_cascade.report.layers import layers
from tvm_cascade.report.scale import Axis
from tvm_cascade.report.template import mark
from tvm_cascade.report.text import block_rows
from tvm_cascade.request import LoadRequest, PlanRequest, Request
from tvm_cascade.sizes import human
from tvm_cascade.testing.graphs import mobilenet_v1, resnet8
from tvm_cascade.testing.plan_options import rows_alone

CAN = rows_alone(pixels=True, accumulators=True, stripes=True)
GRAPH = resnet8()
PIXELS = cascade(GRAPH, CAN)
STRIPES = frontier(GRAPH, replace(CAN, max_macs=2.0, granularity="row"))[0]
VOID = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """The elements of a page with their attributes and their text, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(text)
        assert not self._open, "elements are left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for k in self._open:
            self.elements[k][2].append(data)

    def all(self, tag: str = "", **attributes: str) -> Iterator[tuple[dict[str, str | None], str]]:
        """Attributes and text of the elements of a tag that have these attributes."""
        for name, found, text in self.elements:
            if name == (tag or name) and all(
                v in (found.get(k.rstrip("_")) or "").split() for k, v in attributes.items()
            ):
                yield found, "".join(text)


def data(plan: Plan, **more: object) -> ReportData:
    points = ((plan.peak, 1.0), (plan.baseline_peak, 1.0))
    found = (estimate(plan), estimate(PIXELS))
    proven = bounds(plan.graph, CAN)
    return ReportData("net & <co>", plan, points, found, proven, {}, "", **{"commands": ("a 'b' <c>", "d")} | more)  # type: ignore[arg-type]


def test_nothing_is_loaded_and_all_is_there() -> None:
    page = Page(html_page(data(PIXELS)))
    for _, attributes, _ in page.elements:
        links = {k: v for k, v in attributes.items() if k in ("src", "href", "srcset", "data", "action", "poster")}
        assert all((v or "").startswith("#") for v in links.values()), attributes
    (style,) = (text for _, text in page.all("style"))
    assert "url(" not in style and "@import" not in style
    assert {"light", "dark"} <= {a["value"] for a, _ in page.all("input", name="theme")}
    assert "prefers-color-scheme:dark" in style
    (heading,) = (text for _, text in page.all("h1"))
    assert heading == f"net & <co>: {PIXELS.peak:,} bytes"
    blocks = [a["aria-label"] for a, _ in page.all("path", class_="block")]
    sizes = {f"{b['bytes']:,} bytes at offset {b['offset']:,}" for b in block_rows(PIXELS)}
    assert blocks and {re.search(r"[\d,]+ bytes at offset [\d,]+", b or "")[0] for b in blocks} == sizes  # type: ignore[index]
    assert sum(1 for _ in page.all("input", class_="point")) == 2
    assert [text for _, text in page.all("code")][:2] == ["a 'b' <c>", "d"]


def test_readers_find_their_way_without_a_mouse() -> None:
    page = Page(html_page(data(PIXELS)))
    ids = [a["id"] for _, a, _ in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for name in ("aria-labelledby", "aria-describedby", "for", "data-filter", "data-zoom"):
        assert {a[name] for _, a, _ in page.elements if name in a} <= set(ids)
    assert {(a["href"] or "")[1:] for a, _ in page.all("a")} <= set(ids)
    (html,) = (a for a, _ in page.all("html"))
    assert html["lang"] == "en"
    assert [a["tabindex"] for a, _ in page.all("path", class_="block")].count("0") == 1  # one stop, then the arrow keys
    for attributes, _ in page.all("svg"):
        assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label")
    assert all(a.get("aria-label") for a, _ in page.all(role="region")) and any(page.all(role="region"))
    assert all(a.get("scope") for a, _ in page.all("th"))
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and all(b <= a + 1 for a, b in pairwise(levels))


@pytest.mark.parametrize("plan", [PIXELS, STRIPES], ids=["pixels", "stripes"])
def test_layers_add_up_to_the_plan(plan: Plan) -> None:
    costs = estimate_operators(plan)
    found = layers(plan, costs)
    assert sum(x.macs for x in found) == plan.macs
    assert sum(x.weight_bytes for x in found) == GRAPH.weight_bytes
    assert sum(x.instructions for x in found) == estimate(plan).instructions
    assert sum(x.weight_reads for x in found) == estimate(plan).weight_bytes
    rows = [text for a, text in Page(html_page(data(plan))).all("tr") if any(x.name in text for x in found)]
    assert all(any(f"{x.macs:,}" in row for row in rows) for x in found)


def test_drawings_keep_what_they_draw() -> None:
    chart = arena_chart(cascade(mobilenet_v1(96, 96, 3, alpha=0.25, classes=2), rows_alone(accumulators=True)))
    for shape in chart.shapes:
        points = [tuple(map(int, p.split(","))) for p in shape.path[1:-1].split()]
        assert all(0 <= x <= chart.times.high and 0 <= y <= 1000 for x, y in points), shape
        assert len(set(points)) > 2
    assert chart.cuts[0] == 0 and chart.cuts[-1] == chart.times.high and list(chart.cuts) == sorted(set(chart.cuts))
    assert len(chart.segments) == len(chart.cuts) - 1
    assert 0 < len(chart.labels) <= 14


def views_alone() -> Graph:
    view = Op(0, "reshape", "reshape", (0,), (1,), windows=(None,), columns=(None,), view=True)
    return Graph((Tensor(0, "x", (1, 4), "int8"), Tensor(1, "y", (4,), "int8")), (view,), (0,), (1,))


def test_a_network_of_views_has_a_page_too() -> None:
    plan = cascade(views_alone(), CAN)
    Page(html_page(data(plan)))


def test_axes() -> None:
    assert Axis(0, 12_324).marks() == [0.0, 5000.0, 10_000.0]
    assert [mark(v) for v in (0, 0.95, 20_000, 1_500_000)] == ["0", "0.95", "20k", "1.5M"]
    assert [human(v) for v in (12, 12_324, 3 << 20)] == ["12 bytes", "12.0 KiB", "3.00 MiB"]
    for low, high in ((0, 1), (0.95, 1.05), (8990, 58_000), (0, 1e7)):
        marks = Axis(low, high).marks()
        assert 2 <= len(marks) <= 6 and all(low <= v <= high * 1.000001 for v in marks)


def test_the_command_of_a_request_asks_for_it() -> None:
    """The command line's own parser reads every option back."""
    load = LoadRequest(input_shapes={"x": (1, 3)}, stored_io=True, until=("a b", "-c"), from_=("d",))
    request = Request(
        "cortex-m7",
        load,
        PlanRequest(4096, 8192, 65536, 1.25, 1.5, True, False, False, "row", False, 9),
        Request().kernels,
    )
    for name in ("it's <mine>.tflite", "-x.tflite"):
        words = shlex.split(command_of(name, request))
        assert words[:2] == ["tvm-cascade", "plan"]
        command = main.get_command(click.Context(main), "plan")
        assert command is not None
        given = command.make_context("plan", words[2:]).params
        assert str(given.pop("model")) == name and given["target"] == "cortex-m7"
        assert LoadRequest.of(given) == load and PlanRequest.of(given) == request.plan
    plain, capped = commands_of("m.tflite", Request(), ((100, 1.00001), (50, 1.5)), 50)
    assert plain == "tvm-cascade plan m.tflite --target cortex-m4 --sram 100 --max-macs 1.0001"
    assert capped == "tvm-cascade plan m.tflite --target cortex-m4"
    assert command_of(object(), Request(), Path("out dir")).endswith("compile MODEL --target cortex-m4 -o 'out dir'")


def test_the_commands_of_a_frontier_get_its_plans() -> None:
    model = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))
    found = api.plan(model, target="cortex-m4", stream_input=True)
    assert len(found.frontier) == len(found.commands) > 1
    for (peak, factor), line in zip(found.frontier, found.commands, strict=True):
        words = shlex.split(line)
        number = {k: words[words.index(k) + 1] for k in ("--sram", "--max-macs") if k in words}
        again = api.plan(
            model,
            target="cortex-m4",
            stream_input=True,
            sram=number.get("--sram"),
            max_macs=float(number.get("--max-macs", 1)),
        )
        assert again.peak_bytes <= peak and again.macs <= factor * found.plan.baseline_macs * 1.0001
    assert sum(e.instructions for e in found.operators) == pytest.approx(found.estimated_instructions, rel=1e-4)


def test_cards_fill_rows_evenly() -> None:
    assert [even_columns(n, 6) for n in (1, 6, 7, 8, 9, 13)] == [1, 6, 4, 4, 5, 5]
    assert [even_columns(n, 4) for n in (4, 5, 6, 7, 9)] == [4, 3, 3, 4, 3]
