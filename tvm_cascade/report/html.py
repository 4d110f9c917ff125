"""HTML report of a plan: a self-contained page, drawn as SVG, and in a folder pictures and data beside."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tvm_cascade.cascading import Bounds, Plan, bound_of
from tvm_cascade.errors import UsageError
from tvm_cascade.graph import Graph
from tvm_cascade.messages import printable_lines
from tvm_cascade.publish import publish, whole_file
from tvm_cascade.report.arena_chart import HIGH, KINDS, arena_chart
from tvm_cascade.report.dead_channels import dead_channels
from tvm_cascade.report.estimate import Estimate, estimate_operators, total
from tvm_cascade.report.frontier_chart import frontier_chart
from tvm_cascade.report.layers import layers
from tvm_cascade.report.region_graph import region_graph
from tvm_cascade.report.stored_weights import stored_weights
from tvm_cascade.report.template import TEMPLATES, render
from tvm_cascade.report.text import block_rows, does_twice, smallest_of
from tvm_cascade.search_monitor import above
from tvm_cascade.sizes import human

PAGES = (".html", ".htm")  # endings of a report that is one page


@dataclass(frozen=True)
class ReportData:
    """The content of a plan's report."""

    name: str
    plan: Plan
    frontier: Sequence[tuple[int, float]]
    estimates: Sequence[Estimate]  # of each point of the frontier
    bounds: Bounds | None
    data: Mapping[str, Any]  # the JSON object
    text: str
    operators: Sequence[Estimate] = ()  # of the plan, by operator; empty: of a Cortex-M4
    commands: Sequence[str] = ()  # command lines that get the plans of the frontier
    waits: Sequence[Sequence[float]] = ()  # by operator, cycles of its accesses of each memory of the plan
    verdict: str = ""  # whether the board holds the network, and what it takes
    facts: Sequence[tuple[str, str]] = ()  # labels and texts: file, board, clock, date, command


@dataclass(frozen=True, slots=True)
class Card:
    """A figure at the head of the page."""

    title: str
    value: str
    unit: str
    more: str


def drawings(report: ReportData) -> dict[str, Any]:
    """Collect the drawings for the page's and pictures' templates: charts of the arena, the frontier and the regions."""
    plan, operators = report.plan, report.operators or estimate_operators(report.plan)
    points = (report.frontier, report.estimates, report.commands, report.bounds)
    return {
        "name": report.name,
        "plan": plan,
        "arena": arena_chart(plan),
        "frontier": frontier_chart(plan, total(operators), *points),
        "graph": region_graph(plan),
        "high": HIGH,
    }


def html_page(report: ReportData, drawn: Mapping[str, Any] | None = None) -> str:
    """Render the page, with `drawings` if already made: nothing is loaded from anywhere, and only the page's own script
    runs.
    """
    plan, data = report.plan, report.data
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    cards = list(_cards(report))
    return render(
        "page.html",
        **(drawn or drawings(report)),
        cards=cards,
        columns=[even_columns(len(cards), most) for most in (6, 4)],
        verdict=report.verdict,
        facts=report.facts,
        layers=layers(plan, report.operators or estimate_operators(plan), report.waits),
        accessed=tuple((f"Cycles in {use.ram.name}", 1) for use in plan.placed if report.waits),
        blocks=block_rows(plan),
        kinds=KINDS,
        suggestions=data.get("suggestions", ()),
        flash=data.get("flash_frontier", ()),
        notes=list(_notes(data, plan.graph)),
        left_out=data.get("left_out", {}),
        script=Markup(script),  # a file of ours: nothing is put into it
        script_hash=f"sha256-{digest}",
    )


