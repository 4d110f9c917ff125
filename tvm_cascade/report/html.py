"""One self-contained page per plan: summary, memory map, pictures, and the JSON behind them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.report.picture import draw_arena, draw_frontier

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "pre{overflow-x:auto;font-size:12px}img{max-width:100%}"
)


def _picture(path: Path, title: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<h2>{escape(title)}</h2><img alt="{escape(title)}" src="data:image/png;base64,{data}">'


def write_report(
    folder: Path,
    name: str,
    plan: Plan,
    frontier: Sequence[tuple[int, float]],
    data: Mapping[str, object],
    text: str,
) -> None:
    """Write `report.html`, `plan.json`, `plan.txt`, `arena.png` and `frontier.png` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    draw_arena(plan, folder / "arena.png")
    draw_frontier(frontier, folder / "frontier.png")
    (folder / "plan.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "plan.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    page = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>{escape(name)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(name)}: {plan.peak} bytes</h1>",
        _picture(folder / "arena.png", "The arena over time"),
        _picture(folder / "frontier.png", "Peak memory against work"),
        f"<h2>Plan</h2><pre>{escape(text)}</pre>",
        f"<h2>Data</h2><details><summary>JSON</summary><pre>{escape(json.dumps(data, indent=2))}</pre></details>",
    ]
    (folder / "report.html").write_text("\n".join(page) + "\n", encoding="utf-8")
