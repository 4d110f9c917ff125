"""Draws a graph before and after substitution side by side, as SVG, PNG or PDF. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tvm_cascade import extras
from tvm_cascade.operators.record import Family
from tvm_cascade.operators.table import family
from tvm_cascade.publish import whole_file
from tvm_cascade.substitution.dag import Dag, Node

_OF_FAMILIES = {Family.CONVOLUTION: "#cfe2f3", Family.PRODUCT: "#cfe2f3"}
_COLOURS = {
    "concat": "#fff2cc",
    "split": "#fff2cc",
    "fused": "#d9ead3",
}
_ARROW = {"arrowstyle": "->", "lw": 0.6, "color": "#666666"}
MAX_DRAWN = 400  # operators of a graph; more would be illegible


def _colour(node: Node) -> str:
    return _OF_FAMILIES.get(family(node.kind)) or _COLOURS.get(node.kind, "#f3f3f3")


def describe(node: Node) -> str:
    """Return an operator's box text, such as 'conv 3x3 s2 x256 relu'."""
    if family(node.kind) is Family.CONVOLUTION:
        out, _, kh, kw = node.inputs[1].shape
        stride = node["strides"][0]
        parts = [f"conv {kh}x{kw}", f"s{stride}" if stride != 1 else "", f"x{out}", str(node["act"])]
        return " ".join(p for p in parts if p)
    if family(node.kind) is Family.PRODUCT:
        return f"matmul x{node.shape[-1]} {node['act']}".rstrip()
    return node.kind


def levels(dag: Dag) -> Mapping[Node, tuple[int, int]]:
    """Return every operator's grid position (column, row): rows by longest path, columns in the order of `dag.nodes`."""
    rows: dict[Node, int] = {}
    for node in dag.nodes:
        rows[node] = 1 + max((rows[r.node] for r in node.inputs if r.node in rows), default=-1)
    used: dict[int, int] = {}
    positions = {}
    for node in dag.nodes:
        positions[node] = (used.get(rows[node], 0), rows[node])
        used[rows[node]] = used.get(rows[node], 0) + 1
    return positions


def draw(before: Dag, after: Dag, path: str | Path, titles: tuple[str, str] = ("before", "after")) -> Path:
    """Write the picture; the file's suffix selects the format. Raises `MissingToolError` without matplotlib."""
    Figure = extras.load("matplotlib", ".figure").Figure
    positions = [levels(dag) for dag in (before, after)]
    rows = max(row for p in positions for _, row in p.values()) + 1
    widths = [max((column for column, _ in p.values()), default=0) + 1 for p in positions]
    figure = Figure(figsize=(2.0 * sum(widths) + 1, 0.45 * min(rows, MAX_DRAWN) + 1))
    for k, (dag, position) in enumerate(zip((before, after), positions, strict=True)):
        axes = figure.add_subplot(1, 2, k + 1)
        axes.set_title(f"{titles[k]}: {len(dag.nodes)} operators", fontsize=9)
        axes.set_axis_off()
        axes.set_xlim(-0.6, widths[k] - 0.4)
        axes.set_ylim(rows - 0.3, -0.7)
        _boxes(axes, dag, position)
    with whole_file(path) as partial:
        figure.savefig(partial, bbox_inches="tight")
    return Path(path)


def _boxes(axes, dag: Dag, position: Mapping[Node, tuple[int, int]]) -> None:
    for node in dag.nodes[:MAX_DRAWN]:
        x, y = position[node]
        for ref in dict.fromkeys(r.node for r in node.inputs if r.node in position):
            a, b = position[ref]
            axes.annotate("", (x, y - 0.3), (a, b + 0.3), arrowprops=_ARROW)
        box = {"boxstyle": "round,pad=0.25", "fc": _colour(node), "ec": "#888888", "lw": 0.5}
        axes.text(x, y, describe(node), ha="center", va="center", fontsize=6, bbox=box)