def even_columns(count: int, most: int) -> int:
    """Return a number of columns, at most `most`, that fills rows evenly: 7 cards take 4 and 3 places."""
    rows = -(-count // most)
    return -(-count // max(rows, 1))


def _cards(report: ReportData) -> Iterator[Card]:
    plan, data = report.plan, report.data
    yield Card("Arena", f"{plan.peak:,}", "bytes", f"{human(plan.peak)}, everything counted")
    for use in plan.placed:
        room = "" if use.ram.capacity is None else f"of {use.ram.capacity:,}; "
        yield Card(f"In {use.ram.name}", f"{use.bytes:,}", "bytes", f"{room}{use.ram.cycles_per_byte:g} cycles a byte")
    gain = plan.baseline_peak / plan.peak if plan.peak else 1.0
    yield Card("One operator after the other", f"{plan.baseline_peak:,}", "bytes", f"{gain:.2f} times the arena")
    if does_twice(plan):
        yield Card("Lower bound", "none", "", "is proven where work is done twice")
    else:
        least = smallest_of(plan, report.frontier)
        what = "the arena" if least == plan.peak else f"the smallest plan found ({least:,})"
        told = f"{what} lies {above(least, plan.bound):.1f} % above; of any schedule {bound_of(plan):,}"
        yield Card("Lower bound", f"{plan.bound:,}", "bytes", told)
    factor = plan.macs / plan.baseline_macs if plan.baseline_macs else 1.0
    yield Card("Multiply-accumulates", f"{plan.macs:,}", "", f"{factor:.2f} times the network's")
    own = total(report.operators)
    if own.instructions:
        yield Card("Instructions, estimated", f"{own.instructions:,}", "", f"in {own.calls:,} kernel calls")
        how = "accesses of memories counted" if plan.placed else "where memory answers at once"
        yield Card("Cycles, estimated", f"{own.cycles:,}", "", f"of one inference, {how}")
    if "weight_bytes" in data:
        code = data["estimated_code_bytes"]
        yield Card("Weights and tables", f"{data['weight_bytes']:,}", "bytes", f"of flash, and about {code:,} of code")


def _notes(data: Mapping[str, Any], graph: Graph) -> Iterator[str]:
    if data.get("limited"):
        why = data.get("not_searched")
        yield f"Not searched: {why}." if why else "A limit ended the search: more time may give a smaller arena."
    if data.get("removed"):
        told = dead_channels(data["removed"], data["file_weight_bytes"], data["file_macs"], data["baseline_macs"])
        yield f"Dead channels: {told}."
    if told := stored_weights(graph):
        yield f"Weights: {told}."
    if data.get("concats"):
        yield data["concats"]
    for name, exact in data.get("candidates", {}).items():
        yield f"Kept: {name} ({exact})."


def today() -> str:
    """Return a report's date: today, or the date in SOURCE_DATE_EPOCH, which makes builds reproducible."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return str(datetime.fromtimestamp(int(epoch), timezone.utc).date() if epoch.isdigit() else date.today())


def write_report(to: Path, report: ReportData) -> None:
    """Write a single page if `to` ends in .html, else `report.html` with `plan.json`, `plan.txt` and pictures in a
    folder.

    A folder with only the report is replaced atomically; in a folder with further files, which stay, each file is.
    Raises `UsageError` if it cannot be written.
    """
    drawn = drawings(report)
    page = html_page(report, drawn) + "\n"
    if to.suffix.lower() in PAGES:
        with whole_file(to) as path:
            path.write_text(page, encoding="utf-8")
        return
    texts = {
        **{name: render(name, **drawn) + "\n" for name in ("arena.svg", "frontier.svg", "regions.svg")},
        "plan.txt": printable_lines(report.text) + "\n",
        "plan.json": json.dumps(report.data, indent=2) + "\n",
        "report.html": page,
    }
    if to.exists() and not to.is_dir():
        raise UsageError(f"{to} is a file; give a folder for the report, or a name that ends in .html")
    if to.is_dir() and any(path.name not in texts for path in to.iterdir()):
        for name, text in texts.items():
            with whole_file(to / name) as path:
                path.write_text(text, encoding="utf-8")
        return
    with publish(to) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
