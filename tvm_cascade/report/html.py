"""HTML report of a plan, one self-contained page: summary, pictures, region graph with cuts, steps, and the JSON data."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from tvm_cascade.cascading import Bounds, Plan
from tvm_cascade.errors import UsageError
from tvm_cascade.messages import printable_lines
from tvm_cascade.publish import publish, whole_file
from tvm_cascade.report.estimate import Estimate
from tvm_cascade.report.picture import draw_arena, draw_frontier
from tvm_cascade.report.region_graph import region_svg
from tvm_cascade.report.steps import step_rows
from tvm_cascade.report.text import summary

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "pre{overflow-x:auto;font-size:12px}img,svg{max-width:100%;height:auto}"
    "table{border-collapse:collapse;font-size:12px}td,th{border:1px solid #ccc;padding:1px 6px;text-align:left}"
)


@dataclass(frozen=True)
class ReportData:
    """The content of the report of one plan."""

    name: str
    plan: Plan
    frontier: Sequence[tuple[int, float]]
    estimates: Sequence[Estimate]  # of each point of the frontier
    bounds: Bounds | None
    data: Mapping[str, object]  # the JSON object
    text: str


def _picture(draw: Callable[[Path], None], title: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        draw(path)
        data = base64.b64encode(path.read_bytes()).decode()
    return f'<h2>{escape(title)}</h2><img alt="{escape(title)}" src="data:image/png;base64,{data}">'


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _frontier_table(report: ReportData) -> str:
    rows = [
        (peak, f"{factor:.3f}x", e.instructions, e.traffic_bytes, e.weight_bytes, e.calls)
        for (peak, factor), e in zip(report.frontier, report.estimates, strict=False)
    ]
    header = ("peak bytes", "work", "instructions (estimate)", "traffic bytes (estimate)", "of weights", "kernel calls")
    return _table(header, rows)


def html_page(report: ReportData) -> str:
    """The page: nothing is loaded from anywhere. Raises `MissingToolError` without matplotlib."""
    plan = report.plan
    steps = [
        (r["segment"], r["live_bytes"], r["operator"], r["kind"], r["steps"], r["by"], r["output"])
        for r in step_rows(plan)
    ]
    page = "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            f"<title>{escape(report.name)}</title><style>{_STYLE}</style>",
            f"<h1>{escape(report.name)}: {plan.peak} bytes</h1>",
            f"<pre>{escape(summary(plan, report.bounds))}</pre>",
            _picture(lambda path: draw_arena(plan, path), "The arena over time"),
            _picture(
                lambda path: draw_frontier(report.frontier, path, plan.baseline_peak, report.bounds),
                "Peak memory against work",
            ),
            _frontier_table(report),
            "<h2>Regions and cuts</h2><p>A box is a segment: its operators run interleaved. Thin arcs are rolling "
            "buffers, thick ones whole tensors; bars on the left are regions.</p>",
            region_svg(plan),
            "<h2>Steps</h2>",
            _table(("segment", "live bytes", "operator", "kind", "steps", "a step makes", "output"), steps),
            f"<h2>Plan</h2><pre>{escape(report.text)}</pre>",
            "<h2>Data</h2><details><summary>JSON</summary><pre>"
            f"{escape(json.dumps(report.data, indent=2))}</pre></details>",
        ]
    )
    return printable_lines(page)


def write_report(to: Path, report: ReportData) -> None:
    """One page where `to` ends in .html, else `report.html` with `plan.json`, `plan.txt` and the pictures in a folder.

    A folder of the report alone is replaced atomically; in a folder with other files, which stay, each file is.
    Raises `UsageError` where it cannot be written, `MissingToolError` without matplotlib.
    """
    page = html_page(report) + "\n"
    if to.suffix.lower() in (".html", ".htm"):
        with whole_file(to) as path:
            path.write_text(page, encoding="utf-8")
        return
    texts = {
        "regions.svg": region_svg(report.plan) + "\n",
        "plan.txt": printable_lines(report.text) + "\n",
        "plan.json": json.dumps(report.data, indent=2) + "\n",
        "report.html": page,
    }
    files: dict[str, Callable[[Path], object]] = {
        "arena.png": lambda path: draw_arena(report.plan, path),
        "frontier.png": lambda path: draw_frontier(report.frontier, path, report.plan.baseline_peak, report.bounds),
        **{name: partial(Path.write_text, data=text, encoding="utf-8") for name, text in texts.items()},
    }
    if to.exists() and not to.is_dir():
        raise UsageError(f"{to} is a file; give a folder for the report, or a name that ends in .html")
    if to.is_dir() and any(path.name not in files for path in to.iterdir()):
        for name, write in files.items():
            with whole_file(to / name) as path:
                write(path)
        return
    with publish(to) as folder:
        for name, write in files.items():
            write(folder / name)
